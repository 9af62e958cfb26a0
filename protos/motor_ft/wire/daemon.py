"""From ``main()`` to the exit code: signals, user errors, garbage collection."""

import asyncio
import gc
import signal
import sys
from collections.abc import Awaitable, Callable

from motor_ft.model.errors import FtError
from motor_ft.wire.config import ConfigError

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(main: Callable[[asyncio.Event], Awaitable[None]], *, name: str) -> int:
    """Run ``main`` until it returns; the first SIGTERM or SIGINT sets its event, the second ends the process at once.

    Returns the exit code: 0, 2 for a ConfigError, 1 for an FtError or OSError, each with one line on standard error.
    Anything else is a bug and keeps its traceback.
    """
    # What was imported stays for good: thousands of streams must not make the collector walk over it again and again.
    gc.collect()
    gc.freeze()
    # Nor often over what is young: but what a recovery leaves in cycles is garbage that lies until so much has come.
    gc.set_threshold(10_000, 20, 20)
    try:
        asyncio.run(_until_stopped(main))
    except (ConfigError, FtError, OSError) as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    return 0


async def _until_stopped(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        stop.set()
        for signum in _SIGNALS:
            loop.remove_signal_handler(signum)
            # By the kernel, because the second one is for a loop that no longer turns.
            signal.signal(signum, signal.SIG_DFL)

    for signum in _SIGNALS:
        loop.add_signal_handler(signum, on_signal)
    await main(stop)
