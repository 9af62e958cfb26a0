"""Keeps reading the engines, once they were all healthy for the first time (recovery.md section 8)."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

from motor_ft.model.engine import EngineStatus
from motor_ft.model.errors import FtError
from motor_ft.wire.backoff import Backoff
from motor_ft.wire.log import get_logger
from nodemanager.core.ports import Engines, Processes, Target
from nodemanager.journal import Journal
from nodemanager.pod import Pod
from nodemanager.service import local_problem

FAST_INTERVAL_SEC = 0.1
_log = get_logger(__name__)


class Watcher:
    """Feeds the pod with readings. Before first readiness only HEALTHY counts, so nothing is reported."""

    def __init__(self, pod: Pod, engines: Engines, processes: Processes, journal: Journal, backoff: Backoff) -> None:
        self._pod = pod
        self._engines = engines
        self._processes = processes
        self._journal = journal
        self._backoff = backoff
        self._fast = False
        self._awaited: dict[int, str] = {}

    @property
    def unready(self) -> str:
        """Which engines keep the pod from its first readiness, and why; empty from then on."""
        if self._journal.state.ready:
            return ""
        return "; ".join(f"rank {rank} {why}" for rank, why in self._awaited.items()) or "no engine was read yet"

    async def run(self) -> None:
        """Run until cancelled."""
        if not self._journal.state.ready:
            await self._become_ready()
        await self._processes.watch_descendants()
        while True:
            self._pod.retarget.clear()
            reading = asyncio.create_task(self._watch(self._pod.targets()), name="watcher/read")
            changed = asyncio.create_task(self._pod.retarget.wait(), name="watcher/changed")
            try:
                await asyncio.wait((reading, changed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                reading.cancel()
                changed.cancel()
                await asyncio.wait((reading, changed))
            if not reading.cancelled():
                reading.result()

    def set_fast(self, fast: bool) -> None:
        """Read ten times a second, or as the Controller's settings say."""
        if fast != self._fast:
            self._fast = fast
            self._pod.retarget.set()

    async def _become_ready(self) -> None:
        healthy: set[int] = set()
        while targets := [target for target in self._pod.targets() if target.rank not in healthy]:
            try:
                readings = await self._engines.status(targets, self._pod.settings.engine_timeout_sec)
            except FtError as error:
                readings = tuple(local_problem(target, error) for target in targets)
                _log.info("engines cannot be asked yet", problem=str(error))
            for reading, target in zip(readings, targets, strict=True):
                if reading.status is EngineStatus.HEALTHY:
                    self._pod.observe(reading, target)
                    healthy.add(target.rank)
                    self._awaited.pop(target.rank, None)
                else:
                    self._awaited[target.rank] = reading.detail or f"is {reading.status.name}"
            if len(healthy) < len(self._pod.targets()):
                await asyncio.sleep(self._pod.settings.poll_interval_sec)
        await self._journal.insist(lambda state: replace(state, ready=True))
        _log.info("ready")
        self._pod.changed()

    async def _watch(self, targets: tuple[Target, ...]) -> None:
        """Read until the gateway fails, then wait a little; without targets there is nothing to read.

        A reading of another engine ends it too: somebody has declared that one to the gateway, perhaps an earlier order
        of our own that came late. Reading anew declares the present ones.
        """
        if not targets:
            await asyncio.Event().wait()
        by_rank = {target.rank: target for target in targets}
        interval = FAST_INTERVAL_SEC if self._fast else self._pod.settings.poll_interval_sec
        try:
            async with aclosing(
                self._engines.watch(targets, interval, self._pod.settings.engine_timeout_sec)
            ) as readings:
                async for reading in readings:
                    if target := by_rank.get(reading.rank):
                        self._pod.observe(reading, target)
                        if reading.incarnation != target.incarnation:
                            break
                    self._backoff.reset()
        except FtError as error:
            for target in targets:
                self._pod.observe(local_problem(target, error), target)
        await asyncio.sleep(self._backoff.next())
