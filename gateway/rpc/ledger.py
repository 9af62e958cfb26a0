"""Fence and de-duplication of the gateway's commands, in memory (motor_ft.wire.commands.CommandLedger)."""

from gateway.engines.fence import Fence
from motor_ft.model.command import Command
from motor_ft.v1.engine_pb2 import ApplyInstructionRequest
from motor_ft.wire.answers import FirstAnswers
from motor_ft.wire.policy import Lease


class GatewayLedger:
    """Only ApplyInstruction is a command of the gateway, so payloads are requests of that method.

    One transaction needs one answer; the hub remembers on its own what engines were sent.
    """

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._answers = FirstAnswers()

    def fence(self, command: Command) -> None:
        """Raise STALE_EPOCH or STALE_GENERATION below the highest command ever seen for the instance."""
        self._fence.admit(command)

    async def replay(self, method: str, command: Command, payload: bytes) -> bytes | None:
        """The first call's answer, awaited while that runs; None when this call shall run.

        Raises REQUEST_ID_REUSED when the id was used with another payload, OVERLOADED when too many calls run.
        """
        return await self._answers.replay(command.request_id, _repeated(payload))

    async def answered(self, method: str, command: Command, payload: bytes, response: bytes) -> None:
        """Keep the first answer, for those that wait and those that come."""
        self._answers.answered(command.request_id, response)

    def failed(self, method: str, command: Command, payload: bytes) -> None:
        """Forget a call that raised: the next one with this id runs."""
        self._answers.failed(command.request_id)

    def lease(self, policy: Lease, command: Command, plan_hash: str) -> None:
        """Leases are the NodeManager's; what is left of one is in the request and checked before the POST."""


def _repeated(payload: bytes) -> bytes:
    """What a repeated request has in common with the first: all but the durations, which shrink meanwhile."""
    request = ApplyInstructionRequest.FromString(payload)
    request.ClearField("lease_remaining")
    request.ClearField("timeout")
    return request.SerializeToString(deterministic=True)
