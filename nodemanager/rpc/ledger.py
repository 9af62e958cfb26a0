"""Fence, first answers and lease of this pod's commands (motor_ft.wire.commands.CommandLedger)."""

import asyncio
import hashlib
from dataclasses import dataclass, field

from motor_ft.model.command import Command
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.policy import Lease
from nodemanager.core.guard import check_apply
from nodemanager.core.ports import Clock
from nodemanager.core.state import Answer, admit, answered, replay
from nodemanager.journal import Journal
from nodemanager.service import FtService


@dataclass(frozen=True, slots=True)
class _Running:
    payload: str
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Ledger:
    """Answers are in the journal, so that a repeat gets the first one across a restart too."""

    def __init__(self, journal: Journal, service: FtService, clock: Clock) -> None:
        self._journal = journal
        self._service = service
        self._clock = clock
        self._running: dict[tuple[str, str], _Running] = {}

    def fence(self, command: Command) -> None:
        """Raise STALE_EPOCH or STALE_GENERATION, or UNKNOWN_INSTANCE for an instance that is not ours."""
        admit(self._journal.state, command)

    async def replay(self, method: str, command: Command, payload: bytes) -> bytes | None:
        """The first answer, awaited while the first call runs; None when this call shall run."""
        name, digest = _name(method, command), _digest(payload)
        while (running := self._running.get(name)) is not None:
            if running.payload != digest:
                raise FtError(Reason.REQUEST_ID_REUSED, f"{command.request_id} runs with another request; use a new id")
            await running.ended.wait()
        if (answer := replay(self._journal.state, *name, digest)) is None:
            self._running[name] = _Running(digest)
        return answer

    async def answered(self, method: str, command: Command, payload: bytes, response: bytes) -> None:
        """Record the first answer."""
        answer = Answer(*_name(method, command), _digest(payload), response)
        await self._journal.update(lambda state: answered(state, command, answer))
        self.failed(method, command, payload)

    def failed(self, method: str, command: Command, payload: bytes) -> None:
        """The call has ended; whoever waits looks again."""
        if (running := self._running.pop(_name(method, command), None)) is not None:
            running.ended.set()

    def lease(self, policy: Lease, command: Command, plan_hash: str) -> None:
        """Raise GUARD_REQUIRED, GUARD_EXPIRED, STALE_REQUEST_ID, GUARD_HELD or PLAN_MISMATCH.

        FEATURE_DISABLED comes first: with the feature off nobody can hold a guard. Finalize judges its owner in the
        step that ends the transaction, as it remembers a refused abort.
        """
        self._service.check_enabled()
        if policy is Lease.LIVE:
            check_apply(self._journal.state.guard, command, plan_hash, self._clock.boot())


def _name(method: str, command: Command) -> tuple[str, str]:
    return method, f"{command.instance_id}/{command.request_id}"


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()
