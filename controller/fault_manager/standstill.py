"""Notices that this Controller has not run for a while: SIGSTOP, a machine that was paused, a loop that was blocked."""

import asyncio
import math

from controller.core.ports import Clock
from controller.fault_manager.environment import Settings
from motor_ft.wire.log import get_logger

log = get_logger(__name__)


class Standstill:
    """Whom it could not hear meanwhile is not missed for that, and has all its time again when it goes on.

    One shorter than ``Settings.quiet`` costs nobody its heartbeat TTL, and need not be noticed.
    """

    def __init__(self, clock: Clock, settings: Settings) -> None:
        self._clock = clock
        self._settings = settings
        self._ran_at = math.inf
        self._ended_at = -math.inf

    async def watch(self) -> None:
        """Keep running, for ever: whoever else asks may do so seldom."""
        while True:
            self.ended_at()
            await asyncio.sleep(self._settings.quiet / 2)

    def ended_at(self) -> float:
        """When the last one ended, in monotonic seconds; whoever asks first after it notices it."""
        now, ran_at = self._clock.now(), self._ran_at
        self._ran_at = now
        if now - ran_at >= self._settings.quiet:
            log.warning("this Controller stood still: nobody is missed for that", seconds=round(now - ran_at, 3))
            self._ended_at = now
        return self._ended_at
