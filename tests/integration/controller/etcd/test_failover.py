"""One Controller leads, others stand by: what happens when the leader is killed, frozen, or told to end."""

import signal

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse as Status

from motor_ft.model.errors import Reason
from motor_ft.v1 import controller_pb2 as pb
from motor_ft.wire.errors import from_rpc_error
from tests.integration.controller.etcd.conftest import GENERATION, INSTANCE, ControllerProcess, Start
from tests.support.etcd import Etcd

LONG_SEC = 60
"""A lease that outlives the test: who takes over did not wait for its end."""


async def goes_on(controller: ControllerProcess) -> None:
    """It serves what is stored."""
    await controller.line("controller serves")
    assert await controller.ready() == 200
    [instance] = await controller.instances()
    assert (instance.instance_id, instance.generation) == (INSTANCE, GENERATION)
    assert (instance.phase, list(instance.alive_dp_ranks)) == (pb.PHASE_SCALED_DOWN_RUNNING, [0, 1, 3])


async def test_a_standby_goes_on_when_the_leader_is_killed(start: Start) -> None:
    """With everything stored, once the lease of the leader has expired."""
    leader = await start("leader", 2)
    await goes_on(leader)
    standby = await start("standby", 2)
    await standby.line("standing by")
    await leader.kill()
    await goes_on(standby)


async def test_a_leader_that_was_frozen_ends_when_it_wakes_up(start: Start) -> None:
    """With exit code 1 and the reason, and without disturbing the one that leads now."""
    leader = await start("leader", 2)
    await goes_on(leader)
    standby = await start("standby", 2)
    await standby.line("standing by")
    leader.signal(signal.SIGSTOP)
    await goes_on(standby)
    leader.signal(signal.SIGCONT)
    assert await leader.wait() == 1
    assert leader.output[-1] == (
        "motor-controller: NOT_LEADER: this Controller leads no longer, its lease was not renewed in time; "
        "it must start again and stand by"
    )
    await goes_on(standby)


async def test_who_is_told_to_end_leaves_its_place_at_once(start: Start) -> None:
    """A leader and a standby: the next one does not wait for their leases."""
    leader = await start("leader", LONG_SEC)
    await leader.line("controller serves")
    second = await start("second", LONG_SEC)
    await second.line("standing by")
    third = await start("third", LONG_SEC)
    await third.line("standing by")
    assert await second.stop() == 0
    assert await leader.stop() == 0
    await goes_on(third)


async def test_a_standby_says_who_leads(start: Start) -> None:
    """It is not ready, its services do not serve, and whoever asks is sent to the leader."""
    leader = await start("leader", LONG_SEC)
    await leader.line("controller serves")
    assert await leader.serves() == [Status.SERVING] * 3
    standby = await start("standby", LONG_SEC)
    await standby.line("standing by")
    assert await standby.ready() == 503
    assert await standby.serves() == [Status.NOT_SERVING] * 3
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await standby.instances()
    error = from_rpc_error(refused.value)
    assert (error.reason, error.metadata["leader"]) == (Reason.NOT_LEADER, f"127.0.0.1:{leader.port}")
    assert (await standby.hello()).not_leader.leader == f"127.0.0.1:{leader.port}"
    assert await leader.stop() == 0
    await goes_on(standby)
    assert await standby.serves() == [Status.SERVING] * 3


async def test_a_leader_without_etcd_ends_with_its_lease(start: Start, etcd: Etcd) -> None:
    """It cannot know whether another one has taken over."""
    leader = await start("leader", 2)
    await goes_on(leader)
    etcd.nodes[0].kill()
    assert await leader.wait() == 1
    assert "motor-controller: NOT_LEADER" in leader.output[-1]
