"""How a rank answers inference requests, healthy or not (engine-contract.md section 1.5)."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from tests.support.engine.config import Dialect
from tests.support.engine.states import Status

if TYPE_CHECKING:
    from tests.support.engine.rank import Rank


class Outcome(Enum):
    DONE = auto()
    ABORTED = auto()
    """HTTP 200 with finish_reason `abort`."""
    FAULTED = auto()
    """503, dialect (b)."""
    ENGINE_DEAD = auto()
    """500; sending it ends the API server."""


class _Request:
    def __init__(self) -> None:
        self.aborted = False


class Completions:
    """The requests of one rank that have no answer yet."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._requests: set[_Request] = set()

    @property
    def pending(self) -> bool:
        return bool(self._requests)

    def abort(self) -> None:
        """A step failed: what is in flight is aborted, what comes later queues."""
        for request in self._requests:
            request.aborted = True

    async def run(self) -> Outcome:
        """One completion. While the rank or a peer cannot step it hangs, until abort, recovery or death."""
        rank = self._rank
        if rank.group.config.dialect is Dialect.V1 and rank.status is not Status.HEALTHY and not rank.core_gone:
            return Outcome.FAULTED
        request = _Request()
        self._requests.add(request)
        rank.group.reconsider()  # traffic wakes the collectives of an idle group
        try:
            outcome = await self._step(request)
        finally:
            self._requests.discard(request)
        if outcome is Outcome.ENGINE_DEAD:
            rank.end_server()
        return outcome

    async def _step(self, request: _Request) -> Outcome:
        rank, changes = self._rank, self._rank.group.changes

        def ended() -> bool:
            return request.aborted or rank.core_gone

        while True:
            await changes.until(lambda: ended() or (rank.steps and not rank.lost_peers()))
            if not ended():
                await changes.until(ended, timeout=rank.group.timings.completion)
            if rank.core_gone:
                return Outcome.ENGINE_DEAD
            if request.aborted:
                return Outcome.ABORTED
            if rank.steps and not rank.lost_peers():
                return Outcome.DONE
