"""Rows 13 to 16: broken hardware beside what the engines say of it, from a ConfigMap or ClusterD to the engines."""

from __future__ import annotations

from tests.e2e.checks import applied_once, completions_work, decided, rebuilt, scaled_down
from tests.e2e.conftest import Start
from tests.support.cluster import SCALED, Cluster, Deployment, Shape
from tests.support.cluster.hardware import Hardware
from tests.support.waiting import until

WAITS_LONG, WAITS_SHORT = 600.0, 1.0
"""Correlation windows, in seconds: one that ends a test that sits it out, and one to be sat out."""


def shape(window: float, *pods: tuple[int, ...], job: str = "demo", first_card: int = 0) -> Shape:
    """Pod and node have the same number, and the first job's ranks and cards too."""
    tolerance = {**SCALED, "hardware_ft_correlation_window_sec": window}
    return Shape(pods=pods, fault_tolerance=tolerance, job=job, first_card=first_card)


async def reconfigured(deployment: Deployment, why: str) -> None:
    """Its first instance was rebuilt for this reason, and no engine was told anything."""
    first = (await deployment.instances(deleted=True))[0]
    await rebuilt(deployment, first)
    assert why in (await deployment.instances(deleted=True))[0].last_error
    assert await deployment.applies() == []


async def quiet(cluster: Cluster) -> None:
    """Longer than the short window passes: the Coordinator has got three periodic views."""
    seen = len(await cluster.views())
    await until(lambda: _more_views(cluster, seen + 3), timeout=20)


async def _more_views(cluster: Cluster, count: int) -> bool:
    return len(await cluster.views()) >= count


async def test_row_13_hardware_first_and_engines_that_notice_scale_down_by_the_engines(start: Start) -> None:
    """The wait is shown; then the software D makes the apply, though hardware and software D are not the same set."""
    async with start(shape(WAITS_LONG, (0, 1), (2, 3))) as (cluster, _), Hardware(cluster) as hardware:
        hardware.breaks("Ascend910-1", node=0)
        await decided(
            cluster,
            "wait: up to 600 s for engines to notice the hardware: L6 80E18402 on Ascend910-1 of node-0 (ranks [1])",
        )
        await cluster.inject("worker_kill", 2)
        await cluster.inject("worker_kill", 1)
        instance = await scaled_down(cluster, [1, 2])
        applied_once(await cluster.applies(), {0, 3}, [1, 2])
        assert instance.instance_id == 1
        await completions_work(cluster)


async def test_row_14_hardware_first_and_silent_engines_end_in_a_rebuilt_instance(start: Start) -> None:
    """The replacement has the fault, which ClusterD told, in its baseline, and serves."""
    async with start(shape(WAITS_SHORT, (0, 1))) as (cluster, _), Hardware(cluster) as hardware:
        hardware.told_by_clusterd(1, node=0)
        await reconfigured(cluster, "no engine evidence matched the hardware within 1 s: L6 80E18402 on npu-1")
        await quiet(cluster)
        assert [i.instance_id for i in await cluster.instances()] == [2]
        await completions_work(cluster)


async def test_row_15_hardware_of_a_removed_rank_is_handled_and_starts_nothing(start: Start) -> None:
    async with start(shape(WAITS_SHORT, (0, 1))) as (cluster, _), Hardware(cluster) as hardware:
        await cluster.inject("worker_kill", 1)
        before = await scaled_down(cluster, [1])
        hardware.breaks("Ascend910-1", node=0)
        await decided(cluster, "so handled: L6 80E18402 on Ascend910-1")
        await quiet(cluster)
        after = await scaled_down(cluster, [1])
        assert (after.instance_id, after.generation) == (before.instance_id, before.generation)


async def test_row_16_hardware_that_cannot_be_mapped_waits_for_nothing(start: Start) -> None:
    """Alone, or as one of several; the card of one instance is none of the other's."""
    first, second = shape(WAITS_LONG, (0, 1)), shape(WAITS_LONG, (0, 1), job="second", first_card=4)
    async with start(first, second) as (cluster, _), Hardware(cluster) as hardware:
        hardware.breaks("Ascend910-1", "switch0", node=0)
        for deployment in cluster.deployments:
            await reconfigured(deployment, "L6 80E18402 on switch0 of node-0 (no rank to be told)")
        await completions_work(cluster)


async def test_row_16_a_node_that_is_not_ready_is_every_rank_of_the_instance_on_it(start: Start) -> None:
    """One of them dead is no match; both are."""
    async with start(shape(WAITS_LONG, (0, 1), (2,))) as (cluster, _), Hardware(cluster) as hardware:
        hardware.ready(0, is_ready=False)
        await decided(cluster, "the node of node-0 (ranks [0, 1])")
        await cluster.inject("worker_kill", 0)
        await cluster.inject("worker_kill", 1)
        await scaled_down(cluster, [0, 1])
        applied_once(await cluster.applies(), {2}, [0, 1])
        await completions_work(cluster)
