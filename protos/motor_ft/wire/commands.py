"""What a server that receives commands keeps about them; the interceptors ask in the order of this file."""

from typing import Protocol

from motor_ft.model.command import Command
from motor_ft.wire.policy import Lease


class CommandLedger(Protocol):
    """Fence, answers and lease of one NodeManager or gateway (protocol.md section 3)."""

    def fence(self, command: Command) -> None:
        """Refuse a command of the past, before any answer is looked up.

        Raises FtError STALE_EPOCH or STALE_GENERATION with ``got`` and ``current``.
        """

    async def replay(self, method: str, command: Command, payload: bytes) -> bytes | None:
        """Return the first answer, or None when this call shall run; MUST await a first call that still runs.

        Raises FtError REQUEST_ID_REUSED when the first call of this id had another payload.
        """

    async def answered(self, method: str, command: Command, payload: bytes, response: bytes) -> None:
        """Record the answer of a call that ran; MUST be durable when it returns. Releases waiting duplicates."""

    def failed(self, method: str, command: Command, payload: bytes) -> None:
        """Forget a call that raised; one of the waiting duplicates may run."""

    def lease(self, policy: Lease, command: Command, plan_hash: str) -> None:
        """Refuse a command without its lease; ``plan_hash`` is empty where the request has none.

        Raises FtError GUARD_REQUIRED, GUARD_EXPIRED, STALE_REQUEST_ID or PLAN_MISMATCH.
        """
