"""Stages of a recovery, from real processes on this machine; then ``scripts.fleet`` and ``scripts.failover``.

One fresh cluster for each sample: a Controller, NodeManagers as processes, engines as real HTTP servers in this
process, which shares the machine's cores with them. Times are those that the Controller's log and the engines' own log
carry, on one wall clock. The unary round trip of the same run is printed beside them: compare ratios, not milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from motor_ft.v1 import controller_pb2
from scripts.failover import failover
from scripts.fleet import fleet
from tests.support.cluster import SCALED, Cluster, Shape, even_pods
from tests.support.engine.fake_group import FakeGroup

STEPS = (
    *("guarding", "observing", "freezing", "withdrawing", "arming"),
    *("applying", "polling", "probing", "renewing", "committing"),
)
TOTAL = "evidence complete -> apply at the last survivor"
PUBLISH = "all healthy and probed -> published"
Samples = dict[str, list[float]]


def main() -> int:
    """Print one table for each shape, one for the fleets, and one for failovers."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Kills a rank of a fresh cluster again and again and shows how long each stage took; "
        "then shows what a fault costs when there are more instances, and how soon a standby decides.",
    )
    parser.add_argument(
        "--shapes",
        default="2x2,8x8",
        metavar="PODSxRANKS,…",
        help="pods and ranks in each (default 2x2,8x8: 4 ranks on 2 NodeManagers, 64 ranks on 8); '' for none",
    )
    parser.add_argument(
        "--samples", type=int, default=10, help="recoveries of each shape, and turns of each fleet (default 10)"
    )
    parser.add_argument(
        "--instances",
        type=_sizes,
        default="2,100",
        metavar="N,…",
        help="sizes of the fleets in which one instance fails (default 2,100); '' for none",
    )
    parser.add_argument(
        "--leases",
        type=_sizes,
        default="3,5,10",
        metavar="SEC,…",
        help="leases with which a standby takes over from a leader that was killed (default 3,5,10); '' for none",
    )
    parser.add_argument("--failovers", type=int, default=3, help="of each lease (default 3)")
    given = parser.parse_args()
    try:
        shapes = [
            (int(pods), int(ranks))
            for pods, _, ranks in (text.partition("x") for text in given.shapes.split(",") if text)
        ]
    except ValueError:
        parser.error(f"--shapes: {given.shapes!r} is not like 2x2,8x8")
    if small := [f"{pods}x{ranks}" for pods, ranks in shapes if min(pods, ranks) < 1 or pods * ranks < 2]:
        parser.error(f"--shapes: {small[0]} has no second rank: rank 1 dies and another one must be left")
    if min(given.samples, given.failovers) < 1:
        parser.error("--samples and --failovers must be at least 1")
    for pods, ranks in shapes:
        samples, unary = asyncio.run(measure(pods, ranks, given.samples))
        Console().print(table(f"{pods * ranks} ranks on {pods} NodeManagers", samples, unary))
    if given.instances:
        Console().print(fleet(given.instances, given.samples))
    if given.leases:
        Console().print(failover(given.leases, given.failovers))
    return 0


def _sizes(text: str) -> list[int]:
    sizes = [int(part) if part.isdecimal() else 0 for part in text.split(",") if part]
    if 0 in sizes:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 2,100")
    return sizes


async def measure(pods: int, ranks: int, count: int) -> tuple[Samples, float]:
    """``count`` recoveries, each in a fresh cluster; seconds by stage, and the median unary round trip."""
    samples: Samples = defaultdict(list)
    unary: list[float] = []
    for number in range(count):
        sys.stderr.write(f"\r{pods}x{ranks}: recovery {number + 1} of {count} ")
        folder = Path(tempfile.mkdtemp(prefix="motor-ft-bench-"))
        try:
            for stage, seconds in (await recover(folder, pods, ranks, unary)).items():
                samples[stage].append(seconds)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    sys.stderr.write("\n")
    return samples, median(unary)


async def recover(folder: Path, pods: int, ranks: int, unary: list[float]) -> dict[str, float]:
    """One fault and one recovery; seconds by stage."""
    size = pods * ranks
    async with FakeGroup(dp_size=size) as group:
        urls = tuple(group.url(rank) for rank in range(size))
        settings = {**SCALED, "coordinator_set_interval_sec": 5.0}
        async with Cluster(folder, Shape(even_pods(pods, ranks), fault_tolerance=settings, urls=urls)) as cluster:
            unary += await round_trips(cluster)
            await group.inject(1, "worker_kill")
            await cluster.until(lambda now: now.can_serve and list(now.dead_committed) == [1], "has recovered")
            assert cluster.controller is not None
            await cluster.controller.line("strategy ended")
            applied = max(record.at for record in group.applies())
            return stages([json.loads(line) for line in cluster.controller.output if line.startswith("{")], applied)


async def round_trips(cluster: Cluster) -> list[float]:
    """Seconds of plain unary calls to the Controller."""
    found = []
    async with cluster.stub() as stub:
        for _ in range(100):
            start = time.perf_counter()
            await stub.GetInstance(controller_pb2.GetInstanceRequest(instance_id=1), timeout=5)
            found.append(time.perf_counter() - start)
    return found[20:]


def stages(log: list[dict[str, object]], applied: float) -> dict[str, float]:
    """Seconds of each step, from the Controller's log; ``applied`` is the engines' own time of the last apply."""
    decided = next(at(entry) for entry in log if entry.get("action") == "dp_scale_down")
    begins = [(str(entry["step"]), at(entry)) for entry in log if entry["event"] == "transaction step"]
    found = {name: later - start for (name, start), (_, later) in pairwise(begins)}
    times = dict(begins)
    return found | {TOTAL: applied - decided, PUBLISH: times["done"] - times["renewing"]}


def at(entry: dict[str, object]) -> float:
    """Wall clock of a log line."""
    return datetime.fromisoformat(str(entry["timestamp"])).timestamp()


def table(title: str, samples: Samples, unary: float) -> Table:
    """p50 and p99 in milliseconds, and p50 in unary round trips."""
    shown = Table(title=f"{title}; unary round trip {unary * 1000:.2f} ms")
    shown.add_column("stage")
    for column in ("p50 ms", "p99 ms", "p50 in round trips"):
        shown.add_column(column, justify="right")
    for name in (*STEPS, "recording", "cleaning", "publishing", TOTAL, PUBLISH):
        values = sorted(samples[name])
        p50, p99 = median(values), values[min(len(values) - 1, round(0.99 * len(values)))]
        shown.add_row(name, f"{p50 * 1000:.1f}", f"{p99 * 1000:.1f}", f"{p50 / unary:.1f}")
    return shown


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # once everything that was started has ended
        sys.exit("interrupted")
