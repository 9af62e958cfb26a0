"""First answers of commands, in memory, for servers that need not know them after a restart (protocol.md section 3)."""

import asyncio
import hashlib
from collections.abc import Hashable
from dataclasses import dataclass, field

from motor_ft.model.errors import FtError, Reason

REMEMBERED = 1_000


@dataclass(frozen=True, slots=True)
class _Call:
    digest: bytes
    answer: asyncio.Future[bytes | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class FirstAnswers:
    """By key, the last ``limit``; the oldest that have been given are forgotten."""

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._calls: dict[Hashable, _Call] = {}

    async def replay(self, key: Hashable, payload: bytes) -> bytes | None:
        """The first call's answer, awaited while that runs; None when this call shall run.

        Raises REQUEST_ID_REUSED when the key was used with another payload, OVERLOADED when too many calls run.
        """
        digest = hashlib.sha256(payload).digest()
        while (call := self._calls.get(key)) is not None:
            if call.digest != digest:
                raise FtError(Reason.REQUEST_ID_REUSED, "this request id was used for another request; take a new one")
            if (answer := await asyncio.shield(call.answer)) is not None:
                return answer
        if len(self._calls) >= self._limit:
            self._forget_one()
        self._calls[key] = _Call(digest)
        return None

    def answered(self, key: Hashable, response: bytes) -> None:
        """Keep the first answer, for those that wait and those that come."""
        self._calls[key].answer.set_result(response)

    def failed(self, key: Hashable) -> None:
        """Forget a call that raised: the next one with this key runs."""
        if (call := self._calls.pop(key, None)) is not None:
            call.answer.set_result(None)

    def _forget_one(self) -> None:
        oldest = next((key for key, call in self._calls.items() if call.answer.done()), None)
        if oldest is None:
            raise FtError(Reason.OVERLOADED, f"{self._limit} calls are still running; call again later")
        del self._calls[oldest]
