"""Reading engines again and again: one reader for each, however many watch it."""

import asyncio

from gateway.engines.engine import Engine
from motor_ft.model.engine import EngineObservation, Problem
from motor_ft.wire.tasks import Tasks


class Watch:
    """What one watcher has not seen yet: at most one reading for each rank, the newest.

    ``interval`` and ``timeout`` in seconds.
    """

    def __init__(self, interval: float, timeout: float) -> None:
        self.interval = interval
        self.timeout = timeout
        self._seen: dict[int, EngineObservation] = {}
        self._waiting: dict[int, EngineObservation] = {}
        self._filled = asyncio.Event()

    def offer(self, reading: EngineObservation) -> None:
        """Keep the first reading of a rank, every change after it, and every failure; drop what came late."""
        last = self._seen.get(reading.rank)
        if last is not None and reading.observation <= last.observation:
            return
        self._seen[reading.rank] = reading
        if last is None or reading.problem is not Problem.NONE or reading.content() != last.content():
            self._waiting[reading.rank] = reading
            self._filled.set()

    async def next(self) -> EngineObservation:
        """Wait for the reading that has waited longest."""
        await self._filled.wait()
        reading = self._waiting.pop(next(iter(self._waiting)))
        if not self._waiting:
            self._filled.clear()
        return reading


class Poller:
    """Reads one engine while anybody watches it; never two of its readings at a time."""

    def __init__(self, engine: Engine, tasks: Tasks) -> None:
        self._engine = engine
        self._tasks = tasks
        self._watches: set[Watch] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def join(self, watch: Watch) -> None:
        """Begin, or read at once for the newcomer."""
        self._watches.add(watch)
        self._wake.set()
        if self._task is None:
            self._task = self._tasks.spawn(f"poll-{self._engine.rank}", self._poll())

    def leave(self, watch: Watch) -> None:
        """Stop with the last watcher."""
        self._watches.discard(watch)
        if self._task is not None and not self._watches:
            self._task.cancel()
            self._task = None

    def publish(self, reading: EngineObservation) -> None:
        """Offer a reading, whoever made it, to all watchers."""
        for watch in self._watches:
            watch.offer(reading)

    async def _poll(self) -> None:
        while True:
            self._wake.clear()
            self.publish(await self._engine.read(min(watch.timeout for watch in self._watches)))
            try:
                async with asyncio.timeout(min(watch.interval for watch in self._watches)):
                    await self._wake.wait()
            except TimeoutError:
                pass
