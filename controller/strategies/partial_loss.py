"""Some pods of an instance are gone: the others cannot serve without them and are stopped (recovery.md section 4)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from controller.core.outcome import Outcome
from controller.core.ports import NodeManagers, StrategyResult
from motor_ft.model.command import Command
from motor_ft.model.engine import EvidenceSource
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.log import get_logger

log = get_logger(__name__)


class PartialLoss:
    """One Stop to each address that ``dissolve`` returns, best effort: who does not obey is left to the instance's end.

    That the instance dissolves is durable before: else the next Controller would serve what is left of it.
    """

    name = "partial_loss"

    def __init__(
        self,
        command: Command,
        dissolve: Callable[[], Awaitable[Sequence[str]]],
        reason: str,
        nodes: NodeManagers,
        *,
        retry_interval: float,
    ) -> None:
        self._command = command
        self._dissolve = dissolve
        self._reason = reason
        self._nodes = nodes
        self._retry_interval = retry_interval

    def died(self, rank: int, source: EvidenceSource) -> None:
        """Everything is stopped anyway."""

    def stop(self, reason: str) -> None:
        """Over before it could be stopped."""

    async def execute(self) -> StrategyResult:
        """CANCELLED when nobody is known to have stopped: the others may come back, and nothing has happened."""
        try:
            addresses = await self._dissolve()
        except FtError as error:
            if error.reason is Reason.NOT_LEADER:
                raise
            log.error("nobody is stopped before that is stored", error=str(error))
            await asyncio.sleep(self._retry_interval)
            return StrategyResult(Outcome.CANCELLED)
        stopped = await asyncio.gather(*map(self._stopped, addresses))
        return StrategyResult(Outcome.SUCCEEDED if any(stopped) else Outcome.CANCELLED)

    async def _stopped(self, address: str) -> bool:
        try:
            await self._nodes.stop(address, self._command, self._reason)
        except FtError as error:
            log.warning("pod not stopped", address=address, error=str(error))
            return False
        return True
