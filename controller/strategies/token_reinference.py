"""Wait for hardware that clears by itself: nothing is done to any rank, and nothing else starts (recovery.md 4)."""

import asyncio

from controller.core.outcome import Outcome
from controller.core.ports import StrategyResult
from motor_ft.model.engine import EvidenceSource


class TokenReinference:
    """Over after ``timeout`` seconds, or earlier when it is stopped: the faults have cleared."""

    name = "token_reinference"

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._stopped = asyncio.Event()

    def died(self, rank: int, source: EvidenceSource) -> None:
        """Judged afterwards."""

    def stop(self, reason: str) -> None:
        """At once."""
        self._stopped.set()

    async def execute(self) -> StrategyResult:
        """CANCELLED when it was stopped in time; SUCCEEDED means that all was done that can be done by waiting."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._stopped.wait()
        except TimeoutError:
            return StrategyResult(Outcome.SUCCEEDED)
        return StrategyResult(Outcome.CANCELLED)
