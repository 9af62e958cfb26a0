"""An event loop in virtual time, in which nothing depends on addresses, hashes of strings, threads or the real clock.

Every callback belongs to a simulated process, by its context: a process can be frozen, and killed between any two of
its steps.
"""

import asyncio
import gc
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar, cast

T = TypeVar("T")

CPU_SEC = 1e-5
"""How long one step takes: so that no two steps of the world are at the same time, and no loop runs for ever."""


class DeadlockError(Exception):
    """Nothing is left that could ever happen, and somebody still waits."""


class Handle:
    """As much of ``asyncio.Handle`` as is used, and cheaper: a world has thousands of them in every second."""

    __slots__ = ("args", "callback", "context", "gone")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> None:
        self.callback = callback
        self.args = args
        self.context = copy_context() if context is None else context
        self.gone = False

    def cancel(self) -> None:
        """It is not called."""
        self.gone = True


class SimTask(asyncio.Task[T]):
    """Ordered sets of tasks: the hash is a running number, not an address."""

    number: int

    def __hash__(self) -> int:
        return self.number


class SimFuture(asyncio.Future[T]):
    """As SimTask; few are ever asked for their hash, and those get their number then."""

    number = 0

    def __hash__(self) -> int:
        if not self.number:
            self.number = cast(SimLoop, self.get_loop()).number()
        return self.number


class Process:
    """One simulated process: what runs in its context ends with it, as by SIGKILL.

    ``on_kill`` is called first: it cuts the process off from everything, so that what its tasks do on the way out
    reaches nobody.
    """

    def __init__(self, name: str, host: str, on_kill: Callable[["Process"], None] = lambda _: None) -> None:
        self.name = name
        self.host = host
        self.alive = True
        self.frozen = False
        self.stops = 0
        self.steps = 0
        self.deferred: list[Handle] = []
        self.context = copy_context()
        self.context.run(PROCESS.set, self)
        self.tasks: dict[SimTask[Any], None] = {}
        self.end_at: int | None = None
        self.end: Callable[[], None] = self.kill
        self._on_kill = on_kill

    def __repr__(self) -> str:
        return self.name

    def adopt(self, task: SimTask[Any]) -> None:
        """One more task; those that have ended are forgotten now and then."""
        self.tasks[task] = None
        if len(self.tasks) % 256 == 0:
            self.tasks = {task: None for task in self.tasks if not task.done()}

    def die_after(self, steps: int, kill: Callable[[], None]) -> None:
        """Have ``kill`` called after so many more steps, wherever that is."""
        self.end_at = self.steps + steps
        self.end = kill

    def kill(self) -> None:
        """SIGKILL."""
        if not self.alive:
            return
        self.alive = False
        self._on_kill(self)
        cast(SimLoop, asyncio.get_running_loop()).thaw(self)  # tasks whose next step waits could not end
        for task in self.tasks:
            task.cancel()

    def ended(self) -> bool:
        """Nothing of it runs any more."""
        return all(task.done() for task in self.tasks)


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class SimLoop(asyncio.AbstractEventLoop):
    """``time`` begins at 0. A coroutine that waits for what can never come raises DeadlockError."""

    def __init__(self) -> None:
        self.steps = 0
        self.errors: list[dict[str, Any]] = []
        self._now = 0.0
        self.number = count(1).__next__
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._closed = False

    # --- time and callbacks ---

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]  # the base class types the callback's arguments
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context)
        heappush(self._timers, (when, self.number(), handle))
        return handle

    # --- tasks and futures ---

    def create_future(self) -> SimFuture[Any]:
        return SimFuture(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> SimTask[T]:
        context = copy_context() if context is None else context
        # The hash is asked for before the constructor returns.
        task: SimTask[T] = SimTask.__new__(SimTask)
        task.number = self.number()
        task.__init__(coro, loop=self, name=name, context=context)  # type: ignore[misc]
        process = context.get(PROCESS)
        if process is not None:
            process.adopt(task)
            if not process.alive:
                task.cancel()
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """No threads: done at once, known a step later."""
        future = self.create_future()
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001  # the boundary of a thread: its error is the future's
            self.call_soon(settle, future, error)
        else:
            self.call_soon(settle, future, result)
        return future

    # --- running ---

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run to the end of ``main``."""
        task = self.create_task(main, name="main")
        with _running(self):
            while not task.done():
                self._turn()
        return task.result()

    def _turn(self) -> None:
        timers, ready = self._timers, self._ready
        while timers and timers[0][2].gone:
            heappop(timers)
        if not ready:
            if not timers:
                raise DeadlockError("nothing is left that could ever happen")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.gone:
                continue
            process = handle.context.get(PROCESS)
            if process is not None:
                if process.frozen:
                    process.deferred.append(handle)
                    continue
                process.steps += 1
            self.steps += 1
            self._now += CPU_SEC
            try:
                handle.context.run(handle.callback, *handle.args)
            except Exception as error:  # noqa: BLE001  # the boundary of a callback, as in every loop
                self.errors.append({"message": f"{handle.callback} has failed", "exception": error})
            if process is not None and process.steps == process.end_at and process.alive:
                process.end()

    def freeze(self, process: Process) -> None:
        """As SIGSTOP: what comes waits."""
        process.stops += 1
        process.frozen = True

    def thaw(self, process: Process) -> None:
        """As SIGCONT."""
        process.frozen = False
        self._ready.extend(process.deferred)
        process.deferred = []

    # --- what asyncio asks a loop ---

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)


def settle(future: asyncio.Future[Any], result: Any) -> None:
    """Give a result or an error to a future whose owner may have gone."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


@contextmanager
def _running(loop: SimLoop) -> Iterator[None]:
    """Make it the running loop. Cycles are collected after it: when, would depend on what else the process did."""
    hooks = sys.get_asyncgen_hooks()
    collects = gc.isenabled()
    gc.disable()
    sys.set_asyncgen_hooks(finalizer=lambda generator: _finalize(loop, generator))
    events._set_running_loop(loop)  # noqa: SLF001  # the documented way for the author of a loop
    try:
        yield
    finally:
        events._set_running_loop(None)  # noqa: SLF001
        sys.set_asyncgen_hooks(*hooks)
        if collects:
            gc.enable()


def _finalize(loop: SimLoop, generator: Any) -> None:
    loop.call_soon(loop.create_task, generator.aclose())
