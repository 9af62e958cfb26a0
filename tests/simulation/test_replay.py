"""A history can be had again: nothing in it depends on addresses, hashes of strings, or the time of day."""

import os
import subprocess
import sys

import pytest

from tests.simulation.run import simulate
from tests.simulation.scenario import scenario
from tests.support.processes import ROOT

SEEDS = 20
BATCH = 5


def digests(first: int, hash_seed: str) -> subprocess.Popen[str]:
    """A batch of seeds, in a process of its own."""
    seeds = ["--first", str(first), "--seeds", str(BATCH)]
    command = [sys.executable, "-m", "tests.simulation", *seeds, "--jobs", "1", "--digests"]
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("begin", range(0, SEEDS, BATCH))
def test_the_same_seeds_give_the_same_histories_in_two_processes(begin: int) -> None:
    running = [digests(begin, "1"), digests(begin, "2")]
    first, second = (process.communicate()[0] for process in running)
    assert first == second
    assert len(first.splitlines()) == BATCH


def test_another_seed_gives_another_history() -> None:
    assert simulate(scenario(1)).digest != simulate(scenario(2)).digest


def test_watching_a_history_does_not_change_it() -> None:
    silent, told = simulate(scenario(3)), simulate(scenario(3), verbose=True)
    assert silent.digest == told.digest
    assert told.lines
    assert not silent.lines
