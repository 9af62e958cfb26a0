"""Row 19E: a Controller that is killed after any effect of a scale-down, and started again on etcd.

The points come from the machine itself: the effects of one transaction in which all goes well. To pay for one cluster
instead of one for each point, the points of a chain follow each other: whatever a kill has led to ends in a rebuilt
instance, which the next point begins with. The engines are in this process, so that this costs two NodeManagers.
"""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from tests.e2e.checks import completions_work, rebuilt, reconfiguring, scaled_down
from tests.e2e.conftest import Start
from tests.support.cluster import SCALED, Cluster, Shape
from tests.support.engine import FakeGroup
from tests.support.etcd import Etcd
from tests.support.killed.controller import points
from tests.unit.controller.core.fleet import pod
from tests.unit.controller.core.transaction.world import Run, spec

PODS = ((0,), (1, 2))
RUN = Run(spec(pods=(pod(1, PODS[0]), pod(2, PODS[1]))))
RUN.finish()
POINTS = points(RUN.effects)
INTERRUPTED = range(POINTS.index("after Persist DECIDING 1"), POINTS.index("after Persist POST_SCALE_CLEANUP 1"))
ARMED = POINTS.index("after Persist SCALING_DOWN 1")
CHAINS = 4
pytestmark = pytest.mark.timeout(300)  # of a chain, on a machine that has a lot to do


@pytest.mark.parametrize("chain", range(CHAINS))
async def test_row_19_a_controller_killed_at_any_step_never_applies_again(start: Start, etcd: Etcd, chain: int) -> None:
    """Before anything is written it is one more fault; then it is rebuilt; once committed the survivors serve."""
    async with FakeGroup(dp_size=3) as group:
        shape = Shape(
            PODS,
            urls=tuple(group.url(rank) for rank in range(3)),
            group=group,
            etcd=tuple(etcd.endpoints),
            controller_module="tests.support.killed.controller",
            fault_tolerance={**SCALED, "engine_poll_interval_sec": 0.5},
        )
        async with start(shape) as (cluster, _):
            for number in range(chain, len(POINTS), CHAINS):
                await killed_at(cluster, group, number)
            await completions_work(cluster)


async def killed_at(cluster: Cluster, group: FakeGroup, number: int) -> None:
    """From an instance that serves to the next one."""
    old = await cluster.serving()
    before = len(await cluster.applies())
    cluster.signal_at(POINTS[number])
    await cluster.inject("worker_kill", 1)
    assert await cluster.controllers[0].wait() == -signal.SIGKILL
    await cluster.start_controller()
    if number in INTERRUPTED:
        await reconfiguring(cluster, old)
    else:
        await scaled_down(cluster, [1])
    told = Counter(apply["rank"] for apply in (await cluster.applies())[before:])
    if number not in INTERRUPTED:
        assert told == Counter({0: 1, 2: 1}), POINTS[number]
        for rank in (0, 2):
            await cluster.inject("worker_kill", rank)
        await reconfiguring(cluster, old)
    elif number < ARMED:
        assert told == Counter(), POINTS[number]
    assert told <= Counter({0: 1, 2: 1}), POINTS[number]
    await group.rebuild()
    await rebuilt(cluster, old)
    assert len(await cluster.applies()) == before + told.total()
