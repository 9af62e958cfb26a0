"""``scripts/soak``: exit code 0 when nothing was found, 1 when something was, or when it could not start."""

from __future__ import annotations

from motor_ft.wire.early import end_quietly

end_quietly()  # what follows takes a second or more

import asyncio
import signal
import sys

from rich.console import Console

from scripts.endurance.options import Options, parse
from scripts.endurance.report import show
from scripts.endurance.soak import Soak
from tests.support.processes import ProcessError

WIDTH = 150
"""Of the report where it is not shown on a terminal."""


async def main(options: Options) -> int:
    """Until the time is over, or the first SIGINT or SIGTERM."""
    console = Console()
    soak = Soak(options, lambda line: console.print(line, soft_wrap=True, highlight=False, markup=False))
    running = asyncio.create_task(soak.run(), name="soak")

    def end() -> None:
        if not running.cancelling():  # a second Ctrl-C must not cut short what ends the processes
            running.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end)
    console.print(f"seed {options.seed}, evidence in {options.folder}", soft_wrap=True, highlight=False)
    try:
        await running
    except asyncio.CancelledError:
        console.print("ended early")
    except (ProcessError, TimeoutError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
    finally:
        result = soak.result()
        with (options.folder / "report.txt").open("w") as file:
            for output in (file, sys.stdout):
                show(result, Console(file=output, width=None if output.isatty() else WIDTH))
    return 0 if result.passed else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(parse())))
