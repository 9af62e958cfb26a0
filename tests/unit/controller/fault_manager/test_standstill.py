"""A Controller that does not run for a while judges nobody by what it did not hear meanwhile."""

import asyncio
from dataclasses import replace

import pytest

from controller.core.status import InstanceState
from motor_ft.model.topology import Role
from tests.support.world.hardware import FakeAdapter, card, with_cards
from tests.support.world.pods import TWO_PODS, registration
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

TTL = SETTINGS.heartbeat_ttl
GONE = SETTINGS.heartbeat_ttl_other
OFF = replace(SETTINGS, enable_dp_scale_down=False, enable_engine_relaunch=False, enable_scale_p2d=False)


async def stand_still(world: World, seconds: float) -> None:
    """SIGSTOP and SIGCONT: all that became due meanwhile is due at once, and nothing that was sent has been read."""
    for pod in world.pods.values():
        pod.quiet()
    loop = asyncio.get_running_loop()
    loop.setup_looptime(start=loop.time() + seconds)  # type: ignore[attr-defined]
    await asyncio.sleep(1)


def idle(world: World) -> bool:
    return world.controller.started == [] and world.stops == []


@pytest.mark.parametrize("seconds", [TTL + 2, GONE + 1, 10 * GONE])
async def test_an_instance_that_served_goes_on_serving_and_its_pods_have_a_ttl_to_come_back(seconds: float) -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await stand_still(world, seconds)
        await asyncio.sleep(TTL - 3)
        assert world.status().state is InstanceState.ACTIVE
        assert world.can_serve()
        await world.connect()
        await asyncio.sleep(2 * GONE)
        assert world.can_serve()
        assert idle(world)


async def test_who_does_not_come_back_is_missed_from_then_on() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        await stand_still(world, GONE + 1)
        await asyncio.sleep(TTL)
        assert world.status().state is InstanceState.INACTIVE
        await asyncio.sleep(GONE - TTL - 2)
        assert world.status().state is InstanceState.INACTIVE
        await asyncio.sleep(2)
        assert world.status().state is InstanceState.DELETED


async def test_an_instance_that_was_not_served_is_not_forgotten_for_it() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        for pod in world.pods.values():
            await pod.disconnect()
        await world.until(lambda: world.status().state is InstanceState.INACTIVE)
        await stand_still(world, GONE + 1)
        await world.connect()
        await world.until(world.can_serve)
        assert idle(world)


async def test_right_after_a_start_the_pods_are_waited_for_again() -> None:
    """Nothing is decided on what one pod says alone."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.kill()
        await world.restart(connect=False)
        await stand_still(world, GONE + 1)
        assert world.status().state is InstanceState.INACTIVE
        await world.pod(1).connect()
        await asyncio.sleep(TTL - 3)
        await world.pod(2).connect()
        await world.until(world.can_serve)
        assert idle(world)


async def test_an_assembly_has_all_its_time_again() -> None:
    async with World(*TWO_PODS) as world:
        await world.pod(1).connect()
        await stand_still(world, GONE + SETTINGS.assemble_timeout)
        await world.connect()
        await world.until(world.can_serve)
        assert await world.living() == {1}


async def test_an_isolation_of_which_nothing_was_heard_yet_holds() -> None:
    async with World(*map(with_cards, TWO_PODS), settings=OFF) as world:
        adapter = FakeAdapter(world)
        await adapter.connect()
        await world.serve()
        await adapter.tell(card(1, 1))
        await world.until(lambda: world.coordinator.ranks() == set())
        await world.kill()
        await world.restart()
        await stand_still(world, GONE + 1)
        await world.connect()
        await asyncio.sleep(GONE - 2)
        assert world.coordinator.held == {}
        await asyncio.sleep(2)
        assert world.coordinator.ranks() == {0, 1, 2, 3}


async def test_engines_have_another_window_to_tell_of_the_hardware() -> None:
    async with World(*map(with_cards, TWO_PODS)) as world:
        adapter = FakeAdapter(world)
        await adapter.connect()
        await world.serve()
        await adapter.tell(card(1, 1))
        await stand_still(world, 2 * TTL)
        await world.connect()
        await world.lose(1)
        await world.until(lambda: world.status().dead_committed == (1,) and world.can_serve())
        assert world.controller.started == ["dp_scale_down"]


async def test_a_store_that_is_empty_takes_nothing_from_the_coordinators_before_the_fleet_had_time_to_object() -> None:
    async with World(*TWO_PODS) as world:
        await asyncio.sleep(1)
        await stand_still(world, 2 * TTL)
        assert not world.manager.may_publish()
        await asyncio.sleep(TTL)
        assert world.manager.may_publish()


async def test_a_replacement_could_not_come_meanwhile() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        await world.lose(0, 1, 2, 3)
        await world.until(lambda: len(world.stops) == 2)
        await stand_still(world, 2 * SETTINGS.assemble_timeout)
        for pod in world.pods.values():
            pod.boot()
        await world.connect()
        await world.until(lambda: world.can_serve(2))
        assert world.observed.strategies == [("instance_reconfiguration", "succeeded")]


async def test_no_prefill_instance_is_taken_for_hardware_that_may_have_recovered_meanwhile() -> None:
    roles = (Role.DECODE, Role.PREFILL, Role.PREFILL)
    pods = [
        replace(with_cards(registration(number, [0, 1], job=f"job-{number}", dp_size=2)), role=role)
        for number, role in enumerate(roles, 1)
    ]
    async with World(*pods, settings=replace(SETTINGS, enable_dp_scale_down=False)) as world:
        adapter = FakeAdapter(world)
        await adapter.connect()
        await world.connect()
        await world.until(lambda: all(world.can_serve(number) for number in (1, 2, 3)))
        await adapter.tell(card(0, 1))
        await world.until(lambda: world.controller.started == ["scale_p2d"])
        await stand_still(world, 2 * SETTINGS.scale_p2d_wait)
        await world.connect()
        await adapter.clear(card(0, 1))
        await world.until(lambda: world.can_serve(1))
        assert world.observed.strategies == [("scale_p2d", "succeeded")]
        assert world.stops == []
