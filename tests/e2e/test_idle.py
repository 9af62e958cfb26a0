"""Row 2: engines that do not step notice nothing."""

from __future__ import annotations

from tests.e2e.checks import applied_once, completions_work, decided, renewed, scaled_down
from tests.e2e.conftest import Start, in_process
from tests.support.cluster import SCALED, Shape


async def test_row_02_a_rank_that_dies_while_idle_is_waited_for_and_then_the_instance_is_rebuilt(start: Start) -> None:
    """Survivors that stay HEALTHY: no transaction, nothing withdrawn, no apply before the collection is over."""
    async with in_process(Shape(pods=((0, 1),))) as shapes, start(*shapes) as (cluster, evidence):
        await evidence.stop_asking()
        await cluster.inject("idle")
        (old,) = await cluster.instances()
        await cluster.inject("worker_kill", 1)
        await decided(cluster, "wait: ")
        await renewed(cluster, old)
        assert await cluster.applies() == []
        states = [state for state in evidence.states if state["instance_id"] == str(old.instance_id)]
        assert {state["phase"] for state in states} == {"PHASE_NORMAL", "PHASE_RECONFIGURING"}
        gone = (await cluster.instances(deleted=True))[0]
        assert gone.generation == old.generation + 1, "of the rebuilding"
        assert "ranks [0] are neither UNHEALTHY nor DEAD, and the collection of 6 s is over" in gone.last_error
        assert [view["event"] for view in await cluster.views()].count("del") <= 1, "of the rebuilding"
        await completions_work(cluster)


async def test_row_02_with_idle_probe_one_completion_lets_the_survivors_notice(start: Start) -> None:
    """Then it is the scale-down of any other day: one apply, without the dead rank."""
    shape = Shape(fault_tolerance={**SCALED, "idle_probe": True})
    async with in_process(shape) as shapes, start(*shapes) as (cluster, evidence):
        await evidence.stop_asking()
        await cluster.inject("idle")
        await cluster.inject("worker_kill", 1)
        await scaled_down(cluster, [1])
        applied_once(await cluster.applies(), {0, 2, 3}, [1])
        await completions_work(cluster)
