"""``scripts/soak``, behind its shell wrapper: one cycle, and its end by Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from tests.support.processes import Running, python_module

pytestmark = pytest.mark.timeout(300)  # on a machine that has a lot to do


def soak(folder: Path, *arguments: str) -> Running:
    """One instance; the first thing that this seed does is to kill a worker."""
    flags = ["--instances=1", "--seed=29", "--evidence", str(folder), *arguments]
    return Running(python_module("scripts.endurance", *flags), name="scripts/soak")


async def test_one_cycle_passes(folder: Path) -> None:
    """A fault, its recovery, all ranks again; the report says so, and is kept with the evidence."""
    async with soak(folder, "--cycles=1") as process:
        assert await process.wait(timeout=280) == 0
    assert process.output[-1].startswith("PASSED: 1 recovery cycles")
    assert process.output[-1] in (folder / "report.txt").read_text()
    assert (folder / "incidents.jsonl").read_text().count("\n") >= 1
    assert '"controller"' in (folder / "samples.jsonl").read_text()


async def test_ctrl_c_ends_everything_and_reports(folder: Path) -> None:
    """However often it comes; no recovery is no pass."""
    async with soak(folder) as process:
        await process.line("seed 29")
        children = psutil.Process(process.pid).children(recursive=True)
        process.signal(signal.SIGINT)
        process.signal(signal.SIGTERM)
        assert await process.wait(timeout=120) == 1
    assert "ended early" in process.output
    assert process.output[-1].startswith("FAILED: 0 recovery cycles")
    assert not [child for child in children if child.is_running()]
