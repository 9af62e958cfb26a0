"""The ranks of this pod: what is known of them now, and who learns of changes."""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from motor_ft.model.engine import EngineObservation, EngineStatus, Problem
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import Endpoint, EndpointStatus
from motor_ft.wire.log import get_logger
from motor_ft.wire.outbox import Outbox
from nodemanager.core.health import DeathReport, EngineReport, RankHealth, checked, die, observe
from nodemanager.core.ports import Clock, Target
from nodemanager.core.settings import Settings
from nodemanager.journal import Journal
from nodemanager.metrics import NodeMetrics

MAX_WAITING_READINGS = 256
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotMark:
    """Stands in the outbox for a snapshot, which is taken when it is sent."""


Report = EngineReport | DeathReport | SnapshotMark


class Readings:
    """What one WatchStatus call has yet to send of its ranks.

    A watcher that falls too far behind is cut, never skipped.
    """

    def __init__(self, ranks: Collection[int]) -> None:
        self._ranks = ranks
        self._queue: asyncio.Queue[EngineObservation] = asyncio.Queue(MAX_WAITING_READINGS)
        self._cut = False

    def put(self, reading: EngineObservation) -> None:
        """Queue a reading of a rank that is watched; a full queue cuts the watcher."""
        if reading.rank not in self._ranks:
            return
        try:
            self._queue.put_nowait(reading)
        except asyncio.QueueFull:
            self._cut = True

    async def get(self, timeout_sec: float) -> EngineObservation | None:
        """The next reading, None when none comes in time; raises FtError OVERLOADED for a watcher that was cut."""
        if self._cut:
            raise FtError(Reason.OVERLOADED, f"more than {MAX_WAITING_READINGS} readings wait; watch again")
        try:
            async with asyncio.timeout(timeout_sec):
                return await self._queue.get()
        except TimeoutError:
            return None


class Pod:
    """Present knowledge about the own ranks; a retired rank is silent everywhere.

    ``settings`` come from the Controller. ``wake`` is set when there is something to send, ``retarget`` when other
    engines are to be read, or at another pace.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        journal: Journal,
        clock: Clock,
        *,
        metrics: NodeMetrics,
        outbox_limit: int = 512,
    ) -> None:
        self.settings = Settings()
        self.outbox: Outbox[Report] = Outbox(outbox_limit, SnapshotMark())
        self.wake = asyncio.Event()
        self.retarget = asyncio.Event()
        self._endpoints = {endpoint.rank: endpoint for endpoint in endpoints}
        self._journal = journal
        self._clock = clock
        self._metrics = metrics
        self._health: dict[int, RankHealth] = {}
        self._watchers: set[Readings] = set()

    @property
    def own(self) -> frozenset[int]:
        """All ranks with an endpoint here, headless and retired ones too."""
        return frozenset(self._endpoints)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """All endpoints with their present incarnations, by rank."""
        return tuple(
            replace(self._endpoints[rank], incarnation=self._incarnation(rank)) for rank in sorted(self._endpoints)
        )

    def health(self) -> tuple[RankHealth, ...]:
        """Every rank that is not retired, dead ones included, by rank."""
        return tuple(self._known(rank) for rank in sorted(self.own - self._journal.state.retired))

    def problems(self) -> list[str]:
        """Engines that cannot be read, or are not to be believed, and why."""
        read = [(known.rank, known.report.observation) for known in self.health() if known.report]
        return [
            f"rank {rank}: {seen.problem}: {seen.detail}" for rank, seen in read if seen.problem is not Problem.NONE
        ]

    def beat(self) -> tuple[RankHealth, ...]:
        """What a heartbeat names: with scale-down off every own rank, because nothing is retired for the baseline."""
        state = self._journal.state
        return self.health() if state.scale_down_on else tuple(self._known(rank) for rank in sorted(self.own))

    def targets(self) -> tuple[Target, ...]:
        """Every engine that is polled: routable and not retired."""
        return tuple(Target(known.rank, known.incarnation) for known in self.health() if not known.headless)

    def choose(self, ranks: Sequence[int]) -> tuple[Target, ...]:
        """The engines of exactly these ranks; raises FtError UNKNOWN_RANK for any that is not polled."""
        targets = {target.rank: target for target in self.targets()}
        if unknown := sorted(set(ranks) - targets.keys()):
            raise FtError(
                Reason.UNKNOWN_RANK, f"ranks {unknown} are not routable here or retired; this pod has {sorted(targets)}"
            )
        return tuple(targets[rank] for rank in ranks)

    def check_meant(self, engines: Iterable[tuple[int, str]]) -> None:
        """Raise FtError ENGINE_IDENTITY_MISMATCH when an own rank of ``engines`` has another incarnation, or has ended.

        Whatever answers at the address of an engine that has ended is not the one that was meant.
        """
        own = {known.rank: known for known in self.health() if not known.headless}
        for rank, meant in engines:
            known = own.get(rank)
            if known is not None and (known.incarnation != meant or known.deaths):
                why = known.deaths[0].detail if known.deaths else f"it was replaced by {known.incarnation}"
                raise FtError(Reason.ENGINE_IDENTITY_MISMATCH, f"engine {meant} of rank {rank} is no survivor: {why}")

    def observe(self, reading: EngineObservation, target: Target) -> None:
        """Fold in what was read when ``target`` was asked, and report it when it is worth a report."""
        rank = target.rank
        if rank in self._journal.state.retired:
            if reading.status is EngineStatus.HEALTHY:
                _log.warning("retired rank answers healthy", rank=rank, incarnation=reading.incarnation)
                self._metrics.retired_healthy.inc()
            return
        reading = checked(reading, rank, target.incarnation)
        if reading.problem is not Problem.NONE:
            self._metrics.problems.labels(reading.problem).inc()
        for watcher in self._watchers:
            watcher.put(reading)
        self._health[rank], report = observe(
            self._known(rank), reading, self._clock.now(), self.settings.unreachable_threshold
        )
        if report is not None:
            _log.info("engine status", rank=rank, status=reading.status, problem=reading.problem, detail=reading.detail)
            self._report(("engine", rank), report)

    def died(self, death: DeathReport) -> None:
        """Fold in the exit of a process of an engine, and report it; of every process there is one."""
        if death.rank in self._journal.state.retired:
            return
        self._health[death.rank] = die(self._known(death.rank), death)
        self._metrics.process_deaths.inc()
        self._report(("death", death.rank, death.pid), death)

    def relaunching(self) -> None:
        """The engines are about to be ended: no endpoint is normal until its new engine is."""
        for known in self.health():
            self._health[known.rank] = replace(known, status=EndpointStatus.ABNORMAL)
        self.changed()

    def changed(self) -> None:
        """Readiness or retirement changed: say everything anew."""
        self.retarget.set()
        self.outbox.request_snapshot()
        self.wake.set()

    def paced(self, settings: Settings) -> None:
        """Take over what the Controller says about pace."""
        if settings != self.settings:
            self.settings = settings
            self.retarget.set()

    @contextmanager
    def watch(self, ranks: Collection[int]) -> Iterator[Readings]:
        """Every reading of these ranks from now on, while the context is open."""
        readings = Readings(ranks)
        self._watchers.add(readings)
        try:
            yield readings
        finally:
            self._watchers.discard(readings)

    def _incarnation(self, rank: int) -> str:
        return self._journal.state.engines[rank].incarnation

    def _known(self, rank: int) -> RankHealth:
        incarnation = self._incarnation(rank)
        known = self._health.get(rank)
        if known is None or known.incarnation != incarnation:
            headless = self._endpoints[rank].headless
            first = EndpointStatus.INITIAL if known is None else EndpointStatus.ABNORMAL
            known = RankHealth(rank, incarnation, headless, EndpointStatus.NORMAL if headless else first)
            self._health[rank] = known
        return known

    def _report(self, key: tuple[str | int, ...], report: Report) -> None:
        self.outbox.put(key, report)
        self.wake.set()
