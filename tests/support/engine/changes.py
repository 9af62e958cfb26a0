"""Waiting for a condition over the group's shared state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """Whoever changes the state calls `notify`; whoever waits names a predicate over it."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}
        """Woken in the order in which they began to wait."""

    def notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until the predicate holds; False if it still does not after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while not predicate():
            waiter = loop.create_future()
            self._waiters[waiter] = None
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                return predicate()
            finally:
                del self._waiters[waiter]
        return True
