"""What one source says of one place, through all its readings (mindcluster.md sections 2.5 and 11)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gateway.mindcluster.core.observed import Observed, Reading
from motor_ft.model.hardware import FaultKey, parse_cards

STALE_SEC = 600.0
"""Twice the longest time that a healthy plugin lets pass between two writes."""


class Times(NamedTuple):
    """Now: on the monotonic clock for decisions, and in seconds since the epoch to compare with what sources write."""

    monotonic: float
    wall: float


@dataclass(frozen=True, slots=True)
class Kept:
    """One fault. ``confirmed``: the last reading shows it, or says that it holds. Monotonic times, but ``first_seen``.

    ``level_since``: since when it has this level.
    """

    observed: Observed
    first_seen: float
    since: float
    level_since: float
    confirmed: bool = True


Identity = tuple[FaultKey, str]


@dataclass(frozen=True, slots=True)
class Slot:
    """All faults of one place. ``changed_at`` and ``taken_at`` are monotonic."""

    faults: Mapping[Identity, Kept] = field(default_factory=dict)
    update_time: float | None = None
    changed_at: float = 0.0
    taken_at: float = 0.0
    problem: str = ""

    def take(self, reading: Reading, now: Times) -> "Slot":
        """A reading has arrived. One that is older than the last changes nothing but the problem."""
        if self.update_time is not None and reading.update_time is not None and reading.update_time < self.update_time:
            return replace(self, problem="UpdateTime went back: an old state, or the node's clock was set")
        faults: dict[Identity, Kept] = {}
        for observed in reading.faults:
            identity = (observed.key, observed.fault_type)
            known = faults.get(identity)
            if known is None or observed.level.severity > known.observed.level.severity:
                faults[identity] = _kept(observed, self.faults.get(identity), now)
        for identity, kept in self.faults.items():
            held = _held(kept.observed, reading)
            if identity not in faults and (held or not reading.complete):
                faults[identity] = replace(kept, confirmed=held)
        return Slot(
            faults, reading.update_time or self.update_time, self._changed(reading, now), now[0], reading.problem
        )

    def broken(self, problem: str) -> "Slot":
        """Nothing more is known of the place: its faults are kept."""
        kept = {identity: replace(fault, confirmed=False) for identity, fault in self.faults.items()}
        return replace(self, faults=kept, problem=problem)

    def without(self, confirmed: frozenset[FaultKey]) -> "Slot":
        """Drop what is not among ``confirmed``."""
        return replace(self, faults={each: kept for each, kept in self.faults.items() if each[0] in confirmed})

    def outdated(self, now: Times) -> bool:
        """The source has not written for too long, by the clock of this process."""
        return self.update_time is not None and now.monotonic - self.changed_at > STALE_SEC

    def _changed(self, reading: Reading, now: Times) -> float:
        """A first reading is as old as it says; from then on only changes count, because node clocks can be wrong."""
        if self.update_time is None and reading.update_time is not None:
            return now.monotonic - max(0.0, now.wall - reading.update_time)
        return self.changed_at if reading.update_time in (None, self.update_time) else now.monotonic


def _kept(observed: Observed, before: Kept | None, now: Times) -> Kept:
    first_seen = now.wall if observed.since is None else min(observed.since, now.wall)
    if before is None:
        return Kept(observed, first_seen, now.monotonic, now.monotonic)
    same_level = before.observed.level is observed.level
    return Kept(
        observed,
        min(before.first_seen, first_seen),
        before.since,
        before.level_since if same_level else now.monotonic,
    )


def _held(observed: Observed, reading: Reading) -> bool:
    cards = parse_cards(observed.npu_name) if reading.held else None
    return cards is not None and any(card.number in reading.held for card in cards)
