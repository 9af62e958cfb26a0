"""Background tasks: every one is named, its crash is loud, and its end is awaited (architecture.md section 5)."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from motor_ft.wire.log import get_logger

T = TypeVar("T")
_log = get_logger(__name__)


class Tasks:
    """The background tasks of one component.

    ``on_crash`` is called with the task's name and its exception, after the exception was logged.
    """

    def __init__(self, name: str, on_crash: Callable[[str, BaseException], None] | None = None) -> None:
        self._name = name
        self._on_crash = on_crash
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, name: str, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``coro`` in a task of its own until it ends or ``close`` is called."""
        task = asyncio.create_task(coro, name=f"{self._name}/{name}")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancel what runs, also what is spawned meanwhile, and wait until it has ended.

        A task of this component may call it: it goes on to its own end.
        """
        while others := self._running - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        _log.error("task crashed", task=task.get_name(), exc_info=error)
        if self._on_crash is not None:
            self._on_crash(task.get_name(), error)
