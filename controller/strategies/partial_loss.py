"""Some pods of an instance are gone: the others cannot serve without them and are stopped (recovery.md section 4)."""

import asyncio
from collections.abc import Sequence

from controller.core.outcome import Outcome
from controller.core.ports import NodeManagers, StrategyResult
from motor_ft.model.command import Command
from motor_ft.model.engine import EvidenceSource
from motor_ft.model.errors import FtError
from motor_ft.wire.log import get_logger

log = get_logger(__name__)


class PartialLoss:
    """One Stop to each of ``addresses``, best effort: who does not obey is left to the instance's end."""

    name = "partial_loss"

    def __init__(self, command: Command, addresses: Sequence[str], reason: str, nodes: NodeManagers) -> None:
        self._command = command
        self._addresses = addresses
        self._reason = reason
        self._nodes = nodes

    def died(self, rank: int, source: EvidenceSource) -> None:
        """Everything is stopped anyway."""

    def stop(self, reason: str) -> None:
        """Over before it could be stopped."""

    async def execute(self) -> StrategyResult:
        """CANCELLED when nobody is known to have stopped: the others may come back, and nothing has happened."""
        stopped = await asyncio.gather(*map(self._stopped, self._addresses))
        return StrategyResult(Outcome.SUCCEEDED if any(stopped) else Outcome.CANCELLED)

    async def _stopped(self, address: str) -> bool:
        try:
            await self._nodes.stop(address, self._command, self._reason)
        except FtError as error:
            log.warning("pod not stopped", address=address, error=str(error))
            return False
        return True
