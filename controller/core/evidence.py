"""What is known of every rank, and since when (recovery.md section 2). All times are monotonic seconds."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from controller.core.reports import EngineFault, EngineHealthy, ProcessDeath
from motor_ft.model.engine import EngineObservation, EngineStatus, EvidenceSource
from motor_ft.model.topology import Endpoint

FAULTY = frozenset({EngineStatus.UNHEALTHY, EngineStatus.DEAD})


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """One slot.

    ``observation`` is the counter of the reading that was reported last, 0 where it had none.
    ``reading`` is the newest U or D that an engine reading gave; ``exited`` says that a process of this incarnation
    ended, which no reading takes back. ``shown`` is the last status seen, for people. The first-seen times outlive a
    change between U and D and end with HEALTHY or a new incarnation. ``former`` are engines that a relaunch has ended:
    what is still said of them means nothing.
    """

    incarnation: str = ""
    observation: int = 0
    shown: EngineStatus = EngineStatus.UNKNOWN
    reading: EngineStatus | None = None
    source: EvidenceSource | None = None
    exited: bool = False
    first_unhealthy: float | None = None
    first_dead: float | None = None
    detail: str = ""
    former: frozenset[str] = frozenset()

    @property
    def status(self) -> EngineStatus | None:
        """``DEAD``, ``UNHEALTHY`` or None; a process exit is stronger than every reading."""
        return EngineStatus.DEAD if self.exited else self.reading

    @property
    def dead_source(self) -> EvidenceSource | None:
        """Strongest source of D, or None when the rank is not D."""
        if self.exited:
            return EvidenceSource.PROCESS_EXIT
        return self.source if self.reading is EngineStatus.DEAD else None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All slots of one instance and the begin of the collection (None while nothing is collected).

    While it is ``relaunching``, another engine of a rank is what was asked for.
    """

    ranks: Mapping[int, RankEvidence] = field(default_factory=dict)
    ignored: frozenset[int] = frozenset()
    collecting_since: float | None = None
    relaunching: bool = False

    def slot(self, rank: int) -> RankEvidence:
        """The slot of a rank; an empty one when nothing is known."""
        return self.ranks.get(rank, RankEvidence())

    def with_status(self, status: EngineStatus) -> frozenset[int]:
        """Ranks that count as ``status`` for a decision."""
        return frozenset(
            rank for rank, slot in self.ranks.items() if slot.status is status and rank not in self.ignored
        )

    @property
    def unhealthy(self) -> frozenset[int]:
        """U: may receive apply."""
        return self.with_status(EngineStatus.UNHEALTHY)

    @property
    def dead(self) -> frozenset[int]:
        """D: the only authority to remove a rank."""
        return self.with_status(EngineStatus.DEAD)

    def shown(self) -> dict[int, EngineStatus]:
        """Last status of every known rank, for people."""
        return {rank: EngineStatus.DEAD if slot.exited else slot.shown for rank, slot in sorted(self.ranks.items())}


def recalled(engines: Iterable[Endpoint], baseline: Iterable[int]) -> Evidence:
    """What a Controller begins with that has not seen the instance form: the engines that did, and its baseline.

    An engine that was restarted while nobody looked has lost its place as well.
    """
    known = {engine.rank: RankEvidence(engine.incarnation) for engine in engines if not engine.headless}
    return Evidence(known, frozenset(baseline))


def on_fault(evidence: Evidence, fault: EngineFault, now: float) -> Evidence:
    """A reading that is not healthy. Without a source it is shown and changes no evidence."""
    seen = fault.observation
    if (slot := _read(evidence, seen)) is None:
        return evidence
    slot = replace(slot, shown=seen.status, detail=seen.detail or seen.fault_info)
    if fault.source is not None:
        slot = _judged(slot, fault, fault.source, now)
    return _with(evidence, seen.rank, slot, now)


def _judged(slot: RankEvidence, fault: EngineFault, source: EvidenceSource, now: float) -> RankEvidence:
    """An engine that cannot be reached at its own socket is D; of two sources of D the stronger one stays."""
    status = EngineStatus.DEAD if source is EvidenceSource.STATUS_UNREACHABLE else fault.observation.status
    if status not in FAULTY:
        return slot
    if slot.source is not None and slot.reading is status and slot.source.strength > source.strength:
        source = slot.source
    slot = replace(slot, shown=status, reading=status, source=source)
    return _first_seen(slot, status, now - max(0.0, fault.age_sec))


def on_healthy(evidence: Evidence, healthy: EngineHealthy, now: float) -> Evidence:
    """HEALTHY takes back U and D of readings of the same incarnation, never a process exit."""
    seen = healthy.observation
    if (slot := _read(evidence, seen)) is None:
        return evidence
    slot = replace(slot, shown=seen.status, reading=None, source=None, detail="", first_unhealthy=None)
    if not slot.exited:
        slot = replace(slot, first_dead=None)
        evidence = replace(evidence, ignored=evidence.ignored - {seen.rank})
    return _with(evidence, seen.rank, slot, now)


def is_news(evidence: Evidence, seen: EngineObservation) -> bool:
    """Whether a reading that a strategy took itself is later than what was reported of the same engine meanwhile.

    Reports are not judged by this: they come in order, and counters begin anew with a gateway on another machine.
    """
    slot = evidence.slot(seen.rank)
    return slot.incarnation in {"", seen.incarnation} and seen.observation >= slot.observation


def on_death(evidence: Evidence, death: ProcessDeath, now: float) -> Evidence:
    """A process of the engine ended: D until a new instance, or a relaunch."""
    slot = evidence.slot(death.rank)
    if death.incarnation in slot.former:
        return evidence
    slot = _first_seen(slot, EngineStatus.DEAD, now - max(0.0, death.age_sec))
    slot = replace(slot, exited=True, detail=death.detail, incarnation=slot.incarnation or death.incarnation)
    return _with(evidence, death.rank, slot, now)


def on_incarnation(evidence: Evidence, rank: int, incarnation: str, now: float) -> Evidence:
    """The engine that a pod has registered now. Another one than before has lost its place: D."""
    slot = _engine(evidence, rank, incarnation)
    if slot is None or slot == evidence.slot(rank):
        return evidence
    return _with(evidence, rank, slot, now)


def forget(evidence: Evidence, ranks: frozenset[int], now: float) -> Evidence:
    """Drop the slots of ranks that are gone for good."""
    kept = {rank: slot for rank, slot in evidence.ranks.items() if rank not in ranks}
    return _collect(replace(evidence, ranks=kept, ignored=evidence.ignored - ranks), now)


def relaunching(evidence: Evidence, engines: Mapping[int, frozenset[str]]) -> Evidence:
    """What is left when ``engines``, rank → incarnations, are about to be ended and started anew: nothing.

    Engines that an earlier relaunch has ended stay ended.
    """
    former = {rank: ended | evidence.slot(rank).former for rank, ended in engines.items()}
    return Evidence({rank: RankEvidence(former=ended) for rank, ended in former.items()}, relaunching=True)


def strategy_ended(evidence: Evidence, now: float) -> Evidence:
    """A strategy has ended: what is still there is collected anew."""
    return _collect(replace(evidence, collecting_since=None, relaunching=False), now)


def as_baseline(evidence: Evidence, now: float) -> Evidence:
    """READY: faults that are there already start nothing until they clear and return.

    Processes that ended on the way to READY were replaced by the engines that are ready now.
    """
    ranks = {rank: replace(slot, exited=False, first_dead=None) for rank, slot in evidence.ranks.items()}
    settled = replace(evidence, ranks=ranks, ignored=frozenset())
    return _collect(replace(settled, ignored=settled.unhealthy | settled.dead), now)


def last_exit(evidence: Evidence) -> float:
    """When the last of the engines that have ended did so, or was replaced; minus infinity for none."""
    ends = (slot.first_dead for slot in evidence.ranks.values() if slot.exited and slot.first_dead is not None)
    return max(ends, default=-math.inf)


def survivor_seen_unhealthy(evidence: Evidence, ranks: frozenset[int]) -> dict[int, float]:
    """First U of each rank of ``ranks`` that is U; the engine's recovery window runs from there."""
    times = {rank: evidence.slot(rank).first_unhealthy for rank in ranks & evidence.unhealthy}
    return {rank: since for rank, since in times.items() if since is not None}


def _read(evidence: Evidence, seen: EngineObservation) -> RankEvidence | None:
    """The slot of the engine that was read; None for one that a relaunch has ended."""
    slot = _engine(evidence, seen.rank, seen.incarnation)
    return None if slot is None else replace(slot, observation=seen.observation)


def _engine(evidence: Evidence, rank: int, incarnation: str) -> RankEvidence | None:
    """The slot for what is said of an engine; None for one that a relaunch has ended.

    Outside of a relaunch another incarnation means that the engine was restarted behind our back.
    """
    slot = evidence.slot(rank)
    if incarnation in slot.former:
        return None
    if not slot.incarnation or not incarnation or slot.incarnation == incarnation:
        return replace(slot, incarnation=incarnation or slot.incarnation)
    if evidence.relaunching:
        return RankEvidence(incarnation, former=slot.former | {slot.incarnation})
    return RankEvidence(
        incarnation=incarnation,
        exited=True,
        first_dead=slot.first_dead,
        detail=f"engine {slot.incarnation} was replaced by {incarnation}",
        former=slot.former,
    )


def _first_seen(slot: RankEvidence, status: EngineStatus, since: float) -> RankEvidence:
    if status is EngineStatus.DEAD:
        return slot if slot.first_dead is not None else replace(slot, first_dead=since)
    return slot if slot.first_unhealthy is not None else replace(slot, first_unhealthy=since)


def _with(evidence: Evidence, rank: int, slot: RankEvidence, now: float) -> Evidence:
    if slot.exited and slot.first_dead is None:
        slot = replace(slot, first_dead=now)
    ignored = evidence.ignored - {rank} if slot.exited else evidence.ignored  # of READY no process had ended
    return _collect(replace(evidence, ranks={**evidence.ranks, rank: slot}, ignored=ignored), now)


def _collect(evidence: Evidence, now: float) -> Evidence:
    """The collection starts with the first U or D, is not extended, and ends when none is left."""
    if not (evidence.unhealthy or evidence.dead):
        return replace(evidence, collecting_since=None)
    return evidence if evidence.collecting_since is not None else replace(evidence, collecting_since=now)
