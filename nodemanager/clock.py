"""The clocks of this machine."""

import time
from pathlib import Path

from nodemanager.core.guard import BootTime

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SystemClock:
    """Monotonic and boot time; implements ``core.ports.Clock``."""

    def __init__(self) -> None:
        self._boot_id = _BOOT_ID.read_text().strip()

    def now(self) -> float:
        """Monotonic seconds of this process."""
        return time.monotonic()

    def boot(self) -> BootTime:
        """Seconds since the machine booted, sleep included."""
        return BootTime(self._boot_id, time.clock_gettime(time.CLOCK_BOOTTIME))
