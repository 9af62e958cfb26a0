"""python -m tests.support.engine --group HOST:PORT --rank R --dp-size N --port P: one engine process."""

import argparse
import asyncio
import sys

from tests.support.engine.config import Dialect
from tests.support.engine.process import EngineOptions, EngineProcess


def _parse() -> EngineOptions:
    parser = argparse.ArgumentParser(prog="python -m tests.support.engine", description=__doc__)
    parser.add_argument("--group", required=True, metavar="HOST:PORT", help="the group process")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--dp-size", type=int, required=True)
    parser.add_argument(
        "--dialect", choices=[each for each in Dialect if not each.one_server], default=Dialect.V1, type=Dialect
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--alone", action="store_true", help="answer healthy before the whole group has registered")
    return EngineOptions(**vars(parser.parse_args()))


async def _run() -> int:
    return await EngineProcess(_parse()).run()


if __name__ == "__main__":
    sys.exit(asyncio.run(_run()))
