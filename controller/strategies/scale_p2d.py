"""A decode instance with broken hardware gets the place of a prefill instance (recovery.md sections 4 and 8)."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from controller.core.outcome import Outcome
from controller.core.ports import Runtime, ServingPublisher, Strategy, StrategyResult
from controller.strategies.patience import finish, wait_awake
from controller.strategies.serving import serve_again
from motor_ft.model.engine import EvidenceSource
from motor_ft.wire.log import get_logger
from motor_ft.wire.tasks import Tasks

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ScaleP2DTimes:
    """Seconds: for the instance's own recovery, and for the pods of the prefill instance to end."""

    request_timeout: float
    recovery: float
    give_up: float


class ScaleP2D:
    """Isolates the instance; where its faults do not clear by themselves, it is rebuilt in place of a prefill instance.

    The rebuilding is durable before a prefill instance is asked. When the Controller ends between the two, the next one
    only rebuilds: it cannot know whether an instance was taken, and takes none.
    """

    name = "scale_p2d"

    def __init__(
        self,
        instance_id: int,
        *,
        times: ScaleP2DTimes,
        recovered: Callable[[], Awaitable[object]],
        spare: Callable[[], Awaitable[object] | None],
        rebuild: Callable[[Callable[[], Awaitable[None]]], Strategy],
        publisher: ServingPublisher,
        runtime: Runtime,
    ) -> None:
        """``spare`` takes one prefill instance out of service and returns what to await until its pods have ended.

        It returns None when none can be spared. ``rebuild`` builds what rebuilds the instance; what it is given is done
        when that is durable, and before any pod is stopped.
        """
        self._instance_id = instance_id
        self._times = times
        self._recovered = recovered
        self._spare = spare
        self._rebuild = rebuild
        self._publisher = publisher
        self._runtime = runtime
        self._stopping = asyncio.Event()

    def died(self, rank: int, source: EvidenceSource) -> None:
        """The instance is waited for as a whole."""

    def stop(self, reason: str) -> None:
        """Honoured while the instance may still recover by itself."""
        self._stopping.set()

    async def execute(self) -> StrategyResult:
        """Withdraw, wait, free a prefill instance, rebuild."""
        self._runtime.show(withdrawn=True)
        await self._publisher.withdraw(self._instance_id, self._times.request_timeout)
        if (outcome := await self._wait()) is not None:
            return await serve_again(
                outcome, self._instance_id, self._runtime, self._publisher, self._times.request_timeout
            )
        return await self._rebuild(self._free).execute()

    async def _free(self) -> None:
        if (freed := self._spare()) is None:
            log.warning("no prefill instance can be spared", instance_id=self._instance_id)
        else:
            with suppress(TimeoutError):  # pods that nobody reaches must not hold up the rebuilding
                async with asyncio.timeout(self._times.give_up):
                    await freed

    async def _wait(self) -> Outcome | None:
        """SUCCEEDED when the faults have cleared, CANCELLED when asked to end, None when the time is over."""
        tasks = Tasks(f"scale-p2d-{self._instance_id}")
        recovered = tasks.spawn("recovered", finish(self._recovered()))
        stopping = tasks.spawn("stopping", self._stopping.wait())
        try:
            await wait_awake((recovered, stopping), self._times.recovery)
            if recovered.done():
                recovered.result()
                return Outcome.SUCCEEDED
            return Outcome.CANCELLED if stopping.done() else None
        finally:
            await tasks.close()
