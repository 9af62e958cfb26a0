"""What was withdrawn for hardware or for lost pods stays so through a failover (recovery.md sections 3, 4 and 6)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from controller.core.records import IdentityRecord
from controller.core.status import InstanceState
from motor_ft.model.errors import FtError, Reason
from tests.support.world.adapters import Trouble
from tests.support.world.hardware import STARTING, FakeAdapter, card, with_cards
from tests.support.world.pods import TWO_PODS
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

OFF = replace(SETTINGS, enable_dp_scale_down=False, enable_engine_relaunch=False, enable_scale_p2d=False)
TTL, GONE = SETTINGS.heartbeat_ttl, SETTINGS.heartbeat_ttl_other
FAULT = card(1, 1)
ALL = {0, 1, 2, 3}


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[World, FakeAdapter]]:
    async with World(*map(with_cards, TWO_PODS), settings=OFF) as world:
        adapter = FakeAdapter(world)
        await adapter.connect()
        await world.serve()
        yield world, adapter


@asynccontextmanager
async def failed_over() -> AsyncIterator[World]:
    """The instance was isolated; the pods have come to another Controller, and no adapter has."""
    async with serving() as (world, adapter):
        await adapter.tell(FAULT)
        await world.until(lambda: world.coordinator.ranks() == set())
        await world.kill()
        await world.restart()
        yield world


async def stored(world: World) -> IdentityRecord:
    return (await world.store.load()).identities[1].record


async def lost(world: World, number: int) -> None:
    """The pod can neither be heard nor reached."""
    await world.pod(number).disconnect()
    world.pod(number).silent = True


async def killed(world: World) -> None:
    await world.store.killed.wait()
    await world.kill()


async def test_nothing_isolated_is_published_before_the_hardware_is_heard_of() -> None:
    async with failed_over() as world:
        await asyncio.sleep(3 * TTL)
        world.controller.publisher.kick()
        assert world.coordinator.held == {}
        assert "[isolated: what the earlier Controller knew of the hardware" in world.status().last_decision
        adapter = FakeAdapter(world)
        await adapter.connect(FAULT)
        await asyncio.sleep(2 * GONE)
        assert world.coordinator.held == {}
        await adapter.clear(FAULT)
        await world.until(lambda: world.coordinator.ranks() == ALL)
        assert not (await stored(world)).isolated


async def test_a_fault_that_cleared_while_no_controller_ran_isolates_no_longer() -> None:
    async with failed_over() as world:
        await FakeAdapter(world).connect()
        await world.until(lambda: world.coordinator.ranks() == ALL, timeout=3 * TTL)


@pytest.mark.parametrize("sources", [None, (STARTING,)], ids=["no adapter", "a source that does not work"])
async def test_where_nobody_can_tell_of_the_hardware_the_isolation_ends_when_others_would_be_forgotten(
    sources: object,
) -> None:
    async with failed_over() as world:
        if sources:
            await FakeAdapter(world).connect(sources=(STARTING,))
        await asyncio.sleep(GONE - 0.1)
        assert world.coordinator.held == {}
        await asyncio.sleep(0.2)
        assert world.coordinator.ranks() == ALL


async def test_an_adapter_that_leaves_before_its_faults_are_over_has_not_cleared_them() -> None:
    async with failed_over() as world:
        adapter = FakeAdapter(world)
        await adapter.connect(sources=(STARTING,))
        adapter.disconnect()
        await asyncio.sleep(3 * TTL)
        assert world.coordinator.held == {}


async def test_an_isolation_is_stored_before_the_coordinators_learn_of_it() -> None:
    async with serving() as (world, adapter):
        world.store.script["identity"] = Trouble.KILLED_BEFORE
        await adapter.tell(FAULT)
        await killed(world)
        assert world.coordinator.ranks() == ALL
        await world.restart()
        assert world.coordinator.ranks() == ALL, "nobody has withdrawn it"


async def test_the_end_of_an_isolation_is_stored_before_the_coordinators_learn_of_it() -> None:
    async with serving() as (world, adapter):
        await adapter.tell(FAULT)
        await world.until(lambda: world.coordinator.ranks() == set())
        world.store.script["identity"] = Trouble.NEVER_WRITTEN
        await adapter.clear(FAULT)
        await asyncio.sleep(3 * TTL)
        assert world.coordinator.held == {}
        del world.store.script["identity"]
        await world.until(lambda: world.coordinator.ranks() == ALL)


async def test_what_cannot_be_stored_is_withdrawn_all_the_same_and_stored_later() -> None:
    async with serving() as (world, adapter):
        world.store.script["identity"] = Trouble.NEVER_WRITTEN
        await adapter.tell(FAULT)
        await world.until(lambda: world.coordinator.ranks() == set())
        assert not (await stored(world)).isolated
        del world.store.script["identity"]
        await asyncio.sleep(TTL)
        assert (await stored(world)).isolated


async def test_that_an_instance_dissolves_is_stored_before_anybody_is_stopped() -> None:
    async with serving() as (world, _):
        world.store.script["identity"] = Trouble.KILLED_BEFORE
        await lost(world, 2)
        await killed(world)
        assert world.calls("stop") == []
        await world.restart()
        await world.until(world.can_serve)


async def test_what_was_about_to_be_dissolved_is_stopped_by_the_next_controller_and_never_published() -> None:
    """Whom the Stop has reached is not known, so everybody who comes is told."""
    async with serving() as (world, _):
        world.store.script["identity"] = Trouble.KILLED_AFTER
        await lost(world, 2)
        await killed(world)
        world.coordinator.sent.clear()
        world.pod(2).silent = False
        await world.restart()
        await world.until(lambda: world.can_serve(2))
        assert {address for address, _, _ in world.stops} == set(world.pods)
        assert ("set", 1, frozenset(ALL)) not in world.coordinator.sent[1:]
        assert world.status().state is InstanceState.DELETED


async def test_nobody_is_stopped_before_it_can_be_stored_and_who_comes_back_by_then_is_not_lost() -> None:
    async with serving() as (world, _):
        world.store.script["identity"] = Trouble.NEVER_WRITTEN
        await lost(world, 2)
        await asyncio.sleep(3 * TTL)
        assert world.calls("stop") == []
        world.pod(2).silent = False
        await world.pod(2).connect()
        del world.store.script["identity"]
        await world.until(world.can_serve)
        await asyncio.sleep(3 * TTL)
        assert world.stops == []
        assert not (await stored(world)).dissolved


async def test_an_instance_of_which_nobody_could_be_stopped_does_not_dissolve_after_a_failover() -> None:
    async with serving() as (world, _):
        world.pod(1).refuses["stop"] = FtError(Reason.INTERNAL, "no")
        await lost(world, 2)
        await world.until(lambda: world.observed.strategies == [("partial_loss", "cancelled")])
        await asyncio.sleep(1)
        await world.kill()
        world.pod(2).silent = False
        await world.restart()
        await world.until(world.can_serve)
        assert world.stops == []
