"""python -m tests.support.coordinator --port P: one Coordinator process."""

import argparse
import asyncio
import signal
import sys

from tests.support.coordinator.server import FakeCoordinator


async def _run(options: argparse.Namespace) -> int:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    try:
        async with FakeCoordinator(**vars(options)) as coordinator:
            print(f"READY coordinator={coordinator.url} admin={coordinator.admin_url}", flush=True)
            await ended.wait()
    except OSError as error:
        print(f"fake coordinator: cannot listen: {error}", file=sys.stderr)
        return 2
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.coordinator", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--admin-port", type=int, default=0, help="serves /_fake/, also while `down`")
    parser.add_argument("--engine-timeout", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--api-key", default=None, help="bearer token of the engines")
    return asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
