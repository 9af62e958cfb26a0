"""All engines of an instance anew, in the pods that are there (recovery.md section 8)."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from controller.core.errors import Failure, FailureCode
from controller.core.outcome import Outcome
from controller.core.phases import Phase
from controller.core.ports import Clock, Engines, NodeManagers, Runtime, ServingPublisher, StrategyResult
from controller.core.transaction import Spec
from controller.strategies.instance_reconfiguration import SILENT
from controller.strategies.serving import serve_again
from motor_ft.model.command import Command
from motor_ft.model.engine import EngineStatus, EvidenceSource, PodEngine
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.tasks import Tasks


@dataclass(frozen=True, slots=True)
class RelaunchTimes:
    """Seconds, but for ``misses``: so many requests in a row that one NodeManager does not answer are the end."""

    request_timeout: float
    poll_interval: float
    timeout: float
    misses: int


class RelaunchError(Exception):
    """Why the instance does not come back this way."""


class EngineRelaunch:
    """Either all engines start anew and every active rank becomes healthy, or the strategy has failed.

    Engines of ranks that are gone for good start too, because the DP size is fixed; the ranks stay gone.
    """

    name = "engine_relaunch"

    def __init__(
        self,
        spec: Spec,
        *,
        reason: str,
        times: RelaunchTimes,
        epoch: Callable[[], int],
        engines: Engines,
        nodes: NodeManagers,
        publisher: ServingPublisher,
        runtime: Runtime,
        clock: Clock,
    ) -> None:
        self._spec = spec
        self._addresses = [pod.node_manager_address for pod in spec.pods]
        self._reason = reason
        self._times = times
        self._epoch = epoch
        self._engines = engines
        self._nodes = nodes
        self._publisher = publisher
        self._runtime = runtime
        self._clock = clock
        self._tasks = Tasks(f"relaunch-{spec.instance_id}")

    def died(self, rank: int, source: EvidenceSource) -> None:
        """The old engines end anyway; how the new ones are, their pods are asked."""

    def stop(self, reason: str) -> None:
        """A relaunch is never cut short: engines that start anew can neither be kept nor served."""

    async def execute(self) -> StrategyResult:
        """Withdraw and write RECONFIGURING, order it everywhere, wait for the new engines, serve again."""
        self._runtime.show(request_id=self._spec.request_id, pending=frozenset(), withdrawn=True)
        try:
            await self._runtime.persist(Phase.RECONFIGURING, begins=True)
            await self._publisher.withdraw(self._spec.instance_id, self._times.request_timeout)
            await self._relaunch()
        except (FtError, RelaunchError) as error:
            if isinstance(error, FtError) and error.reason is Reason.NOT_LEADER:
                raise
            return StrategyResult(Outcome.FAILED, Failure(FailureCode.RELAUNCH_FAILED, str(error)))
        finally:
            await self._tasks.close()
        return await serve_again(
            Outcome.SUCCEEDED, self._spec.instance_id, self._runtime, self._publisher, self._times.request_timeout
        )

    async def _relaunch(self) -> None:
        """Nothing is ended unless every pod says that it can; when one is not reached then, the fallback follows."""
        deadline = self._clock.now() + self._times.timeout
        engines = await self._all(validate_only=True)
        if missing := sorted(self._spec.active - {engine.rank for engine in engines if not engine.headless}):
            raise RelaunchError(f"no pod has an engine of ranks {missing}")
        former: dict[int, set[str]] = defaultdict(set)
        for engine in engines:
            former[engine.rank].add(engine.incarnation)
        self._engines.relaunching({rank: frozenset(known) for rank, known in former.items()})
        ended = {engine.incarnation for engine in await self._all()}
        await self._engines.relaunched(await self._ready(ended, deadline))
        await self._runtime.persist(Phase.SCALED_DOWN_RUNNING if self._spec.dead_committed else Phase.NORMAL)

    async def _all(self, *, validate_only: bool = False) -> list[PodEngine]:
        """The engines of every pod. Who does not answer is asked again: a pod carries an order out once."""
        engines, silent = await self._ask(self._addresses, validate_only=validate_only)
        for _ in range(1, self._times.misses):
            if not silent or any(error.reason not in SILENT for error in silent.values()):
                break
            await asyncio.sleep(self._times.poll_interval)
            answered, silent = await self._ask(silent, validate_only=validate_only)
            engines += answered
        if silent:
            raise RelaunchError("; ".join(_why(silent)))
        return engines

    async def _ready(self, ended: set[str], deadline: float) -> dict[int, str]:
        """Poll until all pods say at once that their new engines are healthy; returns the incarnations by rank."""
        misses: Counter[str] = Counter()
        while True:
            await asyncio.sleep(min(self._times.poll_interval, max(0.0, deadline - self._clock.now())))
            engines, silent = await self._ask(self._addresses, validate_only=True)
            misses = Counter({address: misses[address] + 1 for address in silent})
            lost = {address: why for address, why in silent.items() if misses[address] >= self._times.misses}
            if lost:
                raise RelaunchError(f"{self._times.misses} polls in a row were not answered: {'; '.join(_why(lost))}")
            healthy, waiting = self._judge(engines, ended)
            if not (waiting or silent):
                return healthy
            if self._clock.now() >= deadline:
                late = [f"ranks {waiting} are not healthy"] * bool(waiting) + _why(silent)
                raise RelaunchError(f"{self._times.timeout:g} s after the relaunch began {'; '.join(late)}")

    def _judge(self, engines: Iterable[PodEngine], ended: set[str]) -> tuple[dict[int, str], list[int]]:
        """Active ranks whose new engine is healthy, and those that have none; a headless one only has to be new."""
        own = [engine for engine in engines if engine.rank in self._spec.active]
        new = [engine for engine in own if engine.incarnation not in ended]
        if dead := sorted(engine.rank for engine in new if engine.status is EngineStatus.DEAD):
            raise RelaunchError(f"new engines of ranks {dead} have ended")
        up = [engine for engine in new if engine.status is EngineStatus.HEALTHY and not engine.headless]
        healthy = {engine.rank: engine.incarnation for engine in up}
        old = {engine.rank for engine in own if engine.incarnation in ended}
        return healthy, sorted(old | (self._spec.active - healthy.keys()))

    async def _ask(
        self, addresses: Collection[str], *, validate_only: bool
    ) -> tuple[list[PodEngine], dict[str, FtError]]:
        """Engines of the pods that answer, and by their addresses why the others do not."""
        calls = [self._tasks.spawn(f"ask {address}", self._one(address, validate_only)) for address in addresses]
        engines: list[PodEngine] = []
        silent: dict[str, FtError] = {}
        for address, answer in zip(addresses, await asyncio.gather(*calls), strict=True):
            if isinstance(answer, FtError):
                silent[address] = answer
            else:
                engines += answer
        return engines, silent

    async def _one(self, address: str, validate_only: bool) -> tuple[PodEngine, ...] | FtError:
        generation = self._runtime.record.generation
        command = Command(self._spec.instance_id, self._spec.request_id, self._epoch(), generation)
        try:
            return await self._nodes.restart_engines(
                address, command, self._reason, self._times.timeout, validate_only=validate_only
            )
        except FtError as error:
            return error


def _why(silent: Mapping[str, FtError]) -> list[str]:
    return [f"{address} says {error}" for address, error in silent.items()]
