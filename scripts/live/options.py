"""Command line of ``scripts/run``."""

from __future__ import annotations

import argparse
import fcntl
import math
import os
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.support.cluster import SCALED, Shape, even_pods
from tests.support.cluster.shape import CAPABILITY
from tests.support.engine.config import Dialect, Timings

LIVELY = Timings(
    detection_delay=1.0,
    diagnosing=0.3,
    check_in=5.0,
    round_time=0.5,
    recovery_window=60.0,
    store_timeout=5.0,
    watchdog=1.0,
    completion=0.02,
)
"""Simulated engines: quick enough to watch, slow enough to see every phase."""

MAX_RANKS = 256
"""Each is a process of this machine."""

KINDS = {
    "worker_kill": "default; a worker dies, the rank is removed",
    "engine_kill": "the whole engine dies, the rank is removed",
    "step_exception": "an error without a death, the instance is rebuilt",
    "freeze": "the engine hangs, the instance is rebuilt",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: ``after`` seconds of serving (or of the recovery before), do ``kind`` to ``rank``."""

    rank: int
    kind: str = "worker_kill"
    after: float = 3.0


@dataclass(frozen=True, slots=True)
class Options:
    """What to run."""

    shape: Shape
    folder: Path
    faults: tuple[Fault, ...]
    once: bool
    plain: bool


def parse(arguments: list[str] | None = None) -> Options:
    """Read the command line; a mistake ends the program with a text that names it."""
    parser = argparse.ArgumentParser(
        prog="scripts/run",
        description="Starts a Controller, pods with engines and a Coordinator on this machine and shows them live.",
        epilog="Example: scripts/run --fault rank=1    kills the worker of rank 1 and shows the recovery",
    )
    parser.add_argument("--pods", type=int, default=2, help="number of pods (default 2)")
    parser.add_argument("--ranks", type=int, default=2, help="DP ranks in each pod (default 2)")
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="rank=R[,kind=K][,after=SECONDS]",
        help="break rank R after that many seconds (default 3) of serving; may be given several times; kinds: "
        + "; ".join(f"{kind} ({effect})" for kind, effect in KINDS.items()),
    )
    parser.add_argument(
        "--engines",
        default="",
        metavar="URL,URL,…",
        help="use these running engines, in the order of their ranks, instead of simulated ones",
    )
    parser.add_argument(
        "--dialect",
        choices=[*(dialect.value for dialect in Dialect), "auto"],
        default=None,
        help="what the engines speak; vllm_0_33 cannot scale down; sglang, for --engines that name its one server for "
        "every rank, is only read (default: vllm_v1 simulated, auto with --engines)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=None,
        help="state, logs, evidence; it stays (default: a new one in the temporary folder)",
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="end after the last --fault has been recovered from; without --fault, as soon as the instance serves",
    )
    parser.add_argument("--plain", action="store_true", help="print lines instead of the live view")
    given = parser.parse_args(arguments)
    urls = tuple(url.strip() for url in given.engines.split(",") if url.strip())
    if given.pods < 1 or given.ranks < 1:
        parser.error("--pods and --ranks must be at least 1")
    needed = given.pods * given.ranks
    if needed > MAX_RANKS:
        parser.error(f"--pods {given.pods} x --ranks {given.ranks} are {needed} ranks; at most {MAX_RANKS} run here")
    if urls and len(urls) != needed:
        parser.error(f"--engines names {len(urls)} engines, --pods {given.pods} x --ranks {given.ranks} needs {needed}")
    if wrong := [url for url in urls if not re.fullmatch(r"http://[^/]+:\d{1,5}/?", url)]:
        parser.error(f"--engines: {wrong[0]!r} is not like http://HOST:PORT")
    if given.dialect == Dialect.SGLANG and not urls:
        parser.error("--dialect sglang: simulated engines do not speak it; name its server with --engines")
    twice = [url for url, count in Counter(url.rstrip("/") for url in urls).items() if count > 1]
    if twice and given.dialect != Dialect.SGLANG:
        parser.error(f"--engines: {twice[0]} is named more than once; each rank has an engine of its own")
    try:
        faults = tuple(_fault(text, needed) for text in given.fault)
    except ValueError as error:
        parser.error(f"--fault: {error}")
    if faults and urls:
        parser.error("--fault breaks simulated engines only; with --engines break a real one by hand")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="motor-ft-run-"))
    try:
        _occupy(folder)
    except BlockingIOError:
        parser.error(f"--folder: another run uses {folder}")
    except OSError as error:
        parser.error(f"--folder: {folder}: {error.strerror}")
    return Options(_shape(given, urls), folder, faults, given.once, given.plain)


def _occupy(folder: Path) -> None:
    """Make the folder, and lock it until this process ends; BlockingIOError when another process has."""
    folder.mkdir(parents=True, exist_ok=True)
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)


def _shape(given: argparse.Namespace, urls: tuple[str, ...]) -> Shape:
    dialect = given.dialect or ("auto" if urls else Dialect.V1)
    return Shape(
        pods=even_pods(given.pods, given.ranks),
        dialect=dialect,
        timings=LIVELY,
        fault_tolerance={**SCALED, "fault_collection_timeout_sec": 15.0},
        capability={**CAPABILITY, "dialect": dialect, "scale_down_supported": dialect != Dialect.V0_33},
        urls=urls,
    )


def _fault(text: str, dp_size: int) -> Fault:
    pairs = dict(item.partition("=")[::2] for item in text.split(","))
    if unknown := sorted(pairs.keys() - {"rank", "kind", "after"}):
        raise ValueError(f"{text!r} has the unknown part {unknown[0]!r}; it must be like rank=1,kind=freeze,after=5")
    if not pairs.get("rank", "").isdecimal() or int(pairs["rank"]) >= dp_size:
        raise ValueError(f"{text!r} must name a rank from 0 to {dp_size - 1}")
    kind = pairs.get("kind", "worker_kill")
    if kind not in KINDS:
        raise ValueError(f"{text!r}: kind must be one of {', '.join(KINDS)}")
    try:
        after = float(pairs.get("after", "3"))
    except ValueError:
        after = math.nan
    if not 0 <= after < math.inf:
        raise ValueError(f"{text!r}: after must be a number of seconds, 0 or more")
    return Fault(int(pairs["rank"]), kind, after)
