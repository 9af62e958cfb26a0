"""The one strategy of an instance: started, told of deaths, asked to end, and taken in when its task is done."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from controller.core.errors import defect
from controller.core.outcome import Outcome
from controller.core.ports import Strategy, StrategyResult
from motor_ft.model.engine import EvidenceSource
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.log import get_logger
from motor_ft.wire.tasks import Tasks

log = get_logger(__name__)


@dataclass(slots=True)
class _Running:
    strategy: Strategy
    task: asyncio.Task[StrategyResult]
    stopping: bool = False


class Runner:
    """Never runs two strategies at once: the next one starts only after the task of the last one was reaped."""

    def __init__(self, instance_id: int, tasks: Tasks, on_end: Callable[[], None]) -> None:
        self._instance_id = instance_id
        self._tasks = tasks
        self._on_end = on_end
        self._running: _Running | None = None

    @property
    def name(self) -> str | None:
        """Of the strategy that runs, or has ended and was not reaped."""
        return self._running.strategy.name if self._running else None

    def start(self, strategy: Strategy) -> None:
        """Run a strategy; raises RuntimeError while another one is not reaped."""
        if self._running is not None:
            raise RuntimeError(f"{strategy.name} may not start beside {self.name}")
        log.info("strategy starts", instance_id=self._instance_id, strategy=strategy.name)
        task = self._tasks.spawn(strategy.name, strategy.execute())
        task.add_done_callback(lambda _: self._on_end())
        self._running = _Running(strategy, task)

    def died(self, rank: int, source: EvidenceSource) -> None:
        """New evidence that a rank is D."""
        if self._running is not None:
            self._running.strategy.died(rank, source)

    def stop(self, reason: str) -> None:
        """Ask the strategy to end where that is still safe; once is enough."""
        if self._running is None or self._running.stopping:
            return
        log.info("strategy is asked to end", instance_id=self._instance_id, strategy=self.name, reason=reason)
        self._running.stopping = True
        self._running.strategy.stop(reason)

    async def ended(self) -> None:
        """Wait for the end of what runs; it is still to be reaped then."""
        if self._running is not None:
            await asyncio.wait([self._running.task])

    def reap(self) -> tuple[str, StrategyResult] | None:
        """The name and the result of a strategy whose task is done, once; raises NOT_LEADER."""
        running = self._running
        if running is None or not running.task.done():
            return None
        self._running = None
        result = _result(running.task)
        log.info(
            "strategy ended",
            instance_id=self._instance_id,
            strategy=running.strategy.name,
            outcome=str(result.outcome),
            failure=str(result.failure) if result.failure else None,
        )
        return running.strategy.name, result


def _result(task: asyncio.Task[StrategyResult]) -> StrategyResult:
    error = task.exception() if not task.cancelled() else asyncio.CancelledError()
    if error is None:
        return task.result()
    if isinstance(error, FtError) and error.reason is Reason.NOT_LEADER:
        raise error
    return StrategyResult(Outcome.FAILED, defect("the strategy", error))
