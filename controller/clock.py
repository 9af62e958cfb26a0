"""Time of this machine."""

import asyncio
import time
from collections.abc import Callable

from controller.core.ports import Clock
from motor_ft.wire.log import get_logger

LOOK_SEC = 10.0
STEP_SEC = 1.0
"""What is corrected little by little, as NTP does, stays below this between two looks."""

_log = get_logger(__name__)


class SystemClock:
    """``controller.core.ports.Clock``."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch, for display only."""
        return time.time()


async def watch(clock: Clock, stepped: Callable[[], None]) -> None:
    """Tell for ever when the wall clock is set: nothing is decided by it, but what people are shown jumps."""
    ahead = clock.wall() - clock.now()
    while True:
        await asyncio.sleep(LOOK_SEC)
        before, ahead = ahead, clock.wall() - clock.now()
        if abs(ahead - before) > STEP_SEC:
            _log.warning("the wall clock was set", by_sec=round(ahead - before, 3))
            stepped()
