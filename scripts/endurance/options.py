"""Command line of ``scripts/soak``."""

from __future__ import annotations

import argparse
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """What to run. ``cycles`` ends it early."""

    seconds: float
    instances: int
    cycles: int | None
    seed: str
    folder: Path


def parse(arguments: list[str] | None = None) -> Options:
    """Read the command line; a mistake ends the program with a text that names it."""
    parser = argparse.ArgumentParser(
        prog="scripts/soak",
        description="Runs a Controller, gateways, NodeManagers, simulated engines and a Coordinator as processes on "
        "this machine, breaks them in random ways, waits until each instance serves with all ranks again, and goes on. "
        "Reports what grows (memory, file descriptors, threads, tasks), incidents that do not end, and broken rules. "
        "Ctrl-C ends all processes and reports what was found so far.",
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="how long (default 20)")
    parser.add_argument(
        "--cycles", type=int, default=None, help="end after so many recovery cycles, if that is earlier"
    )
    parser.add_argument("--instances", type=int, default=3, help="beside each other (default 3)")
    parser.add_argument("--seed", default="", help="of all choices (default: a random one, which is shown)")
    parser.add_argument(
        "--evidence", type=Path, default=None, metavar="DIR", help="logs and records (default: a new one)"
    )
    given = parser.parse_args(arguments)
    if given.minutes <= 0 or given.instances < 1 or (given.cycles is not None and given.cycles < 1):
        parser.error("--minutes, --instances and --cycles must be more than 0")
    folder: Path = given.evidence or Path(tempfile.mkdtemp(prefix="motor-ft-soak-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            parser.error(f"--evidence: {folder} is not empty")
    except OSError as error:
        parser.error(f"--evidence: {folder}: {error.strerror}")
    seed = given.seed or str(random.SystemRandom().randrange(10**6))
    return Options(given.minutes * 60, given.instances, given.cycles, seed, folder)
