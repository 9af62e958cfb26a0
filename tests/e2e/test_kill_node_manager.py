"""Row 23: a NodeManager that is killed at each step of a scale-down, and started again in its pod.

The pod of the dead rank and of a survivor is killed at every step, the pod of the lowest survivor at some. The engines
outlive their NodeManagers, and say themselves what they were told. What a step leads to begins the next one, as in
``test_kill_controller``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from nodemanager.core.state import NodeState
from tests.e2e.checks import completions_work, rebuilt, reconfiguring, scaled_down
from tests.e2e.conftest import Start
from tests.support.cluster import SCALED, Cluster, Shape
from tests.support.engine import FakeGroup
from tests.support.killed.nodemanager import STEPS
from tests.support.waiting import until

STEPS_TO_COMMIT = STEPS[: STEPS.index("after guard 3")]
STEPS_OF_POD_0 = ("after guard 2", "before send 1", "after send 1", "after finalize 1")
CHAINS: dict[int, list[str]] = {
    0: [f"pod-1 {step}" for step in STEPS[:5]],
    1: [f"pod-1 {step}" for step in STEPS[5:]],
    2: [f"pod-0 {step}" for step in STEPS_OF_POD_0],
}
pytestmark = pytest.mark.timeout(300)  # of a chain, on a machine that has a lot to do


@pytest.mark.parametrize("chain", CHAINS)
async def test_row_23_a_node_manager_killed_at_any_step_never_sends_again(start: Start, chain: int) -> None:
    """Before the commit the instance is rebuilt; a commit is asked for until it is answered, with the first answer."""
    async with FakeGroup(dp_size=3) as group:
        shape = Shape(
            ((0,), (1, 2)),
            urls=tuple(group.url(rank) for rank in range(3)),
            group=group,
            pods_outlive=True,
            node_manager_module="tests.support.killed.nodemanager",
            fault_tolerance={**SCALED, "engine_poll_interval_sec": 0.5},
        )
        async with start(shape) as (cluster, _):
            for point in CHAINS[chain]:
                await killed_at(cluster, group, point)
            await completions_work(cluster)


async def killed_at(cluster: Cluster, group: FakeGroup, point: str) -> None:
    """From an instance that serves to the next one."""
    old = await cluster.serving()
    before = len(await cluster.applies())
    pod, _, step = point.partition(" ")
    keeper = cluster.pods[int(pod[-1])]
    starts = keeper.starts
    cluster.signal_at(point)
    await cluster.inject("worker_kill", 1)
    await until(lambda: keeper.starts > starts, timeout=60)
    if step in STEPS_TO_COMMIT:
        await reconfiguring(cluster, old)
    else:
        await scaled_down(cluster, [1])
    told = Counter(apply["rank"] for apply in (await cluster.applies())[before:])
    assert told == Counter(expected(pod, step)), point
    if step not in STEPS_TO_COMMIT:
        assert remembered(cluster.folder / "pod-1").retired == {1}
        for rank in (0, 2):
            await cluster.inject("worker_kill", rank)
        await reconfiguring(cluster, old)
    await group.rebuild()
    await rebuilt(cluster, old)
    assert len(await cluster.applies()) == before + told.total(), point


def expected(pod: str, step: str) -> set[int]:
    """Ranks that were told: none before the intent is written; then all, unless their pod did not come to send it."""
    if step in STEPS_TO_COMMIT[: STEPS_TO_COMMIT.index("before send 1")]:
        return set()
    return {0, 2} - ({"pod-0": {0}, "pod-1": {2}}[pod] if step == "before send 1" else set())


def remembered(state_dir: Path) -> NodeState:
    """The last record on the disk of a pod whose NodeManager runs."""
    *_, last = (state_dir / "journal").read_bytes().splitlines()
    return msgspec.json.decode(last.split(b" ", 2)[2], type=NodeState)
