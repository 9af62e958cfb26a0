"""The pod keeper restarts a pod with a new uid, and leaves nothing of it behind."""

import json
import os
import signal
import sys
from pathlib import Path

import psutil

from tests.support.pod_keeper import Backoff, PodKeeper
from tests.support.processes import Running, alive, python_module
from tests.support.waiting import until

TREE = """
import os, signal, subprocess, sys
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(os.environ["MOTOR_FT_POD_UID"], os.getpid(), child.pid, flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
child.wait()
"""
"""A pod that starts a process in a session of its own, as a supervisor would."""


def lines(output: Path) -> list[list[str]]:
    """What each start of the pod printed: uid, pid, pid of its child."""
    return [line.split() for line in output.read_text().splitlines()] if output.exists() else []


async def test_a_pod_that_exits_is_restarted_with_a_new_uid_and_without_leftovers(tmp_path: Path) -> None:
    output = tmp_path / "out"
    async with PodKeeper([sys.executable, "-c", TREE], output=output, backoff=Backoff(0.01)) as keeper:
        await until(lambda: len(lines(output)) == 1)
        uid, pid, child = lines(output)[0]
        assert (uid, int(pid)) == (keeper.uid, keeper.pid)
        os.kill(int(pid), signal.SIGKILL)
        await until(lambda: len(lines(output)) == 2)
        assert not alive(int(child))
        assert lines(output)[1][0] == keeper.uid != uid
        assert [(r.kind, r.exit_code) for r in keeper.records] == [("start", None), ("stop", -9), ("start", None)]
    assert keeper.stops[-1].exit_code == 0
    assert keeper.starts == len(keeper.stops) == 2
    assert not alive(int(lines(output)[1][2]))


async def test_the_backoff_doubles_up_to_its_limit_and_starts_again_after_a_long_run() -> None:
    backoff = Backoff(first=1, limit=3, reset_after=10)
    pauses = [backoff.following(previous, ran=0) for previous in (None, 1, 2, 3)]
    assert pauses == [1, 2, 3, 3]
    assert backoff.following(3, ran=10) == 1


async def test_as_a_process_it_passes_sigterm_on_and_records_stops(tmp_path: Path) -> None:
    record = tmp_path / "pods.jsonl"
    keeper = python_module("tests.support.pod_keeper", f"--record={record}", "--first-backoff=0.01", "--")
    async with Running([*keeper, sys.executable, "-c", TREE]) as process:
        first = (await process.line(r"\S+ (\d+) (\d+)$")).groups()
        os.kill(int(first[0]), signal.SIGKILL)
        await until(lambda: len(process.output) == 2)
        second = process.output[1].split()[1:]
        assert await process.stop() == 0
    assert not any(alive(int(pid)) for pid in [*first, *second])
    records = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(r["kind"], r["exit_code"]) for r in records] == [
        ("start", None),
        ("stop", -9),
        ("start", None),
        ("stop", 0),
    ]


async def test_a_killed_keeper_takes_its_command_with_it() -> None:
    command = python_module("tests.support.pod_keeper", "--", "sleep", "600")
    async with Running(command) as process:
        pid = process.pid
        await until(lambda: psutil.Process(pid).children())
        (child,) = psutil.Process(pid).children()
        await process.kill()
        await until(lambda: not alive(child.pid))


async def test_a_command_that_cannot_run_is_named() -> None:
    async with Running(python_module("tests.support.pod_keeper", "--", "/no/such/command")) as process:
        await process.line("pod keeper: cannot run /no/such/command")
        assert await process.wait() == 2
