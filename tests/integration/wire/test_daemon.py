"""A daemon's exit code and last words."""

import signal
import sys

import pytest

from tests.support.processes import Running

PROGRAM = """
import asyncio, sys
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.config import ConfigError
from motor_ft.wire.daemon import run

async def main(stop):
    {body}

sys.exit(run(main, name="motor-test"))
"""


def daemon(body: str) -> Running:
    return Running([sys.executable, "-c", PROGRAM.format(body=body)])


@pytest.mark.parametrize(
    ("body", "code", "output"),
    [
        ("raise ConfigError('a.toml: x: unknown key')", 2, ["motor-test: a.toml: x: unknown key"]),
        ("raise FtError(Reason.OVERLOADED, 'too many')", 1, ["motor-test: OVERLOADED: too many"]),
        ("open('/nonexistent')", 1, ["motor-test: [Errno 2] No such file or directory: '/nonexistent'"]),
        ("pass", 0, []),
    ],
)
async def test_a_user_error_is_one_line_and_its_exit_code(body: str, code: int, output: list[str]) -> None:
    async with daemon(body) as process:
        assert await process.process.wait() == code
        await process.stop()
        assert process.output == output


async def test_a_bug_keeps_its_traceback() -> None:
    async with daemon("raise RuntimeError('bug')") as process:
        await process.line("RuntimeError: bug")
        assert await process.process.wait() == 1


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_lets_it_end_in_order(signum: signal.Signals) -> None:
    async with daemon("print('up', flush=True); await stop.wait(); print('down', flush=True)") as process:
        await process.line("up")
        process.process.send_signal(signum)
        await process.line("down")
        assert await process.process.wait() == 0


async def test_the_second_signal_ends_it_at_once() -> None:
    body = "print('up', flush=True); await stop.wait(); print('stuck', flush=True); __import__('time').sleep(600)"
    async with daemon(body) as process:
        await process.line("up")
        process.process.send_signal(signal.SIGTERM)
        await process.line("stuck")
        process.process.send_signal(signal.SIGTERM)
        assert await process.process.wait() == -signal.SIGTERM


INTERRUPTED_IMPORT = """
import os, runpy, sys

class Interrupting:
    def find_spec(name, *_):
        if name == "asyncio":
            os.kill(os.getpid(), {signum})

sys.meta_path.insert(0, Interrupting)
sys.argv = ["{module}"]
runpy.run_module("{module}", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["controller", "nodemanager", "gateway", "scripts.live"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_while_it_is_being_imported_ends_it_without_a_word(module: str, signum: signal.Signals) -> None:
    program = INTERRUPTED_IMPORT.format(module=module, signum=int(signum))
    async with Running([sys.executable, "-c", program]) as process:
        assert (await process.wait(), process.output) == (0, [])
