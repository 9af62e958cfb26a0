"""PAUSE and RESUME: where the life of an instance shows in the serving view (recovery.md sections 4 and 6)."""

import pytest

from controller.core.history import EventKind
from controller.core.status import InstanceState
from motor_ft.model.topology import EndpointStatus
from tests.support.world.pods import TWO_PODS
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime


def events(world: World) -> list[str]:
    """What the Coordinator was told of instance 1 since it serves, without SET."""
    return [event for event, _, _ in world.coordinator.sent if event not in {"set", "add"}]


async def disconnect(world: World) -> None:
    """Everybody, so that nobody is left to be stopped for the loss of others."""
    for pod in world.pods.values():
        await pod.disconnect()


async def test_an_inactive_instance_is_paused_and_resumed_when_it_is_active_again() -> None:
    """And clients see that nobody new is served: whoever reads can_serve must not send requests there."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        await disconnect(world)
        await world.until(lambda: world.coordinator.ranks() == set())
        await world.until(lambda: not world.status().serving_published)
        assert world.status().state is InstanceState.INACTIVE
        assert not world.can_serve()
        await world.connect()
        await world.until(world.can_serve)
        assert world.coordinator.ranks() == {0, 1, 2, 3}
        assert world.status().state is InstanceState.ACTIVE
        history = world.controller.histories.page(1, (EventKind.SERVING,), after=None, newest_first=False, size=9)
        assert [event.attributes["published"] for event in history] == ["true", "false", "true"]
        assert events(world) == ["pause", "resume"]


async def test_an_abnormal_endpoint_pauses_it_as_well() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.pod(2).normal[3] = EndpointStatus.ABNORMAL
        await world.until(lambda: world.coordinator.ranks() == set())
        del world.pod(2).normal[3]
        await world.until(lambda: world.coordinator.ranks() == {0, 1, 2, 3})
        assert events(world) == ["pause", "resume"]


async def test_a_set_undoes_no_pause() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await disconnect(world)
        await world.until(lambda: world.coordinator.ranks() == set())
        world.controller.publisher.kick()
        assert world.coordinator.held[1].paused
        assert not world.status().serving_published


async def test_faults_that_are_judged_and_the_recovery_from_them_pause_nothing() -> None:
    """The survivors go from one view to the other by DEL and ADD alone, whatever heartbeats say meanwhile."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        for pod in (1, 2):
            world.pod(pod).normal |= dict.fromkeys(range(4), EndpointStatus.ABNORMAL)
        await world.lose(1, among=[1])
        await world.pod(1).beat()
        await world.pod(2).beat()
        await world.lose(1)
        world.pod(1).normal.clear()
        world.pod(2).normal.clear()
        await world.until(lambda: world.coordinator.ranks() == {0, 2, 3})
        assert events(world) == ["del"]


async def test_resume_brings_no_dead_rank_back() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(1)
        await world.until(lambda: world.coordinator.ranks() == {0, 2, 3})
        await disconnect(world)
        await world.until(lambda: world.coordinator.ranks() == set())
        await world.connect()
        await world.until(lambda: world.coordinator.ranks() == {0, 2, 3})
        assert events(world) == ["del", "pause", "resume"]


async def test_a_controller_that_starts_again_pauses_only_what_stays_silent() -> None:
    """Until the pods had one heartbeat TTL to say Hello they are taken for well: a failover stops no request."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.kill()
        await world.restart(connect=False)
        assert world.status().state is InstanceState.INACTIVE
        await world.until(lambda: world.clock.now() > SETTINGS.heartbeat_ttl / 2)
        assert world.coordinator.ranks() == {0, 1, 2, 3}
        await world.until(lambda: world.coordinator.ranks() == set())
        await world.connect()
        await world.until(lambda: world.coordinator.ranks() == {0, 1, 2, 3})
        assert events(world) == ["pause", "resume"]
