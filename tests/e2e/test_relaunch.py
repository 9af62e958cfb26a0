"""Row 20, the original strategies: with DP scale-down off, engines that fail are started anew in place, or rebuilt."""

from __future__ import annotations

from motor_ft.v1 import controller_pb2 as pb
from tests.e2e.checks import completions_work
from tests.e2e.conftest import Start
from tests.support.cluster import SCALED, Cluster, Shape

OFF = {**SCALED, "enable_dp_scale_down": False, "engine_relaunch_poll_interval_sec": 0.5}


def engines(instance: pb.Instance) -> dict[int, str]:
    """The incarnation of every rank's engine."""
    return {endpoint.dp_rank: endpoint.engine_incarnation for pod in instance.pods for endpoint in pod.endpoints}


async def relaunched(cluster: Cluster, before: pb.Instance) -> pb.Instance:
    """The same instance serves again, with new engines."""
    after = await cluster.until(lambda i: i.can_serve and i.generation > before.generation, "serves again")
    assert (after.instance_id, after.generation) == (before.instance_id, before.generation + 1)
    assert engines(after).keys() == engines(before).keys() == {0, 1, 2, 3}
    assert not set(engines(after).values()) & set(engines(before).values())
    assert (after.phase, list(after.dead_committed), after.last_error) == (pb.PHASE_DISABLED, [], "")
    await completions_work(cluster)
    return after


async def test_row_20_a_dead_worker_relaunches_all_engines_in_place(start: Start) -> None:
    """In the same pods, on their old ports; a second time too."""
    async with start(Shape(fault_tolerance=OFF)) as (cluster, _):
        before = (await cluster.instances())[0]
        await cluster.inject("worker_kill", 1)
        after = await relaunched(cluster, before)
        await cluster.inject("worker_kill", 2)
        await relaunched(cluster, after)
        assert all(len(pod.records) == 1 for pod in cluster.pods), "no pod has started again"
        assert await cluster.applies() == []
