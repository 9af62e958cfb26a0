"""Runtime of one instance: the stored record, what is only in memory, and the one way to change either (RFC 3.2)."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from controller.core.errors import Failure, FailureCode
from controller.core.gate import GateResult
from controller.core.phases import Phase, move
from controller.core.ports import Store, Stored
from controller.core.records import RuntimeRecord
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.log import get_logger

RETRY_SEC = 0.2
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Volatile:
    """What a restart of the Controller may forget."""

    request_id: str = ""
    pending: frozenset[int] = frozenset()
    gate: GateResult | None = None
    withdrawn: bool = False
    held: bool = False
    serving_published: bool = False
    last_error: str = ""


class FtRuntime:
    """``controller.core.ports.Runtime`` on a store; ``on_change`` is called after every change.

    A store that does not answer is asked again for ``patience_sec`` before a write counts as failed.
    """

    def __init__(
        self,
        instance_id: int,
        stored: Stored[RuntimeRecord],
        store: Store,
        on_change: Callable[[], None],
        *,
        patience_sec: float,
    ) -> None:
        self._instance_id = instance_id
        self._stored = stored
        self._store = store
        self._on_change = on_change
        self._patience_sec = patience_sec
        self.volatile = Volatile()

    @property
    def record(self) -> RuntimeRecord:
        """What is stored."""
        return self._stored.record

    async def persist(self, phase: Phase, dead_committed: Sequence[int] | None = None, *, begins: bool = False) -> None:
        """Write a legal move, compare-and-set; an unknown outcome is read back before it counts as failed."""
        failure: FtError | None = None
        try:
            async with asyncio.timeout(self._patience_sec):
                while True:
                    try:
                        return await self._write(self._moved(phase, dead_committed, begins))
                    except FtError as error:
                        if error.reason is not Reason.STORE_UNAVAILABLE:
                            raise
                        failure = error
                    _log.warning("not stored yet", instance_id=self._instance_id, phase=str(phase), error=str(failure))
                    await asyncio.sleep(RETRY_SEC)
        except TimeoutError:
            why = failure.message if failure else "the store does not answer"
            text = f"{phase} of instance {self._instance_id} is not stored after {self._patience_sec:g} s: {why}"
            raise FtError(Reason.STORE_UNAVAILABLE, text) from failure

    def _moved(self, phase: Phase, dead_committed: Sequence[int] | None, begins: bool) -> RuntimeRecord:
        current = self._stored.record
        return replace(
            current,
            phase=move(current.phase, phase),
            dead_committed=current.dead_committed if dead_committed is None else tuple(dead_committed),
            generation=current.generation + begins,
        )

    async def _write(self, wanted: RuntimeRecord) -> None:
        """One attempt; an earlier one of which nothing was heard may be stored by now: then it counts, or conflicts."""
        if wanted == self._stored.record:
            return
        try:
            revision = await self._store.save_runtime(self._instance_id, wanted, self._stored.revision)
        except FtError as error:
            if error.reason is Reason.NOT_LEADER:
                raise
            found = await self._store.runtime(self._instance_id)
            if found is not None:
                self._stored = found  # only this Controller writes it: what is stored is the truth to go on from
            if found is None or found.record != wanted:
                raise
        else:
            self._stored = Stored(wanted, revision)
        self._on_change()

    def show(
        self,
        *,
        request_id: str | None = None,
        pending: frozenset[int] | None = None,
        gate: GateResult | None = None,
        withdrawn: bool | None = None,
        failure: Failure | None = None,
    ) -> None:
        """Change what is only in memory."""
        now = self.volatile
        changed = replace(
            now,
            request_id=now.request_id if request_id is None else request_id,
            pending=now.pending if pending is None else pending,
            gate=now.gate if gate is None else gate,
            withdrawn=now.withdrawn if withdrawn is None else withdrawn,
            last_error=now.last_error if failure is None else str(failure),
        )
        self._set(changed)

    def published(self, *, held: bool, paused: bool) -> None:
        """The Coordinators hold the present projection, or do not; a paused one serves nobody new."""
        self._set(replace(self.volatile, held=held, serving_published=held and not paused))

    def _set(self, changed: Volatile) -> None:
        if changed.held and changed.last_error.startswith(FailureCode.PUBLISH_PENDING):
            changed = replace(changed, last_error="")  # what was pending has come about, perhaps before it was shown
        if changed != self.volatile:
            self.volatile = changed
            self._on_change()
