"""Row 21E, and an etcd that loses its leader: who led before does nothing more, and what was begun ends cleanly."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from motor_ft.v1 import controller_pb2 as pb
from tests.e2e.checks import completions_work, rebuilt, reconfiguring, scaled_down, view_ranks
from tests.e2e.conftest import Start
from tests.e2e.test_kill_controller import POINTS
from tests.support.cluster import SCALED, Cluster, Shape
from tests.support.engine import FakeGroup
from tests.support.etcd import Etcd
from tests.support.waiting import until

PODS = ((0,), (1, 2))
COMMITTED = "after Persist POST_SCALE_CLEANUP 1"
WAITING = "after Persist WAITING_ENGINE_FAULT 1"
COMMANDS_FOLLOW: dict[str, list[str]] = {
    "DECIDING": ["after Persist DECIDING 1", "after Query 2"],
    "WAITING_ENGINE_FAULT": [WAITING],
    "SCALING_DOWN": ["after Persist SCALING_DOWN 1", "after Apply 2", "after Guard 6"],
}
"""By phase: points after which the next thing that a Controller does is a command to NodeManagers.

Whether it comes to be refused there (shown in ``tests/integration``), or finds its connections or its
lease gone first, depends on who wakes up first; the engines' own logs show that nobody was told again.
"""
pytestmark = pytest.mark.timeout(300)


def shape(group: FakeGroup, etcd: Etcd, **more: object) -> Shape:
    return Shape(
        PODS,
        urls=tuple(group.url(rank) for rank in range(3)),
        group=group,
        etcd=tuple(etcd.endpoints),
        lease_ttl_sec=5,
        # As with the defaults: when the pods leave a Controller that is frozen, another one leads already.
        fault_tolerance={**SCALED, "engine_poll_interval_sec": 0.5, "heartbeat_ttl_sec": 6.0},
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("phase", [*COMMANDS_FOLLOW, "POST_SCALE_CLEANUP"])
async def test_row_21_a_leader_that_wakes_up_commands_nobody(start: Start, etcd: Etcd, phase: str) -> None:
    """It was stopped in a transaction, with its clock, and a standby has taken over: no engine hears of it again."""
    async with FakeGroup(dp_size=3) as group:
        module = "tests.support.killed.controller"
        async with start(shape(group, etcd, controllers=2, controller_module=module)) as (cluster, _):
            for point in COMMANDS_FOLLOW.get(phase, [COMMITTED]):
                assert point in {*POINTS, WAITING}
                await stopped_at(cluster, group, point)
            await completions_work(cluster)


async def stopped_at(cluster: Cluster, group: FakeGroup, point: str) -> None:
    """From an instance that serves to the next one; the two Controllers have changed places then."""
    old = await cluster.serving()
    before = len(await cluster.applies())
    former = cluster.site.leader
    successor = 1 - former
    cluster.signal_at(point, signal.SIGSTOP)
    await cluster.inject("worker_kill", 1)
    if point == WAITING:
        await group.until(lambda: group.entry(2)["status"] == "unhealthy")
        group.rank(2).patch(ft_state="recovering")
    await cluster.stopped(former)
    if point == COMMITTED:
        await cluster.took_over(successor)
        await scaled_down(cluster, [1])
    else:  # the successor waits until the former leader has had its say, with all pods alive
        cluster.signal_at("rebuild", signal.SIGSTOP)
        await cluster.stopped(successor)
    told = Counter(apply["rank"] for apply in (await cluster.applies())[before:])
    cluster.controllers[former].signal(signal.SIGCONT)
    assert await cluster.controllers[former].wait() == 1
    assert "NOT_LEADER" in cluster.controllers[former].output[-1]
    if point == COMMITTED:
        for rank in (0, 2):
            await cluster.inject("worker_kill", rank)
    else:
        cluster.controllers[successor].signal(signal.SIGCONT)
        await cluster.took_over(successor)
    await reconfiguring(cluster, old)
    await group.rebuild()
    await rebuilt(cluster, old)
    await until(lambda: routed(cluster, {0, 1, 2}), timeout=10 * SCALED["coordinator_set_interval_sec"])
    assert Counter(apply["rank"] for apply in (await cluster.applies())[before:]) == told
    assert told <= Counter({0: 1, 2: 1})
    await cluster.start_standby(former)


async def routed(cluster: Cluster, ranks: set[int]) -> bool:
    """The Coordinator has just been told of exactly these ranks."""
    last = (await cluster.views())[-1]
    return last["event"] == "set" and view_ranks(last) == ranks


@pytest.mark.parametrize("point", ["after Persist DECIDING 1", "after Apply 2"])
async def test_a_leader_that_is_told_to_end_hands_over(start: Start, etcd: Etcd, point: str) -> None:
    """In a transaction, as in a rolling upgrade: it is taken back or carried to its end, and nothing is rebuilt."""
    async with FakeGroup(dp_size=3) as group:
        module = "tests.support.killed.controller"
        async with start(shape(group, etcd, controllers=2, controller_module=module)) as (cluster, _):
            old = await cluster.serving()
            cluster.signal_at(point, signal.SIGTERM)
            await cluster.inject("worker_kill", 1)
            assert await cluster.controllers[0].wait() == 0
            await cluster.took_over(1)
            assert (await scaled_down(cluster, [1])).instance_id == old.instance_id
            assert Counter(apply["rank"] for apply in await cluster.applies()) == Counter({0: 1, 2: 1})
            await completions_work(cluster)


@pytest.mark.parametrize("phase", ["DECIDING", "SCALING_DOWN"])
async def test_row_24_an_etcd_that_loses_its_leader_ends_no_transaction_badly(start: Start, phase: str) -> None:
    """Another member leads soon: the transaction completes, or nothing is left of it; nobody is told twice."""
    with Etcd(3) as etcd:
        async with FakeGroup(dp_size=3) as group, start(shape(group, etcd, proxied_pods=(0,))) as (cluster, _):
            old = await cluster.serving()
            cluster.proxies[0].delay(0.4)
            await cluster.inject("worker_kill", 1)
            await cluster.phase(phase)
            etcd.leader().kill()
            ended = await cluster.until(
                lambda i: i.phase == pb.PHASE_RECONFIGURING or (i.can_serve and list(i.dead_committed) == [1]), "ends"
            )
            cluster.proxies[0].heal()
            if ended.phase == pb.PHASE_RECONFIGURING:
                await group.rebuild()
                await rebuilt(cluster, old)
            else:
                await scaled_down(cluster, [1])
            told = Counter(apply["rank"] for apply in await cluster.applies())
            assert told <= Counter({0: 1, 2: 1})
            await completions_work(cluster)
