"""What operators order is carried out, is seen, and outlives a Controller (protocol.md section 3)."""

import asyncio

import pytest

from controller.core.history import EventKind
from controller.core.phases import Phase
from controller.core.ports import Order
from controller.core.status import InstanceState, InstanceStatus
from motor_ft.model.command import OperatorCommand
from motor_ft.model.errors import FtError, Reason
from tests.support.world.adapters import Trouble
from tests.support.world.pods import TWO_PODS
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

REFUSED = FtError(Reason.GUARD_HELD, "somebody else holds the guard")
LONG = 3 * SETTINGS.fault_collection_timeout


async def ordered(world: World, order: Order, *, generation: int | None = None, instance_id: int = 1) -> InstanceStatus:
    """Ann orders something; returns the instance after it."""
    command = OperatorCommand(instance_id, f"r-{next(world.ids)}", "ann", "upgrade of node-1", generation)
    return await world.manager.order(order, command)


async def refused(world: World, order: Order, *, generation: int | None = None, instance_id: int = 1) -> FtError:
    with pytest.raises(FtError) as refusal:
        await ordered(world, order, generation=generation, instance_id=instance_id)
    return refusal.value


async def replaced(world: World) -> None:
    await world.until(lambda: world.can_serve(2) and world.status().state is InstanceState.DELETED)


def orders(world: World, instance_id: int = 1) -> list[str]:
    """What operators did, as the history tells it."""
    kinds = [EventKind.OPERATOR]
    page = world.controller.histories.page(instance_id, kinds, after=None, newest_first=False, size=100)
    return [event.text for event in page]


async def test_while_automation_is_paused_nothing_starts_and_resumed_it_acts_at_once() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        assert (await ordered(world, Order.PAUSE)).automation_paused
        await world.lose(1)
        await asyncio.sleep(30)
        assert world.controller.started == []
        assert world.status().automation_paused
        assert world.status().last_decision == "none: automation is paused by ann: upgrade of node-1"
        resumed = await ordered(world, Order.RESUME)
        assert (resumed.automation_paused, resumed.last_decision) == (False, "")
        await world.until(lambda: world.status().dead_committed == (1,) and world.can_serve(), timeout=1)
        assert orders(world) == [f"{order} by ann: upgrade of node-1" for order in (Order.PAUSE, Order.RESUME)]


async def test_a_pause_leaves_what_runs_to_its_end() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        hold = asyncio.Event()
        world.pod(1).hold["guard"] = hold.wait
        await world.lose(1)
        await world.until(lambda: world.controller.started)
        await ordered(world, Order.PAUSE)
        hold.set()
        await world.until(lambda: world.status().dead_committed == (1,) and world.can_serve())
        assert world.status().automation_paused


async def test_no_fallback_follows_what_fails_while_automation_is_paused() -> None:
    """The instance waits in RECONFIGURING, and is rebuilt when automation is resumed."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        hold = asyncio.Event()
        world.pod(1).hold["guard"], world.pod(2).refuses["guard"] = hold.wait, REFUSED
        await world.lose(1)
        await world.until(lambda: world.controller.started)
        await ordered(world, Order.PAUSE)
        hold.set()
        await asyncio.sleep(LONG)
        assert world.controller.started == ["dp_scale_down"]
        assert world.status().phase is Phase.RECONFIGURING
        assert (await ordered(world, Order.RESUME)).phase is Phase.RECONFIGURING
        await replaced(world)


async def test_a_pause_outlives_the_controller_and_so_does_its_end() -> None:
    """A failover in the middle of somebody's work must not set off a recovery."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        await ordered(world, Order.PAUSE)
        await world.kill()
        await world.restart()
        await world.lose(1)
        await asyncio.sleep(LONG)
        assert world.controller.started == []
        assert world.status().automation_paused
        await ordered(world, Order.RESUME)
        await world.kill()
        await world.restart()
        assert not world.status().automation_paused


async def test_a_reconfiguration_that_was_cut_short_is_not_taken_up_while_automation_is_paused() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        await world.lose(0, 1, 2, 3)
        await world.until(lambda: world.status().phase is Phase.RECONFIGURING)
        await ordered(world, Order.PAUSE)
        await world.kill()
        await world.restart(connect=False)
        await asyncio.sleep(LONG)
        assert world.controller.started == []
        explained = world.manager.explain(1)
        assert any(text.startswith("a reconfiguration is due, and held: INTERRUPTED") for text in explained.blockers)


async def test_a_pause_during_assembly_holds_from_the_first_fault_on() -> None:
    async with World(*TWO_PODS) as world:
        await world.pod(1).connect()
        await ordered(world, Order.PAUSE)
        await world.pod(2).connect()
        await world.until(world.can_serve)
        await world.lose(1)
        await asyncio.sleep(LONG)
        assert world.controller.started == []
        await world.kill()
        await world.restart()
        assert world.status().automation_paused


@pytest.mark.parametrize("trouble", [Trouble.NOT_WRITTEN, Trouble.ANSWER_LOST])
async def test_a_pause_that_may_not_be_stored_is_an_error_holds_anyhow_and_is_stored_later(trouble: Trouble) -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.store.script["identity"] = trouble
        assert (await refused(world, Order.PAUSE)).reason is Reason.STORE_UNAVAILABLE
        await asyncio.sleep(LONG)
        await world.kill()
        await world.restart()
        assert world.status().automation_paused


async def test_resuming_starts_a_failed_reconfiguration_again() -> None:
    """Nobody restarted the pods; now somebody does."""
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        await world.lose(0, 1, 2, 3)
        await world.until(lambda: world.status().automation_stopped)
        for pod in (world.pod(1), world.pod(2)):
            pod.boot()
        assert not (await ordered(world, Order.RESUME)).automation_stopped
        await world.until(lambda: len(world.controller.started) == 2)
        assert world.controller.started[-1] == "instance_reconfiguration"
        assert world.status().last_error.endswith(
            "automation was resumed by ann: upgrade of node-1, in phase RECONFIGURING"
        )
        await world.connect()
        await replaced(world)


async def test_an_operator_may_rebuild_an_instance_that_is_well() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await ordered(world, Order.RECONFIGURE, generation=1)
        await replaced(world)
        assert {reason for _, _, reason in world.stops} == {
            "RECONFIGURATION_REQUIRED: ordered by ann: upgrade of node-1"
        }
        assert orders(world) == ["reconfigure by ann: upgrade of node-1"]


async def test_a_rebuild_that_was_answered_outlives_the_controller() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        assert (await ordered(world, Order.RECONFIGURE)).phase is Phase.RECONFIGURING
        assert world.store.written[-1].phase is Phase.RECONFIGURING
        await world.kill()
        await world.restart()
        await replaced(world)


async def test_a_rebuild_that_cannot_be_begun_in_time_is_not_known_to_be_and_stands() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.store.script[Phase.RECONFIGURING] = Trouble.NEVER_WRITTEN
        assert (await refused(world, Order.RECONFIGURE)).reason is Reason.OUTCOME_UNKNOWN
        assert world.stops == []
        del world.store.script[Phase.RECONFIGURING]
        await replaced(world)


async def test_an_instance_serves_on_while_its_rebuild_waits_for_the_store() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.store.problem = "the disk is full"
        assert (await refused(world, Order.RECONFIGURE)).reason is Reason.OUTCOME_UNKNOWN
        assert world.can_serve()
        assert world.controller.started == []
        world.store.problem = ""
        world.manager.look_again()
        await replaced(world)


async def test_an_operator_may_rebuild_an_instance_whose_automation_is_paused_and_the_new_one_is_not() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await ordered(world, Order.PAUSE)
        await ordered(world, Order.RECONFIGURE)
        await replaced(world)
        assert not world.status(2).automation_paused


async def test_an_operator_may_rebuild_an_instance_whose_automation_has_stopped() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        await world.lose(0, 1, 2, 3)
        await world.until(lambda: world.status().automation_stopped)
        await ordered(world, Order.RECONFIGURE)
        await world.until(lambda: len(world.controller.started) == 2)


async def test_an_instance_never_has_two_strategies_not_even_by_order() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        hold = asyncio.Event()
        world.pod(1).hold["guard"] = hold.wait
        await world.lose(1)
        await world.until(lambda: world.controller.started)
        error = await refused(world, Order.RECONFIGURE)
        assert (error.reason, error.metadata) == (Reason.STRATEGY_RUNNING, {"strategy": "dp_scale_down"})
        hold.set()
        await world.until(lambda: world.status().dead_committed == (1,) and world.can_serve())
        assert orders(world) == []


@pytest.mark.parametrize("order", Order)
async def test_who_looked_at_an_older_generation_is_refused(order: Order) -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        error = await refused(world, order, generation=7)
        assert (error.reason, error.metadata) == (Reason.STALE_GENERATION, {"got": "7", "current": "1"})
        assert not world.status().automation_paused
        assert orders(world) == []


@pytest.mark.parametrize("order", Order)
async def test_an_instance_that_is_not_there_takes_no_orders(order: Order) -> None:
    """Neither one that never was, nor one that was replaced, nor one that is being forgotten."""
    async with World(*TWO_PODS) as world:
        assert (await refused(world, order)).reason is Reason.UNKNOWN_INSTANCE
        await world.serve()
        world.store.script["remove"] = Trouble.NOT_WRITTEN
        await ordered(world, Order.RECONFIGURE)
        await world.until(lambda: world.can_serve(2))
        assert (await refused(world, order)).reason is Reason.UNKNOWN_INSTANCE
        await replaced(world)
        assert (await refused(world, order)).reason is Reason.UNKNOWN_INSTANCE


async def test_what_never_served_cannot_be_rebuilt() -> None:
    async with World(*TWO_PODS) as world:
        await world.pod(1).connect()
        assert (await refused(world, Order.RECONFIGURE)).reason is Reason.NOT_READY


async def test_a_controller_that_hands_over_takes_no_order_that_it_would_not_carry_out() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.manager.drain(20)
        assert (await refused(world, Order.RECONFIGURE)).reason is Reason.SHUTTING_DOWN
        await ordered(world, Order.PAUSE)
        await world.kill()
        await world.restart()
        assert world.status().automation_paused


async def test_a_controller_that_ends_takes_no_orders() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.manager.close()
        assert (await refused(world, Order.PAUSE)).reason is Reason.SHUTTING_DOWN
