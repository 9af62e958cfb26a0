"""The fallback: withdraw, stop every pod of the instance, wait for its replacement (recovery.md section 8)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from controller.core.errors import Failure, FailureCode
from controller.core.outcome import Outcome
from controller.core.phases import Phase
from controller.core.ports import Clock, NodeManagers, Runtime, ServingPublisher, StrategyResult
from controller.strategies.patience import finish, wait_awake
from motor_ft.model.command import Command
from motor_ft.model.engine import EvidenceSource
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.log import get_logger
from motor_ft.wire.tasks import Tasks

log = get_logger(__name__)

SILENT = frozenset({Reason.OUTCOME_UNKNOWN, Reason.SHUTTING_DOWN})
"""No answer, or that of a pod that ends anyway; everything else is the answer of a pod that lives on."""


@dataclass(frozen=True, slots=True)
class ReconfigurationTimes:
    """Seconds. A pod that is silent for ``give_up`` (heartbeat TTL and guard lease) cannot act any more."""

    request_timeout: float
    retry_interval: float
    give_up: float
    assemble_timeout: float


class InstanceReconfiguration:
    """Ends one instance; the cluster starts its pods again, and they form a new instance of the job."""

    name = "instance_reconfiguration"

    def __init__(
        self,
        *,
        instance_id: int,
        request_id: str,
        addresses: Sequence[str],
        reason: str,
        times: ReconfigurationTimes,
        replaced: Callable[[], Awaitable[object]],
        epoch: Callable[[], int],
        nodes: NodeManagers,
        publisher: ServingPublisher,
        runtime: Runtime,
        clock: Clock,
        before: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """``before`` is done when the phase is durable and nobody was stopped yet."""
        self._instance_id = instance_id
        self._request_id = request_id
        self._addresses = addresses
        self._reason = reason
        self._times = times
        self._replaced = replaced
        self._epoch = epoch
        self._nodes = nodes
        self._publisher = publisher
        self._runtime = runtime
        self._clock = clock
        self._before = before

    def died(self, rank: int, source: EvidenceSource) -> None:
        """Everything is stopped anyway."""

    def stop(self, reason: str) -> None:
        """A reconfiguration is never cut short."""

    async def execute(self) -> StrategyResult:
        """Withdraw and write RECONFIGURING, stop everybody, wait for a READY replacement.

        Withdrawn first, because what has to be rebuilt must not be routed to while the store is away. When that never
        answers, the instance stays withdrawn, nobody is stopped, and what shows it are ``degraded`` and the metric of
        the store. A Controller that dies then has changed nothing: the next one decides anew. Once the phase is stored
        the next one stops the pods again, in a generation of its own; who is in another instance by then is not.
        """
        self._runtime.show(withdrawn=True, pending=frozenset())
        await self._write_phase()
        if self._before is not None:
            await self._before()
        tasks = Tasks(f"reconfiguration-{self._instance_id}")
        try:
            withdrawal = tasks.spawn(
                "withdraw", self._publisher.withdraw(self._instance_id, self._times.request_timeout)
            )
            stops = [tasks.spawn(f"stop {address}", self._stop(address)) for address in self._addresses]
            await withdrawal
            if refused := [why for why in await asyncio.gather(*stops) if why]:
                return _failed(f"not stopped: {'; '.join(refused)}")
            replaced = tasks.spawn("replaced", finish(self._replaced()))
            await wait_awake((replaced,), self._times.assemble_timeout)
        finally:
            await tasks.close()
        if replaced.cancelled():
            return _failed(f"no replacement was ready within {self._times.assemble_timeout:g} s after the pods stopped")
        return StrategyResult(Outcome.SUCCEEDED)

    async def _write_phase(self) -> None:
        """Nothing is stopped before the phase is durable; the instance is withdrawn meanwhile, so waiting is safe.

        Every rebuild has a generation of its own: a pod must not take its Stop for a repeat of an earlier one.
        """
        while True:
            try:
                await self._runtime.persist(Phase.RECONFIGURING, begins=True)
            except FtError as error:
                if error.reason is Reason.NOT_LEADER:
                    raise
                log.error("phase not stored, trying again", instance_id=self._instance_id, error=str(error))
                await asyncio.sleep(self._times.retry_interval)
            else:
                return

    async def _stop(self, address: str) -> str:
        """Until the pod has answered, or was silent so long that neither lease nor stream of it can be alive.

        Returns what a pod says that refuses all the time, else nothing.
        """
        give_up_at = self._clock.now() + self._times.give_up
        while (error := await self._stopped(address)) is not None:
            if self._clock.now() >= give_up_at:
                log.error("pod not stopped", address=address, error=str(error))
                return "" if error.reason in SILENT else f"{address} says {error}"
            await asyncio.sleep(self._times.retry_interval)
        await self._nodes.forget(address)
        return ""

    async def _stopped(self, address: str) -> FtError | None:
        """Stop once; None when the pod has stopped, or is in another instance by now."""
        command = Command(self._instance_id, self._request_id, self._epoch(), self._runtime.record.generation)
        try:
            await self._nodes.stop(address, command, self._reason)
        except FtError as error:
            return None if error.reason is Reason.UNKNOWN_INSTANCE else error
        return None


def _failed(text: str) -> StrategyResult:
    return StrategyResult(Outcome.FAILED, Failure(FailureCode.RECONFIGURATION_FAILED, text))
