"""Feature off: the original strategies, and isolation that comes and goes with the hardware (recovery.md section 4)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from controller.core.phases import Phase
from motor_ft.model.hardware import FaultLevel
from motor_ft.model.topology import Role
from tests.support.world.hardware import FakeAdapter, card, with_cards
from tests.support.world.pods import TWO_PODS, D, U
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

OFF = replace(SETTINGS, enable_dp_scale_down=False, enable_engine_relaunch=False, enable_scale_p2d=False)
ALL_OFF = replace(OFF, enable_fault_tolerance=False, enable_dp_scale_down=True)
LONG = 3 * SETTINGS.fault_collection_timeout


@asynccontextmanager
async def serving(settings: object = OFF, role: Role = Role.UNION) -> AsyncIterator[tuple[World, FakeAdapter]]:
    pods = [replace(with_cards(pod), role=role) for pod in TWO_PODS]
    async with World(*pods, settings=OFF if settings is OFF else ALL_OFF) as world:
        adapter = FakeAdapter(world)
        await adapter.connect()
        await world.serve()
        yield world, adapter


def events(world: World) -> list[str]:
    """What the Coordinator was told of instance 1, without repeats."""
    told = [event for event, instance_id, _ in world.coordinator.sent if instance_id == 1]
    return [event for event, before in zip(told, ["", *told], strict=False) if event != before]


@pytest.mark.parametrize("settings", [OFF, ALL_OFF], ids=["no scale-down", "no fault tolerance"])
@pytest.mark.parametrize("status", [U, D])
async def test_faulty_engines_are_rebuilt_at_once_without_any_transaction(settings: object, status: object) -> None:
    """Relaunch is switched off. One rank is enough, and nothing but Stop is commanded."""
    async with serving(settings) as (world, _):
        assert world.status().phase is Phase.DISABLED
        start = world.clock.now()
        await world.see(1, status)  # type: ignore[arg-type]
        await world.until(lambda: world.controller.started)
        assert world.clock.now() - start < 0.5
        await world.until(lambda: world.can_serve(2))
        assert world.controller.started == ["instance_reconfiguration"]
        assert {method for method, _ in world.calls()} == {"stop"}


@pytest.mark.parametrize("level", [FaultLevel.L1, FaultLevel.L2, FaultLevel.L3])
async def test_up_to_l3_nothing_happens(level: FaultLevel) -> None:
    async with serving() as (world, adapter):
        await adapter.tell(card(1, 1, level=level))
        await asyncio.sleep(LONG)
        assert world.can_serve()
        assert world.calls() == []


@pytest.mark.parametrize("level", [FaultLevel.L4, FaultLevel.L5, FaultLevel.L6])
@pytest.mark.parametrize("mapped", [True, False])
async def test_l4_and_above_isolates_while_it_stands_and_no_longer(level: FaultLevel, mapped: bool) -> None:
    async with serving() as (world, adapter):
        fault = card(1, 1, level=level, name=None if mapped else "switch0")
        await adapter.tell(fault)
        await world.until(lambda: world.coordinator.ranks() == set())
        assert not world.can_serve()
        assert world.status().last_decision.startswith("none: isolated while the hardware has ")
        await asyncio.sleep(LONG)
        assert world.coordinator.ranks() == set()
        await adapter.clear(fault)
        await world.until(world.can_serve)
        assert world.coordinator.ranks() == {0, 1, 2, 3}
        assert world.calls() == []
        assert world.controller.started == []


async def test_of_two_faults_the_last_that_clears_ends_the_isolation() -> None:
    async with serving() as (world, adapter):
        first, second = card(1, 1), card(2, 2, level=FaultLevel.L4)
        await adapter.tell(first, second)
        await world.until(lambda: world.coordinator.ranks() == set())
        await adapter.clear(first)
        await asyncio.sleep(LONG)
        assert world.coordinator.ranks() == set()
        await adapter.clear(second)
        await world.until(world.can_serve)


async def test_a_coordinator_that_is_away_learns_of_the_isolation_when_it_is_back() -> None:
    """Nothing waits for it meanwhile, and an isolation that is over by then leaves no trace."""
    async with serving() as (world, adapter):
        world.coordinator.up.clear()
        await adapter.tell(card(1, 1))
        await asyncio.sleep(LONG)
        world.coordinator.up.set()
        world.controller.publisher.kick()
        assert world.coordinator.ranks() == set()
        await adapter.clear(card(1, 1))
        await world.until(world.can_serve)


async def test_links_that_are_down_stop_every_pod_where_the_policy_counts_them() -> None:
    async with serving() as (world, adapter):
        await adapter.tell(card(1, 1, code="81078603"))
        await world.until(lambda: world.can_serve(2))
        assert sorted(address for address, _, _ in world.stops) == ["10.0.0.1:9000", "10.0.0.2:9000"]
        assert {reason for _, _, reason in world.stops} == {
            "RECONFIGURATION_REQUIRED: network links are down: L6 81078603 on Ascend910-1 of node-1 (ranks [1])"
        }


async def test_an_isolated_instance_is_isolated_again_after_a_restart_of_the_controller() -> None:
    async with serving() as (world, adapter):
        await adapter.tell(card(1, 1))
        await world.until(lambda: world.coordinator.ranks() == set())
        await world.kill()
        await world.restart()
        await FakeAdapter(world).connect(card(1, 1))
        await asyncio.sleep(LONG)
        assert world.coordinator.ranks() == set()
        assert world.controller.started == []
