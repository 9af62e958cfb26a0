"""What one rank of this pod looks like, and which change of it is worth a report (recovery.md sections 2 and 8)."""

from dataclasses import dataclass, replace

from motor_ft.model.engine import EngineObservation, EngineStatus, EvidenceSource, PodEngine, Problem
from motor_ft.model.topology import EndpointStatus


@dataclass(frozen=True, slots=True)
class EngineReport:
    """A reading that is reported; ``source`` None is no evidence, ``since`` is when the status began."""

    observation: EngineObservation
    source: EvidenceSource | None
    since: float


@dataclass(frozen=True, slots=True)
class DeathReport:
    """A process of an engine ended at ``at``."""

    rank: int
    incarnation: str
    pid: int
    detail: str
    at: float


@dataclass(frozen=True, slots=True)
class RankHealth:
    """Present knowledge about one rank in one incarnation of its engine."""

    rank: int
    incarnation: str
    headless: bool = False
    status: EndpointStatus = EndpointStatus.INITIAL
    report: EngineReport | None = None
    unreachable: int = 0
    deaths: tuple[DeathReport, ...] = ()

    def engine(self) -> PodEngine:
        """The engine alone, as it was read last."""
        read = self.report.observation.status if self.report else EngineStatus.UNKNOWN
        return PodEngine(self.rank, self.incarnation, EngineStatus.DEAD if self.deaths else read, self.headless)


def checked(observation: EngineObservation, rank: int, incarnation: str) -> EngineObservation:
    """The reading if it is one of exactly this rank and engine, else UNKNOWN; watcher and Status share it."""
    if (observation.rank, observation.incarnation) == (rank, incarnation):
        return observation
    return EngineObservation(
        rank,
        EngineStatus.UNKNOWN,
        incarnation,
        problem=Problem.IDENTITY,
        detail=f"asked rank {rank} of engine {incarnation}, read rank {observation.rank} "
        f"of engine {observation.incarnation or '(none)'}",
    )


def observe(
    health: RankHealth, reading: EngineObservation, now: float, threshold: int
) -> tuple[RankHealth, EngineReport | None]:
    """Fold one reading in; the report is None when nothing changed that is worth one.

    ``threshold`` is the number of consecutive readings without a connection that make the rank unreachable.
    """
    unreachable = health.unreachable + 1 if reading.problem is Problem.UNREACHABLE else 0
    source = _source(reading, unreachable >= threshold)
    last = health.report
    since = last.since if last and _same_state(last.observation, reading) else now
    status = health.status if reading.status is EngineStatus.UNKNOWN and source is None else _status(health, reading)
    report = EngineReport(reading, source, since)
    changed = last is None or (last.observation.content(), last.source) != (reading.content(), source)
    return (
        replace(health, status=status, report=report, unreachable=unreachable),
        report if changed else None,
    )


def die(health: RankHealth, death: DeathReport) -> RankHealth:
    """Fold one process exit in."""
    return replace(health, status=EndpointStatus.ABNORMAL, deaths=(*health.deaths, death))


def _source(reading: EngineObservation, silent: bool) -> EvidenceSource | None:
    if reading.status in (EngineStatus.DEAD, EngineStatus.UNHEALTHY):
        return EvidenceSource.ENGINE_REPORTED
    return EvidenceSource.STATUS_UNREACHABLE if reading.problem is Problem.UNREACHABLE and silent else None


def _same_state(last: EngineObservation, reading: EngineObservation) -> bool:
    return (last.status, last.problem) == (reading.status, reading.problem)


def _status(health: RankHealth, reading: EngineObservation) -> EndpointStatus:
    if health.deaths:
        return EndpointStatus.ABNORMAL
    if reading.status is EngineStatus.HEALTHY:
        return EndpointStatus.NORMAL
    return health.status if health.status is EndpointStatus.INITIAL else EndpointStatus.ABNORMAL
