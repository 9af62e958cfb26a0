"""Daemons that signal themselves at a point that a test names; run as modules, with the product's own arguments."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

POINT_FILE = "MOTOR_FT_TEST_POINT_FILE"
"""Environment variable: the file in which a test names a signal and the point."""
SETTLE_SEC = 0.2
"""A signal to the own process may be taken by another thread of it, a little later."""


class Pauses:
    """How long this process has stood still, for clocks that stand still with it as those of a machine do."""

    total_sec = 0.0


def passing(point: str) -> None:
    """Take the signal here if the file names this point. The file goes with it: the next process lives on."""
    path = Path(os.environ[POINT_FILE])
    with suppress(FileNotFoundError):
        name, _, wanted = path.read_text().partition(" ")
        if wanted == point:
            before = time.monotonic()
            path.unlink()
            os.kill(os.getpid(), signal.Signals[name])
            time.sleep(SETTLE_SEC)
            Pauses.total_sec += time.monotonic() - before - SETTLE_SEC
