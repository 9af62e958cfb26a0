"""``scripts/run``, behind its shell wrapper: the main job as a user starts it."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.engine.fake_group import FakeGroup
from tests.support.ports import free_port
from tests.support.processes import Running, python_module


def run(folder: Path, *arguments: str) -> Running:
    """The program with plain output."""
    return Running(python_module("scripts.live", "--plain", "--folder", str(folder), *arguments), name="scripts/run")


async def test_a_fault_is_recovered_from_and_the_timings_are_shown(folder: Path) -> None:
    """--once ends with exit code 0 after the recovery."""
    async with run(folder, "--pods=2", "--ranks=1", "--fault", "rank=1,after=0.2", "--once") as process:
        assert await process.wait(timeout=90) == 0
        text = "\n".join(process.output)
        for wanted in (
            "gRPC",
            "SCALED_DOWN_RUNNING serving",
            "serving again",
            "publishing",
            "all processes have ended",
        ):
            assert wanted in text, text


async def test_ctrl_c_ends_everything(folder: Path) -> None:
    """No process stays, whenever it comes; exit code 0 while it serves."""
    async with run(folder, "--pods=1", "--ranks=2") as process:
        await process.line("NORMAL serving", timeout=60)
        for name in ("controller-0", "coordinator", "gateway", "pod-0"):
            assert (folder / f"{name}.log").read_text(), "logs are there while it runs"
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.signal(signal.SIGINT)
        assert await process.wait(timeout=30) == 0
        assert not [child for child in children if child.is_running()]


async def test_ctrl_c_while_starting(folder: Path) -> None:
    """It says so, and nothing stays, however often it comes."""
    async with run(folder) as process:
        await process.line("starting")
        process.signal(signal.SIGINT)
        process.signal(signal.SIGTERM)
        assert await process.wait(timeout=30) == 1
        assert "ended before everything had started" in process.output


async def test_engines_that_run_already(folder: Path) -> None:
    """--engines serves from them and leaves them running."""
    async with FakeGroup(dp_size=2) as group:
        urls = f"{group.url(0)},{group.url(1)}"
        async with run(folder, "--pods=2", "--ranks=1", "--engines", urls) as process:
            await process.line("NORMAL serving", timeout=60)
            process.signal(signal.SIGINT)
            assert await process.wait(timeout=30) == 0
        assert group.statuses() == {0: "healthy", 1: "healthy"}


async def test_an_engine_that_does_not_run_is_named_at_once(folder: Path) -> None:
    """Nothing is started."""
    async with FakeGroup(dp_size=1) as group:
        silent = f"http://127.0.0.1:{free_port()}"
        async with run(folder, "--pods=2", "--ranks=1", "--engines", f"{group.url(0)},{silent}") as process:
            assert await process.wait(timeout=30) == 1
            assert process.output == [f"--engines: nobody listens at {silent}; start these engines first"]


async def test_an_engine_that_keeps_the_instance_from_serving_is_named_with_the_reason(folder: Path) -> None:
    async with FakeGroup(dp_size=2) as group:
        await group.inject(1, "step_exception")
        urls = f"{group.url(0)},{group.url(1)}"
        async with run(folder, "--pods=2", "--ranks=1", "--engines", urls) as process:
            await process.line(r"pod 1 not ready: rank 1 is (UNHEALTHY|DEAD)", timeout=60)
            process.signal(signal.SIGINT)
            await process.wait(timeout=30)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--fault", "rank=9"], "rank from 0 to 3"),
        (["--pods", "100000"], "are 200000 ranks; at most 256 run here"),
        (["--fault", "rank=1,kind=fire"], "worker_kill"),
        (["--fault", "rank=1,after=-1"], "0 or more"),
        (["--engines", "http://127.0.0.1:1"], "--engines names 1"),
        (["--engines", "http://one,two", "--pods", "1"], "'http://one' is not like http://HOST:PORT"),
        (["--engines", "http://127.0.0.1:1,http://127.0.0.1:1/", "--pods", "1"], "more than once"),
        (["--dialect", "sglang"], "name its server with --engines"),
        (["--folder", __file__], f"--folder: {__file__}: File exists"),
        (["--folder", f"{__file__}/below"], "Not a directory"),
        (["--pods", "0"], "--pods"),
        (["--nonsense"], "unrecognized"),
    ],
)
async def test_a_wrong_option_is_named(folder: Path, arguments: list[str], named: str) -> None:
    """Exit code 2, and nothing is started."""
    async with run(folder, *arguments) as process:
        assert await process.wait(timeout=30) == 2
        assert named in "\n".join(process.output)


def is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


async def test_a_folder_that_another_run_uses_is_left_alone(folder: Path) -> None:
    """Exit code 2, before anything is started or written."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        async with run(folder) as process:
            assert await process.wait(timeout=30) == 2
            assert process.output[-1].endswith(f"--folder: another run uses {folder}")
        assert is_empty(folder)
    finally:
        os.close(lock)
