"""Rows 6, 7 and 8: what becomes of a pod when its ranks are removed one after the other."""

from __future__ import annotations

from motor_ft.v1 import controller_pb2 as pb
from tests.e2e.checks import completions_work, refreshed, scaled_down
from tests.e2e.conftest import Start, in_process
from tests.support.cluster import SCALED, Cluster, Shape
from tests.support.waiting import until

SCALE_UP = {**SCALED, "enable_dp_scale_up": True}
LONGER_THAN_ANY_TTL = 5
"""SETs, one a second; a pod that does not beat is missed after three seconds."""


async def empty_pod_1(cluster: Cluster) -> pb.Instance:
    """Ranks 2 and 3, all of pod 1, are removed."""
    await cluster.inject("worker_kill", 2)
    await scaled_down(cluster, [2])
    await cluster.inject("worker_kill", 3)
    return await scaled_down(cluster, [2, 3])


async def goes_on(cluster: Cluster, before: pb.Instance) -> None:
    """The same instance serves without a change for longer than a heartbeat may be late."""
    await refreshed(cluster, LONGER_THAN_ANY_TTL)
    now = next(i for i in await cluster.instances() if i.instance_id == before.instance_id)
    assert (now.phase, now.state) == (pb.PHASE_SCALED_DOWN_RUNNING, pb.INSTANCE_STATE_ACTIVE)
    assert (now.generation, now.last_error, now.can_serve) == (before.generation, "", True)
    await completions_work(cluster)


async def test_row_06_a_pod_that_still_has_a_rank_is_not_stopped(start: Start) -> None:
    """Also where emptied pods are."""
    async with in_process(Shape(fault_tolerance=SCALE_UP)) as shapes, start(*shapes) as (cluster, _):
        await cluster.inject("worker_kill", 2)
        await goes_on(cluster, await scaled_down(cluster, [2]))
        assert [pod.stops for pod in cluster.pods] == [[], []]


async def test_row_07_an_emptied_pod_stays_without_scale_up(start: Start) -> None:
    """No stop; its heartbeats with an empty set are taken, and its NodeManager does not give itself up."""
    async with in_process(Shape()) as shapes, start(*shapes) as (cluster, _):
        emptied = await empty_pod_1(cluster)
        await goes_on(cluster, emptied)
        assert [pod.stops for pod in cluster.pods] == [[], []]
        (instance,) = await cluster.instances()
        assert [pod.connected for pod in instance.pods] == [True, True]
        assert "report rejected" not in (cluster.folder / "pod-1.log").read_text()


async def test_row_08_an_emptied_pod_is_stopped_once_with_scale_up(start: Start) -> None:
    """What is started in its place waits for a new instance; this one goes on without it."""
    async with in_process(Shape(fault_tolerance=SCALE_UP)) as shapes, start(*shapes) as (cluster, _):
        emptied = await empty_pod_1(cluster)
        await until(lambda: cluster.pods[1].starts == 2, timeout=30)
        waiting = await cluster.until(lambda i: i.instance_id > emptied.instance_id and len(i.pods) == 1, "waits")
        await goes_on(cluster, emptied)
        assert waiting.state == pb.INSTANCE_STATE_INITIAL
        assert [len(pod.stops) for pod in cluster.pods] == [0, 1]
        assert cluster.pods[1].stops[0].exit_code == 0


async def test_row_08_a_stop_that_is_lost_changes_nothing_and_is_not_repeated(start: Start) -> None:
    """The pod cannot be reached any more when the Stop is on its way."""
    slow = {"request_timeout_sec": 4.0, "poll_interval_sec": 0.2, "execution_deadline_sec": 6.0}
    shape = Shape(proxied_pods=(1,), fault_tolerance={**SCALE_UP, "dp_scale_down_config": slow})
    async with in_process(shape) as shapes, start(*shapes) as (cluster, _):
        await cluster.inject("worker_kill", 2)
        await scaled_down(cluster, [2])
        cluster.proxies[1].delay(1.5, ["up"])
        await cluster.inject("worker_kill", 3)
        await cluster.until(lambda i: 3 in i.dead_committed, "has committed both")
        cluster.proxies[1].cut()
        await goes_on(cluster, await scaled_down(cluster, [2, 3]))
        assert [pod.stops for pod in cluster.pods] == [[], []]
