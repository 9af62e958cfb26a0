"""How long nobody decides after the leader was killed: real processes on an etcd of one member.

A rank dies right after the leader. The time is from SIGKILL until the standby decides on that fault: the lease has to
expire, the pods have to find the standby, and every one has to tell it what it knows.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

from rich.table import Table

from tests.support.cluster import SCALED, Cluster, Shape, even_pods
from tests.support.engine.fake_group import FakeGroup
from tests.support.etcd import Etcd

DECIDES = r'"action": ?"dp_scale_down"'


def failover(leases: Sequence[int], samples: int) -> Table:
    """Seconds for leases of these many seconds."""
    table = Table(title=f"SIGKILL of the leader -> the standby decides on a new fault, {samples} times each")
    for column in ("lease s", "median s", "worst s", "worst - lease s"):
        table.add_column(column, justify="right")
    for ttl_sec in leases:
        found = []
        for number in range(samples):
            sys.stderr.write(f"\rlease of {ttl_sec} s: failover {number + 1} of {samples} ")
            found.append(asyncio.run(_measure(ttl_sec)))
        sys.stderr.write("\n")
        worst = max(found)
        table.add_row(str(ttl_sec), f"{median(found):.2f}", f"{worst:.2f}", f"{worst - ttl_sec:+.2f}")
    return table


async def _measure(ttl_sec: int) -> float:
    folder = Path(tempfile.mkdtemp(prefix="motor-ft-bench-"))
    try:
        with Etcd() as etcd:
            async with FakeGroup(dp_size=4) as group:
                shape = Shape(
                    even_pods(2, 2),
                    urls=tuple(group.url(rank) for rank in range(4)),
                    group=group,
                    etcd=tuple(etcd.endpoints),
                    lease_ttl_sec=ttl_sec,
                    controllers=2,
                    fault_tolerance={**SCALED, "heartbeat_ttl_sec": 10.0},
                )
                async with Cluster(folder, shape) as cluster:
                    return await _fail_over(cluster)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _fail_over(cluster: Cluster) -> float:
    killed = time.time()
    await cluster.controllers[0].kill()
    await cluster.inject("worker_kill", 1)
    decided = await cluster.controllers[1].line(DECIDES, timeout=60)
    return datetime.fromisoformat(json.loads(decided.string)["timestamp"]).timestamp() - killed
