"""Looks at every daemon from time to time, from outside and through its own metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import psutil
from aiohttp import ClientError, ClientSession

from scripts.endurance.leaks import Sample

INTERVAL_SEC = 1.0
_TASKS = "motor_ft_asyncio_tasks "


@dataclass(frozen=True, slots=True)
class Daemon:
    """A process of the product, and where it serves metrics."""

    name: str
    pid: int
    metrics_port: int


class Sampler:
    """``run`` until it is cancelled; ``samples`` fills up."""

    def __init__(self, daemons: Callable[[], Iterable[Daemon]], http: ClientSession) -> None:
        self.samples: list[Sample] = []
        self._daemons = daemons
        self._http = http

    async def run(self) -> None:
        """One round a second."""
        while True:
            for daemon in self._daemons():
                await self._look(daemon)
            await asyncio.sleep(INTERVAL_SEC)

    async def _look(self, daemon: Daemon) -> None:
        try:
            tasks = await self._tasks(daemon.metrics_port)
            with (process := psutil.Process(daemon.pid)).oneshot():
                rss, fds, threads = process.memory_info().rss, process.num_fds(), process.num_threads()
        except (ClientError, OSError, TimeoutError, psutil.Error):
            return  # it was killed, or is starting
        self.samples.append(Sample(time.monotonic(), daemon.name, daemon.pid, rss, fds, threads, tasks))

    async def _tasks(self, port: int) -> int:
        async with self._http.get(f"http://127.0.0.1:{port}/metrics") as response:
            lines = (await response.text()).splitlines()
        return int(float(next(line for line in lines if line.startswith(_TASKS)).removeprefix(_TASKS)))
