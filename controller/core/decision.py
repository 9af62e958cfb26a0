"""From evidence to an action: one pure function, the first row that fits (recovery.md section 4, RFC section 4.3)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from controller.core.correlation import Concern, Correlation
from controller.core.phases import STABLE, Phase
from motor_ft.model.topology import Role


class Action(StrEnum):
    """What to do with an instance."""

    NONE = "none"
    WAIT = "wait"
    TOKEN_REINFERENCE = "token_reinference"
    FAST_RECOVERY = "fast_recovery"
    DP_SCALE_DOWN = "dp_scale_down"
    ENGINE_RELAUNCH = "engine_relaunch"
    SCALE_P2D = "scale_p2d"
    INSTANCE_RECONFIGURATION = "instance_reconfiguration"


PASSIVE = frozenset({Action.NONE, Action.WAIT})
"""Every other action is a strategy."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a decision may look at. ``unhealthy`` and ``dead`` are parts of ``active``; times are monotonic.

    ``in_service``: the instance is ACTIVE, all its active ranks have endpoints that are normal. ``enabled`` are the
    strategies that are switched on, ``tried`` those that have started since all active ranks were well.
    """

    phase: Phase
    ready: bool
    strategy: str | None
    automation_stopped: bool
    superseded: bool
    scale_down_enabled: bool
    active: frozenset[int]
    unhealthy: frozenset[int]
    dead: frozenset[int]
    collecting_since: float | None
    collection_timeout_sec: float
    in_service: bool
    correlation_window_sec: float
    hardware: Correlation = field(default_factory=Correlation)
    enabled: frozenset[Action] = frozenset()
    tried: frozenset[Action] = frozenset()
    paused: bool = False
    role: Role = Role.UNION

    @property
    def complete(self) -> bool:
        """Every active rank is either U or D."""
        return self.unhealthy | self.dead == self.active

    @property
    def deadline(self) -> float | None:
        """When the collection is over: at exactly this time it is."""
        return None if self.collecting_since is None else self.collecting_since + self.collection_timeout_sec


@dataclass(frozen=True, slots=True)
class Decision:
    """An action, why, and when to look again (monotonic; None when only new evidence can change it)."""

    action: Action
    reason: str
    row: str
    look_again: float | None = None


_NAMED = 4
"""So many faults are named in a reason."""

Row = Callable[[Snapshot, float], Decision | None]


def decide(snapshot: Snapshot, now: float) -> Decision:
    """The first row that fits decides."""
    return next(decision for row in ROWS if (decision := row(snapshot, now)) is not None)


def _blocked(snapshot: Snapshot, now: float) -> Decision | None:
    blocks = {
        f"strategy {snapshot.strategy} runs": snapshot.strategy is not None,
        f"phase is {snapshot.phase}": snapshot.phase not in STABLE,
        "automation is stopped": snapshot.automation_stopped,
        "automation is paused": snapshot.paused,
        "superseded by a newer instance of the job": snapshot.superseded,
        "the instance was never ready": not snapshot.ready,
    }
    why = [text for text, blocked in blocks.items() if blocked]
    return Decision(Action.NONE, "; ".join(why), "00") if why else None


def _no_evidence(snapshot: Snapshot, now: float) -> Decision | None:
    """Row 10; faults of row 1 are named, and start nothing."""
    if snapshot.unhealthy or snapshot.dead or snapshot.hardware.unhandled(snapshot.active):
        return None
    handled = snapshot.hardware.handled(snapshot.active)
    gone = f"; only of removed ranks, so handled: {_named(handled)}" if handled else ""
    return Decision(Action.NONE, f"no active rank is UNHEALTHY or DEAD{gone}", "10")


def _feature_off(snapshot: Snapshot, now: float) -> Decision | None:
    if snapshot.scale_down_enabled:
        return None
    return Decision(Action.NONE, "DP scale-down is switched off", "off")


def _no_correlation(snapshot: Snapshot, now: float) -> Decision | None:
    """The original strategy at once, which for L4 and above is the rebuilding of the instance."""
    faults = snapshot.hardware.unhandled(snapshot.active)
    unmappable = [each for each in faults if each.ranks is None]
    if unmappable:
        why = f"hardware faults that no rank can be told for: {_named(unmappable)}"
    elif faults and not snapshot.in_service:
        why = f"hardware faults of an instance that is not ACTIVE: {_named(faults)}"
    else:
        return None
    return Decision(Action.INSTANCE_RECONFIGURATION, why, "2")


def _hardware_first(snapshot: Snapshot, now: float) -> Decision | None:
    since = snapshot.hardware.hardware_first
    if since is None or snapshot.hardware.matched(snapshot.active, snapshot.dead):
        return None
    faults = _named(snapshot.hardware.unhandled(snapshot.active))
    window, deadline = snapshot.correlation_window_sec, since + snapshot.correlation_window_sec
    if now >= deadline:
        why = f"no engine evidence matched the hardware within {window:g} s: {faults}"
        return Decision(Action.INSTANCE_RECONFIGURATION, why, "4")
    return Decision(Action.WAIT, f"up to {window:g} s for engines to notice the hardware: {faults}", "3", deadline)


def _named(faults: Sequence[Concern]) -> str:
    """The first ones; a switch that fails has hundreds."""
    more = f" and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
    return ", ".join(map(str, faults[:_NAMED])) + more


def _all_unhealthy(snapshot: Snapshot, now: float) -> Decision | None:
    if snapshot.dead or not snapshot.complete:
        return None
    text = "every active rank is UNHEALTHY and none is DEAD"
    if Action.FAST_RECOVERY in snapshot.enabled - snapshot.tried:
        return Decision(Action.FAST_RECOVERY, text, "5")
    return _collect(snapshot, now, text, "5")


def _all_dead(snapshot: Snapshot, now: float) -> Decision | None:
    if snapshot.dead != snapshot.active:
        return None
    return Decision(Action.INSTANCE_RECONFIGURATION, "every active rank is DEAD", "7")


def _unhealthy_and_dead(snapshot: Snapshot, now: float) -> Decision | None:
    if not (snapshot.unhealthy and snapshot.dead and snapshot.complete):
        return None
    text = f"DEAD {sorted(snapshot.dead)}, UNHEALTHY {sorted(snapshot.unhealthy)}: complete"
    return Decision(Action.DP_SCALE_DOWN, text, "6")


def _incomplete(snapshot: Snapshot, now: float) -> Decision | None:
    silent = sorted(snapshot.active - snapshot.unhealthy - snapshot.dead)
    return _collect(snapshot, now, f"ranks {silent} are neither UNHEALTHY nor DEAD", "8")


def _collect(snapshot: Snapshot, now: float, text: str, row: str) -> Decision:
    deadline = snapshot.deadline
    if deadline is not None and now >= deadline:
        why = f"{text}, and the collection of {snapshot.collection_timeout_sec:g} s is over"
        return Decision(Action.INSTANCE_RECONFIGURATION, why, "9" if row == "8" else row)
    return Decision(Action.WAIT, text, row, deadline)


ROWS: tuple[Row, ...] = (
    _blocked,
    _no_evidence,
    _feature_off,
    _no_correlation,
    _hardware_first,
    _all_unhealthy,
    _unhealthy_and_dead,
    _all_dead,
    _incomplete,
)
"""Rows of recovery.md section 4 in their order, the last fits everything. Row 10 comes early because most instances are
well; row 1 is what ``Correlation.unhandled`` leaves out."""
