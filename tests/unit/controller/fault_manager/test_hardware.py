"""Hardware faults from their adapter to what becomes of the instance (RFC section 4.4, rows 13 to 16 of section 8)."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from controller.core.reports import AdapterHello, Directive
from controller.core.status import InstanceState
from controller.fault_manager.concerns import Concerns
from controller.fault_manager.environment import Settings
from controller.fault_manager.hardware import MAX_FAULTS_PER_NODE
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.hardware import FaultLevel, HardwareFault
from motor_ft.model.topology import EndpointStatus, Registration
from tests.support.world.hardware import STARTING, FakeAdapter, card, with_cards
from tests.support.world.pods import TWO_PODS, D, H, U, registration
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

PODS = tuple(map(with_cards, TWO_PODS))
"""Ranks and cards 0 and 1 on node-1, 2 and 3 on node-2."""
WINDOW = SETTINGS.correlation_window


@asynccontextmanager
async def serving(
    *pods: Registration, faults: tuple[HardwareFault, ...] = (), settings: Settings = SETTINGS
) -> AsyncIterator[tuple[World, FakeAdapter]]:
    """Instance 1 serves, and an adapter that works knew these faults before."""
    async with World(*(pods or PODS), settings=settings) as world:
        adapter = FakeAdapter(world)
        await adapter.connect(*faults)
        await world.serve()
        yield world, adapter


def now() -> float:
    return asyncio.get_running_loop().time()


async def scaled_down(world: World, *dead: int) -> None:
    """The survivors of ``dead`` serve, and one apply named exactly these ranks."""
    await world.until(lambda: world.status().dead_committed == dead and world.can_serve())
    assert {removed for told in world.applies().values() for _, removed in told} == {dead}


async def replaced(world: World) -> None:
    """Instance 1 was reconfigured without any scale-down; instance 2 serves."""
    await world.until(lambda: world.can_serve(2))
    assert world.controller.started == ["instance_reconfiguration"]


async def unmoved(world: World, instance_id: int = 1) -> None:
    """Nothing starts, however long one waits."""
    await asyncio.sleep(10 * WINDOW)
    assert world.controller.started == []
    assert world.can_serve(instance_id)


def why_stopped(world: World) -> str:
    """What the pods of instance 1 were told."""
    (reason,) = {reason for _, _, reason in world.stops}
    return reason


async def begun(world: World) -> float:
    """When the first strategy starts."""
    await world.until(lambda: world.controller.started)
    return now()


async def test_row_13_engines_that_notice_in_time_are_scaled_down_by_what_they_say() -> None:
    """The D of the engines makes the apply, not the card; afterwards the fault is handled."""
    async with serving() as (world, adapter):
        await adapter.tell(card(1, 1))
        await asyncio.sleep(WINDOW - 0.1)
        await world.lose(1, 2)
        await scaled_down(world, 1, 2)
        await asyncio.sleep(10 * WINDOW)
        assert world.controller.started == ["dp_scale_down"]
        assert "so handled: L6 80E18402 on Ascend910-1 of node-1 (ranks [1])" in world.status().last_decision


async def test_row_13_the_wait_is_shown_with_faults_and_ranks_and_the_pods_watch_closely() -> None:
    async with serving() as (world, adapter):
        await adapter.tell(card(1, 1))
        await world.until(lambda: world.status().last_decision.startswith("wait: "))
        assert "L6 80E18402 on Ascend910-1 of node-1 (ranks [1])" in world.status().last_decision
        assert all(
            any(isinstance(said, Directive) and said.fast_poll for said in pod.heard) for pod in world.pods.values()
        )


async def abnormal(world: World, *ranks: int) -> None:
    """Their pods say so with a heartbeat, and from then on."""
    for rank in ranks:
        pod = world.owner(rank)
        pod.normal[rank] = EndpointStatus.ABNORMAL
        await pod.beat()


@pytest.mark.parametrize("engines_at", [None, 0.0, 0.5, WINDOW - 0.1])
@pytest.mark.parametrize("heartbeat_at", [-WINDOW + 0.1, 0.0, 0.2])
async def test_row_13_a_heartbeat_around_the_hardware_decides_nothing(
    heartbeat_at: float, engines_at: float | None
) -> None:
    """The card takes its engine with it: a heartbeat may say so before or after the adapter does."""
    async with serving() as (world, adapter):
        if heartbeat_at < 0.0:
            await abnormal(world, 1)
            await asyncio.sleep(-heartbeat_at)
        start = now()
        await adapter.tell(card(1, 1))
        if heartbeat_at >= 0.0:
            await asyncio.sleep(heartbeat_at)
            await abnormal(world, 1)
        if engines_at is None:
            assert await begun(world) - start == pytest.approx(WINDOW, abs=0.5)
            await replaced(world)
        else:
            await asyncio.sleep(start + engines_at - now())
            await world.lose(1)
            await scaled_down(world, 1)


async def test_row_13_the_heartbeat_may_also_be_before_engines_that_come_before_the_hardware() -> None:
    """Their collection is longer than the window; it goes on whatever the hardware says meanwhile."""
    async with serving() as (world, adapter):
        await abnormal(world, 1)
        await asyncio.sleep(1)
        await world.see(1, D)
        await asyncio.sleep(2 * WINDOW)
        await adapter.tell(card(1, 1))
        await asyncio.sleep(2 * WINDOW)
        await world.lose(1)
        await scaled_down(world, 1)


@pytest.mark.parametrize("engines", ["nothing", "U and D elsewhere", "too late"])
async def test_row_14_without_a_match_the_instance_is_rebuilt_when_the_window_is_over(engines: str) -> None:
    async with serving() as (world, adapter):
        await adapter.tell(card(1, 1))
        start = now()
        if engines == "U and D elsewhere":
            await asyncio.sleep(1)
            await world.lose(2)
        if engines == "too late":
            await asyncio.sleep(WINDOW)
            await world.lose(1)
        at = await begun(world)
        assert WINDOW <= at - start < WINDOW + 0.5
        await replaced(world)
        assert f"no engine evidence matched the hardware within {WINDOW:g} s: L6 80E18402" in why_stopped(world)


async def test_engines_first_are_judged_at_once_whatever_the_hardware() -> None:
    async with serving() as (world, adapter):
        await world.see(0, U)
        await adapter.tell(card(2, 2))
        await world.lose(1)
        await scaled_down(world, 1)


async def test_hardware_that_a_scale_down_did_not_remove_is_judged_when_it_has_ended() -> None:
    """Engines lose rank 1, the card of rank 2 breaks meanwhile: what is left cannot go on with it."""
    async with serving() as (world, adapter):
        world.pod(1).hold["commit"] = lambda: adapter.tell(card(2, 2))
        await world.lose(1)
        await scaled_down(world, 1)
        start = now()
        await world.until(lambda: len(world.controller.started) == 2)
        assert WINDOW - 0.5 <= now() - start < WINDOW + 0.5
        await world.until(lambda: world.can_serve(2))
        assert world.controller.started == ["dp_scale_down", "instance_reconfiguration"]


async def test_row_15_hardware_of_a_removed_rank_is_handled() -> None:
    async with serving() as (world, adapter):
        await world.lose(1)
        await scaled_down(world, 1)
        await adapter.tell(card(1, 1))
        await asyncio.sleep(10 * WINDOW)
        assert world.controller.started == ["dp_scale_down"]
        assert "so handled: " in world.status().last_decision
        assert world.can_serve()


@pytest.mark.parametrize("also_mapped", [False, True])
async def test_row_16_a_card_that_cannot_be_mapped_waits_for_nothing(also_mapped: bool) -> None:
    async with serving() as (world, adapter):
        start = now()
        await adapter.tell(*([card(1, 1)] if also_mapped else []), card(None, 1, name="switch0", code="1"))
        assert await begun(world) - start < 0.5
        await replaced(world)
        assert "switch0 of node-1 (no rank to be told)" in why_stopped(world)


async def test_row_16_an_empty_card_name_is_every_rank_of_the_instance_on_the_node() -> None:
    async with serving() as (world, adapter):
        await adapter.tell(card(None, 1))
        await asyncio.sleep(1)
        await world.lose(0, 1)
        await scaled_down(world, 0, 1)


async def test_row_16_not_all_ranks_of_the_node_dead_is_no_match() -> None:
    async with serving() as (world, adapter):
        await adapter.tell(card(None, 1))
        await asyncio.sleep(1)
        await world.lose(1)
        await replaced(world)


@pytest.mark.parametrize("ready_again", [False, True])
async def test_hardware_of_an_instance_that_is_not_active_waits_for_nothing(ready_again: bool) -> None:
    """From one window after it has left ACTIVE on; who was ACTIVE since then begins anew."""
    async with serving() as (world, adapter):
        await abnormal(world, 1)
        await asyncio.sleep(WINDOW)
        assert world.status().state is InstanceState.INACTIVE
        if ready_again:
            world.pod(1).normal.clear()
            await world.pod(1).beat()
            await asyncio.sleep(0)
            await abnormal(world, 1)
        start = now()
        await adapter.tell(card(1, 1))
        assert await begun(world) - start == pytest.approx(WINDOW if ready_again else 0.0, abs=0.5)


@pytest.mark.parametrize(
    "fault",
    [card(7, 1), card(1, 3), card(1, 1, level=FaultLevel.L3)],
    ids=["another card", "another node", "L3"],
)
async def test_a_fault_that_is_not_ours_or_not_grave_starts_nothing(fault: HardwareFault) -> None:
    async with serving() as (world, adapter):
        await adapter.tell(fault)
        await unmoved(world)


async def test_of_two_instances_on_one_node_only_the_one_with_the_card_is_touched() -> None:
    first = with_cards(registration(1, [0, 1], job="job-1", dp_size=2))
    second = replace(registration(2, [0, 1], job="job-2", dp_size=2), node_name="node-1")
    endpoints = [
        replace(end, devices=(replace(own.devices[0], device_id=f"{8 + own.rank}"),))
        for end, own in zip(second.endpoints, first.endpoints, strict=True)
    ]
    second = replace(second, endpoints=tuple(endpoints))
    async with serving(first, second) as (world, adapter):
        await world.until(lambda: world.can_serve(2))
        await adapter.tell(card(8, 1))
        await world.until(lambda: world.can_serve(3))
        assert world.status(3).job_name == "job-2"
        assert world.can_serve(1)
        assert world.controller.started == ["instance_reconfiguration"]


async def test_what_was_there_at_ready_starts_nothing_until_it_clears_and_returns() -> None:
    """The replacement of a rebuilt instance gets a baseline of its own."""
    async with serving(faults=(card(1, 1),)) as (world, adapter):
        await unmoved(world)
        await adapter.clear(card(1, 1))
        await adapter.tell(card(1, 1))
        await replaced(world)
        await asyncio.sleep(10 * WINDOW)
        assert world.controller.started == ["instance_reconfiguration"]
        assert world.can_serve(2)


async def test_the_baseline_is_kept_across_a_restart_of_the_controller() -> None:
    """Also when the adapter comes later, and its sources later still; what breaks after that is new."""
    async with serving(faults=(card(1, 1), card(2, 2))) as (world, _):
        await world.kill()
        await world.restart()
        await world.until(world.can_serve)
        adapter = FakeAdapter(world)
        await adapter.connect(sources=[STARTING])
        await asyncio.sleep(1)
        await adapter.snapshot(card(1, 1))
        await unmoved(world)
        await adapter.tell(card(2, 2))
        await replaced(world)


async def test_a_baseline_fault_that_cleared_is_new_for_the_next_controller_too() -> None:
    async with serving(faults=(card(1, 1),)) as (world, adapter):
        await adapter.clear(card(1, 1))
        await asyncio.sleep(1)
        await world.kill()
        await world.restart()
        await FakeAdapter(world).connect(card(1, 1))
        await world.until(lambda: world.can_serve(2))


async def test_snapshots_of_one_failover_count_as_simultaneous_so_the_engines_decide() -> None:
    """The adapter is heard first and one pod takes longer than the window."""
    async with serving() as (world, _):
        await world.kill()
        await world.restart(connect=False)
        for rank in range(4):
            world.engine(rank).status = D if rank == 1 else U
        await FakeAdapter(world).connect(card(1, 1))
        await asyncio.sleep(1)
        await world.pod(1).connect()
        await asyncio.sleep(WINDOW + 1)
        await world.pod(2).connect()
        await scaled_down(world, 1)


@pytest.mark.parametrize("noticed", [True, False])
async def test_a_failover_makes_no_other_strategy_of_endpoints_that_are_abnormal(noticed: bool) -> None:
    """The next Controller has never seen the instance ACTIVE; that alone is not what RFC section 4.2 means."""
    async with serving() as (world, _):
        await world.kill()
        for rank in range(4):
            world.owner(rank).normal[rank] = EndpointStatus.ABNORMAL
            world.engine(rank).status = (D if rank == 1 else U) if noticed else H
        await world.restart(connect=False)
        await FakeAdapter(world).connect(card(1, 1))
        await world.pod(1).connect()
        await asyncio.sleep(WINDOW + 1)
        await world.pod(2).connect()
        if noticed:
            await scaled_down(world, 1)
        else:
            start = now()
            assert await begun(world) - start == pytest.approx(WINDOW, abs=0.5)
            await replaced(world)


async def test_an_adapter_that_is_gone_leaves_its_faults_and_is_missed() -> None:
    async with serving() as (world, adapter):
        await adapter.tell(card(1, 1))
        adapter.disconnect()
        assert world.observed.hardware_known == (0, 1, 1)
        await replaced(world)
        await world.until(lambda: "adapter adapter is gone, its faults are kept" in world.status(2).last_decision)
        await adapter.connect(card(1, 1))
        assert world.observed.hardware_known == (1, 0, 1)
        await world.until(lambda: "degraded" not in world.status(2).last_decision)


async def test_an_adapter_that_comes_back_under_another_name_leaves_nothing_behind() -> None:
    """Else what was there once could never be new again."""
    async with serving(faults=(card(1, 1),)) as (world, adapter):
        adapter.disconnect()
        successor = FakeAdapter(world, "another name")
        await successor.connect()
        assert world.observed.hardware_known == (1, 0, 0)
        await successor.tell(card(1, 1))
        await replaced(world)


async def test_an_adapter_that_starts_again_does_not_make_old_faults_new() -> None:
    """Its sources have not answered yet: what they said before is kept, so nothing clears and returns."""
    async with serving(faults=(card(1, 1),)) as (world, adapter):
        await adapter.restart(sources=[STARTING])
        await world.until(lambda: "cm-device: has not answered yet" in world.status().last_decision)
        await adapter.snapshot(card(1, 1))
        await unmoved(world)
        assert world.observed.hardware_known == (1, 0, 1)


async def test_a_pod_that_registers_anew_may_name_another_node() -> None:
    async with serving() as (world, adapter):
        await adapter.tell(card(1, 9))
        pod = world.pod(1)
        pod.registration = replace(pod.registration, node_name="node-9")
        await pod.connect()
        await replaced(world)
        assert "on Ascend910-1 of node-9 (ranks [1])" in why_stopped(world)


def watchers() -> int:
    """Those that are left in this process, also of other tests."""
    gc.collect()
    return sum(type(each) is Concerns for each in gc.get_objects())


async def test_an_instance_that_is_gone_is_not_told_any_more() -> None:
    before = watchers()
    async with serving() as (world, adapter):
        await adapter.tell(card(1, 1))
        await replaced(world)
        await world.until(lambda: world.status().state is InstanceState.DELETED)
        assert watchers() == before + 1


async def test_an_adapter_that_has_followed_a_later_term_raises_the_epoch_above_it() -> None:
    """So has one that has heard ours from somebody else; one that heard it from us changes nothing."""
    async with serving() as (world, _):
        epoch = world.manager.epoch
        await world.manager.attach_adapter(AdapterHello("adapter", "adapter#1", 1, epoch))
        assert world.manager.epoch == epoch
        await world.manager.attach_adapter(AdapterHello("stranger", "stranger#1", 1, epoch))
        assert world.manager.epoch == epoch + 1
        later = await world.manager.attach_adapter(AdapterHello("adapter", "adapter#1", 1, 50))
        assert later.welcome.controller_epoch == world.manager.epoch == 51


async def test_a_controller_that_ends_takes_no_adapter() -> None:
    async with serving() as (world, adapter):
        await world.manager.close()
        with pytest.raises(FtError) as refused:
            await adapter.connect()
        assert refused.value.reason is Reason.SHUTTING_DOWN


async def test_a_fault_that_clears_while_it_is_waited_for_ends_the_wait() -> None:
    async with serving() as (world, adapter):
        await adapter.tell(card(1, 1))
        await asyncio.sleep(WINDOW - 1)
        await adapter.snapshot()
        await unmoved(world)


async def test_two_instances_recover_side_by_side_one_from_hardware() -> None:
    first = [with_cards(registration(number, [number - 1], job="job-1", dp_size=2)) for number in (1, 2)]
    second = [with_cards(registration(number, [number - 3], job="job-2", dp_size=2)) for number in (3, 4)]
    async with serving(*first, *second) as (world, adapter):
        await world.until(lambda: world.can_serve(2))
        await adapter.tell(card(0, 1), card(0, 3))
        await world.pod(1).see(0, D)
        await world.pod(2).see(1, U)
        await scaled_down(world, 0)
        await world.until(lambda: world.can_serve(3))
        assert world.status(3).job_name == "job-2"


async def test_a_storm_from_one_adapter_neither_grows_nor_delays_another_instance() -> None:
    """10,000 reports, duplicates included: what is no node's real state is refused, the rest is in."""
    first = [with_cards(registration(number, [number - 1], job="job-1", dp_size=2)) for number in (1, 2)]
    second = [with_cards(registration(number, [number - 3], job="job-2", dp_size=2)) for number in (3, 4)]
    async with serving(*first, *second) as (world, adapter):
        await world.until(lambda: world.can_serve(2))
        refusals: list[Reason] = []
        for number in range(10_000):
            try:
                await adapter.tell(card(1, 3, code=f"{number % 5000:X}A", level=FaultLevel.L2))
            except FtError as error:
                refusals.append(error.reason)
        assert refusals == [Reason.OVERLOADED] * (10_000 - 2 * MAX_FAULTS_PER_NODE)
        assert world.observed.hardware_known[2] == MAX_FAULTS_PER_NODE
        await world.pod(1).see(0, D)
        await world.pod(2).see(1, U)
        await scaled_down(world, 0)
        assert world.can_serve(2)


async def test_a_rank_that_recovers_leaves_the_hardware_to_its_window() -> None:
    async with serving() as (world, adapter):
        await adapter.tell(card(1, 1))
        start = now()
        await asyncio.sleep(1)
        await world.see(0, U)
        await world.see(0, H)
        assert WINDOW <= await begun(world) - start < WINDOW + 0.5
