"""Pods whose ranks are all gone: left alone, or stopped once; what comes in their place waits (recovery.md 5, 8)."""

import asyncio
from dataclasses import replace

import pytest

from controller.core.phases import Phase
from controller.core.status import InstanceState
from motor_ft.model.engine import ProbeOutcome
from motor_ft.model.errors import FtError, Reason
from tests.support.world.pods import TWO_PODS
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

SCALE_UP = replace(SETTINGS, enable_dp_scale_up=True)
POD_2 = TWO_PODS[1].node_manager_address


async def emptied(world: World) -> None:
    """Instance 1 serves without ranks 2 and 3, which are all of pod 2."""
    await world.serve()
    await world.lose(2, 3)
    await world.until(lambda: world.status().dead_committed == (2, 3) and world.can_serve())
    assert world.coordinator.ranks() == {0, 1}


async def goes_on(world: World) -> None:
    """For longer than any heartbeat may be late, the instance serves and nothing is told to anybody."""
    calls, sent = world.calls(), list(world.coordinator.sent)
    await asyncio.sleep(3 * SETTINGS.heartbeat_ttl)
    status = world.status()
    assert (status.phase, status.state) == (Phase.SCALED_DOWN_RUNNING, InstanceState.ACTIVE)
    assert world.can_serve()
    assert world.calls() == calls
    assert world.coordinator.sent == sent


async def test_without_scale_up_an_emptied_pod_is_left_alone_and_its_empty_heartbeats_are_taken() -> None:
    async with World(*TWO_PODS) as world:
        await emptied(world)
        await goes_on(world)
        assert world.stops == []
        assert world.pod(2).endpoint_states() == ()
        assert world.pod(2).rejected == []


async def test_with_scale_up_it_is_stopped_once_by_the_command_of_the_transaction() -> None:
    async with World(*TWO_PODS, settings=SCALE_UP, keeper=False) as world:
        await emptied(world)
        await goes_on(world)
        ((address, command, _),) = world.stops
        assert (address, command.request_id) == (POD_2, world.status().request_id)
        assert world.calls("stop") == [("stop", POD_2)]


@pytest.mark.parametrize("ranks", [(2,), (1, 2)])
async def test_a_pod_that_still_has_a_rank_is_not_stopped(ranks: tuple[int, ...]) -> None:
    async with World(*TWO_PODS, settings=SCALE_UP) as world:
        await world.serve()
        await world.lose(*ranks)
        await world.until(lambda: world.status().dead_committed == ranks and world.can_serve())
        await goes_on(world)
        assert world.calls("stop") == []


async def test_nothing_waits_for_the_stop() -> None:
    """Neither SCALED_DOWN_RUNNING nor the survivors nor the next recovery; the last rank of pod 1 dies meanwhile."""
    async with World(*TWO_PODS, settings=SCALE_UP) as world:
        world.pod(2).hold["stop"] = asyncio.Event().wait
        await emptied(world)
        assert world.calls("stop") == [("stop", POD_2)]
        await world.lose(1, among=[0, 1])
        await world.until(lambda: world.coordinator.ranks() == {0})
        assert world.stops == []


@pytest.mark.parametrize("reason", [Reason.OUTCOME_UNKNOWN, Reason.STALE_EPOCH])
async def test_a_stop_that_fails_changes_nothing_and_is_not_repeated(reason: Reason) -> None:
    async with World(*TWO_PODS, settings=SCALE_UP) as world:
        world.pod(2).refuses["stop"] = FtError(reason, "not stopped")
        await emptied(world)
        await goes_on(world)
        assert world.calls("stop") == [("stop", POD_2)]
        assert world.status().last_error == ""


async def test_a_new_pod_in_its_place_waits_for_the_assembly_of_a_new_instance() -> None:
    """A SCALED_DOWN_RUNNING instance takes nobody in; it goes on to serve, and the new pod is its end only with all."""
    async with World(*TWO_PODS, settings=SCALE_UP, keeper=False) as world:
        await emptied(world)
        newcomer = world.add(replace(TWO_PODS[1], pod_uid="uid-2-anew"))
        await newcomer.connect()
        assert newcomer.attachment is not None
        assert newcomer.attachment.welcome.instance_id == 2
        await goes_on(world)
        assert world.status(2).state is InstanceState.INITIAL
        assert world.coordinator.ranks(2) == set()


async def test_a_survivor_that_serves_nothing_is_not_committed() -> None:
    """HEALTHY is what an engine says of itself; the instance is rebuilt."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.engine(3).serves = ProbeOutcome.FAILED
        await world.lose(1)
        await world.until(lambda: world.can_serve(2))
        assert ("dp_scale_down", "failed") in world.observed.strategies
        assert world.calls("commit") == []
        assert all(engine.completions <= 1 for pod in world.pods.values() for engine in pod.engines.values())
