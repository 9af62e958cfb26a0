"""Rows 13 to 16: broken hardware beside what the engines say of it."""

from __future__ import annotations

import pytest

from motor_ft.v1 import controller_pb2 as pb
from tests.e2e.checks import applied_once, completions_work, rebuilt, scaled_down
from tests.e2e.conftest import Start
from tests.support.cluster import SCALED, Cluster, Shape, even_pods
from tests.support.cluster.hardware import HardwareReporter
from tests.support.waiting import until

WAITS_LONG, WAITS_SHORT = 600.0, 1.0
"""Correlation windows, in seconds: one that ends a test that sits it out, and one to be sat out."""


def shape(window: float, ranks_per_pod: int = 1) -> Shape:
    """Two pods on two nodes; card and rank have the same number."""
    tolerance = {**SCALED, "hardware_ft_correlation_window_sec": window}
    return Shape(pods=even_pods(2, ranks_per_pod), fault_tolerance=tolerance)


async def reconfigured(cluster: Cluster, why: str) -> None:
    """The instance is rebuilt for this reason, and no engine was told anything."""
    old = (await cluster.instances())[0]
    await cluster.until(lambda i: i.phase == pb.PHASE_RECONFIGURING and why in i.last_error, f"is rebuilt: {why}")
    await rebuilt(cluster, old)
    assert await cluster.applies() == []
    await completions_work(cluster)


async def test_row_13_hardware_first_and_engines_that_notice_scale_down_by_the_engines(start: Start) -> None:
    """The wait is shown; then the software D makes the apply, though hardware and software D are not the same set."""
    async with start(shape(WAITS_LONG, ranks_per_pod=2)) as (cluster, _), HardwareReporter(cluster) as hardware:
        await hardware.breaks("Ascend910-1", pod=0, rank=1)
        waiting = (
            "wait: up to 600 s for engines to notice the hardware: L6 80E18402 on Ascend910-1 of node-0 (ranks [1])"
        )
        await cluster.until(lambda i: i.last_decision == waiting, "waits for the engines")
        await cluster.inject("worker_kill", 2)
        await cluster.inject("worker_kill", 1)
        instance = await scaled_down(cluster, [1, 2])
        applied_once(await cluster.applies(), {0, 3}, [1, 2])
        assert instance.instance_id == 1
        await completions_work(cluster)


async def test_row_14_hardware_first_and_silent_engines_end_in_a_rebuilt_instance(start: Start) -> None:
    """The replacement has the fault in its baseline, and serves."""
    async with start(shape(WAITS_SHORT)) as (cluster, _), HardwareReporter(cluster) as hardware:
        await hardware.breaks("Ascend910-1", pod=1, rank=1)
        await reconfigured(cluster, "no engine evidence matched the hardware within 1 s: L6 80E18402 on Ascend910-1")
        await quiet(cluster)
        assert [i.instance_id for i in await cluster.instances()] == [2]


async def test_row_15_hardware_of_a_removed_rank_is_handled_and_starts_nothing(start: Start) -> None:
    async with start(shape(WAITS_SHORT)) as (cluster, _), HardwareReporter(cluster) as hardware:
        await cluster.inject("worker_kill", 1)
        before = await scaled_down(cluster, [1])
        await hardware.breaks("Ascend910-1", pod=1, rank=1)
        await cluster.until(lambda i: "so handled: L6 80E18402 on Ascend910-1" in i.last_decision, "has it handled")
        await quiet(cluster)
        after = await scaled_down(cluster, [1])
        assert (after.instance_id, after.generation) == (before.instance_id, before.generation)


async def quiet(cluster: Cluster) -> None:
    """Longer than the short window passes: the Coordinator has got three periodic views."""
    seen = len(await cluster.views())
    await until(lambda: _more_views(cluster, seen + 3), timeout=20)


async def _more_views(cluster: Cluster, count: int) -> bool:
    return len(await cluster.views()) >= count


@pytest.mark.parametrize("cards", [["switch0"], ["Ascend910-1", "switch0"]], ids=["alone", "one of several"])
async def test_row_16_hardware_that_cannot_be_mapped_waits_for_nothing(start: Start, cards: list[str]) -> None:
    async with start(shape(WAITS_LONG)) as (cluster, _), HardwareReporter(cluster) as hardware:
        await hardware.breaks(*cards, pod=1)
        await reconfigured(cluster, "L6 80E18402 on switch0 of node-1 (no rank to be told)")


async def test_row_16_an_empty_card_name_is_every_rank_of_the_instance_on_the_node(start: Start) -> None:
    """One of them dead is no match; both are."""
    async with start(shape(WAITS_LONG, ranks_per_pod=2)) as (cluster, _), HardwareReporter(cluster) as hardware:
        await hardware.breaks("", pod=0)
        await cluster.until(lambda i: "the node of node-0 (ranks [0, 1])" in i.last_decision, "waits for the engines")
        await cluster.inject("worker_kill", 0)
        await cluster.inject("worker_kill", 1)
        await scaled_down(cluster, [0, 1])
        applied_once(await cluster.applies(), {2, 3}, [0, 1])
        await completions_work(cluster)
