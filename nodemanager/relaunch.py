"""All engines of the pod anew, in place (recovery.md section 8)."""

import asyncio

from motor_ft.wire.log import get_logger
from motor_ft.wire.tasks import Tasks
from nodemanager.pod import Pod
from nodemanager.suicide import SuicideWatch
from nodemanager.supervisor import Supervisor
from nodemanager.watcher import Watcher

_log = get_logger(__name__)


class Relaunch:
    """Has the engines read, and on order ends and launches them; an end that fails is a crash of ``tasks``."""

    def __init__(self, supervisor: Supervisor, watcher: Watcher, suicide: SuicideWatch, pod: Pod, tasks: Tasks) -> None:
        self._supervisor = supervisor
        self._watcher = watcher
        self._suicide = suicide
        self._pod = pod
        self._tasks = tasks
        self._turn = asyncio.Lock()
        self._watching: asyncio.Task[None]

    def watch(self) -> None:
        """Have the engines read from now on; once, before anything is ordered."""
        self._watching = self._tasks.spawn("watcher", self._watcher.run())

    def check(self) -> None:
        """Raise FtError RELAUNCH_UNSUPPORTED when an engine could not be started anew."""
        self._supervisor.check_restart()

    def begin(self, timeout_sec: float) -> None:
        """Start all engines anew; until they are ready, or for so long, the pod does not end itself."""
        self._watching.cancel()  # what engines say while they end is of no interest
        self._suicide.relaunching(timeout_sec)
        self._pod.relaunching()
        self._tasks.spawn("relaunch", self._run())

    async def _run(self) -> None:
        async with self._turn:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            await self._supervisor.restart()
            _log.info("engines launched anew")
            self._pod.changed()
            self.watch()
