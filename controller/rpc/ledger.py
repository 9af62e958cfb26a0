"""De-duplication of what operators order, in memory (motor_ft.wire.commands.CommandLedger)."""

from motor_ft.model.command import Command
from motor_ft.wire.answers import FirstAnswers
from motor_ft.wire.policy import Lease


class OrderLedger:
    """An id stands for one order, whichever method it came by. A new Controller knows none: name the generation."""

    def __init__(self) -> None:
        self._answers = FirstAnswers()

    def fence(self, command: Command) -> None:
        """Operators have no epoch."""

    async def replay(self, method: str, command: Command, payload: bytes) -> bytes | None:
        """The first answer, awaited while the first call runs; None when this call shall run."""
        return await self._answers.replay(command.request_id, method.encode() + b" " + payload)

    async def answered(self, method: str, command: Command, payload: bytes, response: bytes) -> None:
        """Keep the first answer."""
        self._answers.answered(command.request_id, response)

    def failed(self, method: str, command: Command, payload: bytes) -> None:
        """What was refused may be ordered again with the same id."""
        self._answers.failed(command.request_id)

    def lease(self, policy: Lease, command: Command, plan_hash: str) -> None:
        """Operators hold none."""
