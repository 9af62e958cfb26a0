"""Time of this machine."""

import time


class SystemClock:
    """``controller.core.ports.Clock``."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since the epoch, for display only."""
        return time.time()
