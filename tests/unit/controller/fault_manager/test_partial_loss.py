"""Some pods are silent, the others are stopped once: they come back together, as another instance (recovery.md 4)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from controller.core.phases import Phase
from controller.core.reports import ProcessDeath
from controller.core.status import InstanceState
from controller.fault_manager.environment import Settings
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import Registration
from tests.support.world.hardware import FakeAdapter, card, with_cards
from tests.support.world.pods import D, H, U, registration
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

PODS = tuple(with_cards(registration(number, [number - 1])) for number in (1, 2, 3, 4))
OFF = replace(SETTINGS, enable_dp_scale_down=False)
TTL = SETTINGS.heartbeat_ttl
GONE = SETTINGS.heartbeat_ttl_other


@asynccontextmanager
async def serving(*pods: Registration, settings: Settings = SETTINGS, keeper: bool = True) -> AsyncIterator[World]:
    async with World(*(pods or PODS), settings=settings, keeper=keeper) as world:
        await world.serve()
        yield world


def stopped(world: World) -> list[str]:
    return sorted(address.split(":")[0] for address, _, _ in world.stops)


async def silent(world: World, *numbers: int) -> None:
    """These pods can neither be heard nor reached."""
    for number in numbers:
        await world.pod(number).disconnect()
        world.pod(number).silent = True


@pytest.mark.parametrize("settings", [SETTINGS, OFF], ids=["feature on", "feature off"])
async def test_who_still_speaks_is_stopped_once_at_the_ttl_and_the_instance_ends(settings: Settings) -> None:
    """Nobody is there to start the pods again, so that is all."""
    async with serving(settings=settings, keeper=False) as world:
        for pod in world.pods.values():
            await pod.beat()
        start = world.clock.now()
        await silent(world, 4)
        await asyncio.sleep(TTL - 0.1)
        assert world.stops == []
        await asyncio.sleep(0.2)
        assert stopped(world) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
        assert world.coordinator.ranks() == set()
        await asyncio.sleep(start + GONE - 0.2 - world.clock.now())
        assert world.status().state is InstanceState.INACTIVE
        await asyncio.sleep(0.3)
        assert world.status().state is InstanceState.DELETED
        assert len(world.stops) == 3
        assert world.controller.started == ["partial_loss"]
        assert world.coordinator.held == {}


async def test_the_pods_that_were_stopped_and_the_one_that_was_lost_make_a_new_instance() -> None:
    async with serving() as world:
        await silent(world, 4)
        await world.until(lambda: len(world.stops) == 3)
        world.pod(4).boot()
        world.pod(4).silent = False
        await world.pod(4).connect()
        await world.until(lambda: world.can_serve(2))
        assert stopped(world) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
        assert world.status().state is InstanceState.DELETED
        assert world.controller.started == ["partial_loss"]


async def test_a_pod_that_was_cut_off_and_comes_back_is_stopped_too() -> None:
    """It still runs its part of what the others have left."""
    async with serving() as world:
        await silent(world, 4)
        await world.until(lambda: len(world.stops) == 3)
        await asyncio.sleep(2 * TTL)
        world.pod(4).silent = False
        await world.pod(4).connect()
        await world.until(lambda: world.can_serve(2))
        assert stopped(world) == ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]


async def test_a_pod_that_comes_back_while_the_others_are_being_stopped_is_stopped_too() -> None:
    async with serving() as world:
        back = asyncio.Event()
        for number in (1, 2, 3):
            world.pod(number).hold["stop"] = back.wait
        await silent(world, 4)
        await world.until(lambda: len(world.calls("stop")) == 3)
        world.pod(4).silent = False
        await world.pod(4).connect()
        await asyncio.sleep(1)
        back.set()
        await world.until(lambda: world.can_serve(2))
        assert stopped(world) == ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]


async def test_each_pod_is_stopped_once_for_a_loss_whatever_it_answers() -> None:
    """Best effort: who refuses is left to the end of the instance."""
    async with serving() as world:
        world.pod(1).refuses["stop"] = FtError(Reason.INTERNAL, "no")
        world.pod(2).hold["stop"] = asyncio.Event().wait  # never answers
        await silent(world, 4)
        await asyncio.sleep(3 * TTL)
        assert [world.calls("stop").count(("stop", f"10.0.0.{number}:9000")) for number in (1, 2, 3)] == [1, 1, 1]


async def test_when_nobody_could_be_stopped_the_instance_goes_on_with_the_lost_pod() -> None:
    """And the next loss is another one."""
    async with serving() as world:
        for pod in world.pods.values():
            pod.refuses["stop"] = FtError(Reason.INTERNAL, "no")
        await silent(world, 4)
        await asyncio.sleep(2 * TTL)
        assert world.observed.strategies == [("partial_loss", "cancelled")]
        world.pod(4).silent = False
        await world.pod(4).connect()
        await world.until(lambda: world.status().state is InstanceState.ACTIVE)
        await world.until(lambda: world.coordinator.ranks() == {0, 1, 2, 3})
        await silent(world, 3)
        await asyncio.sleep(2 * TTL)
        assert world.observed.strategies == 2 * [("partial_loss", "cancelled")]
        assert world.status().state is InstanceState.INACTIVE


async def test_when_all_are_silent_nobody_can_be_stopped() -> None:
    async with serving() as world:
        await silent(world, 1, 2, 3, 4)
        await asyncio.sleep(2 * TTL)
        assert world.status().state is InstanceState.INACTIVE
        assert world.controller.started == []


@pytest.mark.parametrize("settings", [SETTINGS, OFF], ids=["feature on", "feature off"])
async def test_nobody_is_stopped_while_nobody_is_heard(settings: Settings) -> None:
    """This Controller stood still, or reports are cut: who was heard last is not stopped for who was heard before."""
    async with serving(settings=settings) as world:
        for number in (4, 3, 2, 1):
            await world.pod(number).beat()
            await world.pod(number).disconnect()
            await asyncio.sleep(0.5)
        await asyncio.sleep(2 * TTL)
        assert world.calls("stop") == []
        for number in (1, 2, 3, 4):
            await world.pod(number).connect()
        await world.until(lambda: world.status().state is InstanceState.ACTIVE)
        await asyncio.sleep(2 * TTL)
        assert (world.calls("stop"), world.controller.started) == ([], [])


@pytest.mark.parametrize("settings", [SETTINGS, OFF], ids=["feature on", "feature off"])
@pytest.mark.parametrize("cut_sec", [TTL - 1, TTL + 2, 6 * TTL])
async def test_a_cut_that_all_pods_come_through_stops_nobody(settings: Settings, cut_sec: float) -> None:
    """They come back one after the other; the first is not stopped because the others are not there yet."""
    async with serving(settings=settings) as world:
        await silent(world, 1, 2, 3, 4)
        await asyncio.sleep(cut_sec)
        for number in (1, 2, 3, 4):
            world.pod(number).silent = False
            await world.pod(number).connect()
            await asyncio.sleep(1)
        await world.until(world.can_serve)
        await asyncio.sleep(2 * TTL)
        assert world.controller.started == []


async def test_a_controller_that_was_frozen_stops_nobody_for_what_it_did_not_hear() -> None:
    """The streams are still there; one heartbeat is read before the others."""
    async with serving() as world:
        for pod in world.pods.values():
            pod.quiet()
        await asyncio.sleep(TTL + 1)
        for pod in world.pods.values():
            await pod.beat()
            await asyncio.sleep(0.01)
        assert world.controller.started == []


async def test_who_does_not_come_back_after_a_cut_is_lost_at_the_ttl() -> None:
    async with serving(keeper=False) as world:
        await silent(world, 1, 2, 3, 4)
        await asyncio.sleep(2 * TTL)
        for number in (1, 2, 3):
            world.pod(number).silent = False
            await world.pod(number).connect()
        await asyncio.sleep(TTL - 0.1)
        assert world.stops == []
        await asyncio.sleep(0.2)
        assert stopped(world) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


async def test_deaths_of_pods_that_stop_start_nothing_more() -> None:
    async with serving(keeper=False) as world:
        world.pod(1).hold["stop"] = lambda: world.pod(1).tell(ProcessDeath(0, world.engine(0).incarnation, 1, "ended"))
        await silent(world, 4)
        await asyncio.sleep(3 * SETTINGS.fault_collection_timeout)
        assert world.controller.started == ["partial_loss"]


async def test_in_the_transaction_window_a_silent_pod_is_no_loss() -> None:
    """Its commands get through; when it is still silent afterwards it is one."""
    async with serving() as world:
        await world.lose(3, among=[0, 1, 3])
        await world.see(2, U)
        world.engine(2).status = H  # one survivor is waited for
        await world.pod(2).disconnect()
        await asyncio.sleep(SETTINGS.limits.execution_deadline - 2)
        assert world.controller.started == ["dp_scale_down"]
        world.pod(1).hold["commit"] = lambda: asyncio.sleep(3)
        world.engine(2).status = U
        await world.until(lambda: world.status().phase is Phase.SCALING_DOWN)
        await asyncio.sleep(2)
        assert world.stops == []
        await world.until(lambda: world.status().dead_committed == (3,))
        await world.until(lambda: stopped(world) == ["10.0.0.1", "10.0.0.3"])


async def test_while_faults_are_collected_a_silent_pod_is_no_loss() -> None:
    """At the end of the collection the instance is rebuilt, which stops everybody."""
    async with serving() as world:
        await world.see(0, U)
        await silent(world, 4)
        await asyncio.sleep(SETTINGS.fault_collection_timeout - 1)
        assert world.stops == []
        await world.until(lambda: world.controller.started)
        assert world.controller.started == ["instance_reconfiguration"]


async def test_while_engines_may_notice_the_hardware_a_silent_pod_is_no_loss() -> None:
    settings = replace(SETTINGS, correlation_window=3 * TTL)
    async with serving(settings=settings) as world:
        adapter = FakeAdapter(world)
        await adapter.connect()
        await adapter.tell(card(3, 4))
        await silent(world, 4)
        await asyncio.sleep(2 * TTL)
        assert world.controller.started == []


async def test_a_pod_whose_ranks_are_all_removed_is_not_missed() -> None:
    async with serving() as world:
        await world.lose(3)
        await world.until(lambda: world.status().dead_committed == (3,) and world.can_serve())
        await silent(world, 4)
        await asyncio.sleep(2 * GONE)
        assert world.status().state is InstanceState.ACTIVE
        assert world.stops == []
        await silent(world, 3)
        await world.until(lambda: stopped(world) == ["10.0.0.1", "10.0.0.2"])


async def test_a_node_manager_that_starts_again_is_not_lost() -> None:
    """It is there from its Hello on, before its Snapshot."""
    async with serving() as world:
        for _ in range(3):
            await world.pod(4).disconnect()
            await asyncio.sleep(TTL - 1)
            world.pod(4).restart_node_manager()
            await world.pod(4).connect()
        await asyncio.sleep(2 * TTL)
        assert world.controller.started == []
        assert world.can_serve()


async def test_after_a_restart_of_the_controller_who_is_slow_to_find_it_is_not_lost() -> None:
    """A failover must not stop a fleet; who has not come when instances are forgotten is missed."""
    async with serving(keeper=False) as world:
        await asyncio.sleep(5 * TTL)
        await world.kill()
        await world.restart(connect=False)
        for number in (1, 2, 3):
            await world.pod(number).connect()
        await asyncio.sleep(GONE - 0.1)
        assert world.status().state is InstanceState.INACTIVE
        assert world.stops == []
        await asyncio.sleep(0.2)
        assert stopped(world) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
        await world.until(lambda: world.status().state is InstanceState.DELETED)


async def test_after_a_restart_of_the_controller_who_has_come_and_is_silent_again_is_lost_at_the_ttl() -> None:
    async with serving(keeper=False) as world:
        await world.kill()
        await world.restart()
        await silent(world, 4)
        await asyncio.sleep(TTL - 0.1)
        assert world.stops == []
        await asyncio.sleep(0.2)
        assert stopped(world) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


async def test_who_gave_up_the_dead_controller_first_does_not_make_the_others_lost() -> None:
    """A stream to a frozen leader lives for the time of its keepalive, which may be longer than the TTL."""
    async with serving() as world:
        await world.kill()
        await world.restart(connect=False)
        await asyncio.sleep(2 * TTL)
        for number in (1, 2, 3, 4):
            await world.pod(number).connect()
            await asyncio.sleep(1)
        await world.until(world.can_serve)
        await asyncio.sleep(2 * TTL)
        assert world.stops == []


async def test_an_instance_that_nobody_is_heard_of_is_forgotten_and_one_whose_automation_stopped_is_kept() -> None:
    """Somebody has to look at the latter."""
    first = [registration(number, [number - 1], job="job-1", dp_size=2) for number in (1, 2)]
    second = [registration(number, [number - 3], job="job-2", dp_size=2) for number in (3, 4)]
    async with serving(*first, *second, keeper=False) as world:
        await world.until(lambda: world.can_serve(2))
        await silent(world, 1, 2)
        await world.pod(3).see(0, D)
        await world.pod(4).see(1, D)
        await world.until(lambda: world.status(2).automation_stopped)
        await asyncio.sleep(2 * GONE)
        assert world.status(1).state is InstanceState.DELETED
        assert world.status(2).state is InstanceState.INACTIVE
        assert await world.living() == {2}
