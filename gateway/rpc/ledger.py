"""Fence and de-duplication of the gateway's commands, in memory (motor_ft.wire.commands.CommandLedger)."""

import asyncio
import hashlib
from dataclasses import dataclass

from gateway.engines.fence import Fence
from motor_ft.model.command import Command
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1.engine_pb2 import ApplyInstructionRequest
from motor_ft.wire.policy import Lease

# Answers that are kept. One transaction needs one; the hub remembers on its own what engines were sent.
_REMEMBERED = 1_000


@dataclass(frozen=True, slots=True)
class _Call:
    digest: bytes
    answer: asyncio.Future[bytes | None]


class GatewayLedger:
    """Only ApplyInstruction is a command of the gateway, so payloads are requests of that method."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._calls: dict[tuple[str, str], _Call] = {}

    def fence(self, command: Command) -> None:
        """Raise STALE_EPOCH or STALE_GENERATION below the highest command ever seen for the instance."""
        self._fence.admit(command)

    async def replay(self, method: str, command: Command, payload: bytes) -> bytes | None:
        """The first call's answer, awaited while that runs; None when this call shall run.

        Raises REQUEST_ID_REUSED when the id was used with another payload.
        """
        key, digest = (method, command.request_id), _digest(payload)
        while (call := self._calls.get(key)) is not None:
            if call.digest != digest:
                raise FtError(
                    Reason.REQUEST_ID_REUSED, f"request id {command.request_id!r} was used for another {method}"
                )
            if (answer := await asyncio.shield(call.answer)) is not None:
                return answer
        while len(self._calls) >= _REMEMBERED:
            del self._calls[next(iter(self._calls))]
        self._calls[key] = _Call(digest, asyncio.get_running_loop().create_future())
        return None

    async def answered(self, method: str, command: Command, payload: bytes, response: bytes) -> None:
        """Keep the first answer, for those that wait and those that come."""
        if (call := self._calls.get((method, command.request_id))) is not None:
            call.answer.set_result(response)

    def failed(self, method: str, command: Command, payload: bytes) -> None:
        """Forget a call that raised: the next one with this id runs."""
        if (call := self._calls.pop((method, command.request_id), None)) is not None:
            call.answer.set_result(None)

    def lease(self, policy: Lease, command: Command, plan_hash: str) -> None:
        """Leases are the NodeManager's; what is left of one is in the request and checked before the POST."""


def _digest(payload: bytes) -> bytes:
    """What a repeated request has in common with the first: all but the durations, which shrink meanwhile."""
    request = ApplyInstructionRequest.FromString(payload)
    request.ClearField("lease_remaining")
    request.ClearField("timeout")
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()
