"""Time of this machine."""

import asyncio
import math
import time
from collections.abc import Callable

from controller.core.ports import Clock
from motor_ft.wire.log import get_logger

LOOK_SEC = 10.0
STEP_SEC = 1.0
"""What is corrected little by little, as NTP does, stays below this between two looks."""
SHOWN_SEC = 600.0
"""How long a status tells of it."""

_log = get_logger(__name__)


class SystemClock:
    """``controller.core.ports.Clock``."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch, for display only."""
        return time.time()


class WallClock:
    """Whether the wall clock was set: nothing is decided by it, but what people are shown jumps.

    ``stepped`` is called when it was, ``changed`` when ``degraded`` says something else than before.
    """

    def __init__(self, clock: Clock, stepped: Callable[[], None], changed: Callable[[], None]) -> None:
        self._clock = clock
        self._stepped = stepped
        self._changed = changed
        self.degraded: tuple[str, ...] = ()

    async def watch(self) -> None:
        """Look every few seconds, for ever; what was seen is shown for ``SHOWN_SEC``."""
        clock = self._clock
        ahead, shown_until = clock.wall() - clock.now(), -math.inf
        while True:
            await asyncio.sleep(LOOK_SEC)
            before, ahead = ahead, clock.wall() - clock.now()
            step = ahead - before
            if abs(step) > STEP_SEC:
                _log.warning("the wall clock was set", by_sec=round(step, 3))
                self._stepped()
                shown_until = clock.now() + SHOWN_SEC
                self._show((f"the wall clock was set by {step:+.1f} s: times from before do not compare",))
            elif clock.now() >= shown_until:
                self._show(())

    def _show(self, degraded: tuple[str, ...]) -> None:
        if degraded != self.degraded:
            self.degraded = degraded
            self._changed()
