"""Whether the store can be written: known before a fault needs it, for a full disk can be read."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from controller.core.ports import Store
from motor_ft.model.errors import FtError
from motor_ft.wire.log import get_logger

PROBE_SEC = 5.0
SLOW_SEC = 1.0
"""A transaction makes four writes, one after the other, while engines wait."""

_log = get_logger(__name__)


class Observer(Protocol):
    """Metrics of the store."""

    def store(self, available: bool) -> None:
        """Whether it can be written."""
        ...

    def store_probe(self, seconds: float) -> None:
        """How long one write took, or failed."""
        ...


class StoreHealth:
    """What the last write says of a store; ``changed`` is called when that is something else than before.

    ``problem`` says why nothing can be written, ``slow`` how slow it is; both are empty when all is well. ``now`` is
    monotonic.
    """

    def __init__(self, observer: Observer, now: Callable[[], float], changed: Callable[[], None]) -> None:
        self._observer = observer
        self._now = now
        self._changed = changed
        self._doubt = asyncio.Event()
        self.problem = ""
        self.slow = ""
        observer.store(True)

    @property
    def degraded(self) -> tuple[str, ...]:
        """What a person should know."""
        problem = (f"the store cannot be written: {self.problem}",) if self.problem else ()
        return problem or ((self.slow,) if self.slow else ())

    def told(self, problem: str) -> None:
        """What the adapter says of each failure, and an empty text for each write."""
        if bool(self.problem) is bool(problem):
            return  # the first one is kept, so that what waits for the store does not change its reason all the time
        self.problem = problem
        self._observer.store(not problem)
        if problem:
            self._doubt.set()
            _log.error("the store cannot be written; no recovery starts until it can", problem=problem)
        else:
            _log.warning("the store can be written again")
        self._changed()

    async def watch(self, store: Store) -> None:
        """Write something every few seconds, and at once after a first failure, for ever, while this Controller leads.

        One member of many that is gone, or one renewal that was late, is told too, and must not hold recoveries back.
        """
        while True:
            self._doubt.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(PROBE_SEC):
                    await self._doubt.wait()
            if not store.leads():
                continue
            sent = self._now()
            with suppress(FtError):  # the adapter has told
                await store.probe()
            self._took(self._now() - sent)

    def _took(self, seconds: float) -> None:
        self._observer.store_probe(seconds)
        before, self.slow = self.slow, f"the store is slow: a write took {seconds:.1f} s" if seconds > SLOW_SEC else ""
        if bool(before) is not bool(self.slow):
            _log.warning("the store is slow" if self.slow else "the store is quick again", seconds=round(seconds, 3))
            self._changed()
