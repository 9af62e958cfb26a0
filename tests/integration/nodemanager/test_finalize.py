"""Finalize and Status over gRPC: the end of a transaction, and what retired ranks still say."""

import asyncio
import errno
import os
from pathlib import Path

import grpc
import pytest

from motor_ft.model.errors import Reason
from motor_ft.v1 import common_pb2, node_lifecycle_pb2, node_manager_pb2
from motor_ft.wire.channel import call
from motor_ft.wire.convert import command_to_header
from tests.integration.nodemanager.gateway import DEAD, HEALTHY, UNHEALTHY, UNKNOWN, ScriptedGateway
from tests.integration.nodemanager.node import EPOCH, INSTANCE, Node, command
from tests.integration.nodemanager.test_guard import refuses

OP = command()


async def test_commit_retires_and_the_same_finalize_gets_the_same_answer(node: Node) -> None:
    await node.guard(OP, plan=node.plan())
    answer = await node.finalize(OP, retired=[1])
    assert (answer.committed, list(answer.retired_dp_ranks)) == (True, [1])
    assert await node.finalize(OP, retired=[1]) == answer
    with refuses(Reason.REQUEST_ID_REUSED):
        await node.finalize(OP, commit=False)


async def test_a_stale_finalize_thaws_nothing(node: Node) -> None:
    await node.guard(OP)
    for commit in (True, False):
        with refuses(Reason.STALE_REQUEST_ID):
            await node.finalize(command("other"), commit=commit)
    assert node.state.guard is not None


async def test_commit_is_accepted_after_expiry_abort_is_not(node: Node) -> None:
    await node.guard(OP)
    node.clock.ahead += 60
    with refuses(Reason.GUARD_EXPIRED):
        await node.finalize(OP, commit=False)
    assert list((await node.finalize(OP, retired=[1])).retired_dp_ranks) == [1]


async def test_one_refused_rank_retires_nothing(node: Node) -> None:
    await node.guard(OP)
    with refuses(Reason.UNKNOWN_RANK):
        await node.finalize(OP, retired=[1, 2])
    assert node.state.retired == frozenset()


async def test_a_late_guard_of_a_finished_transaction_is_stale(node: Node) -> None:
    await node.guard(OP)
    await node.finalize(OP, commit=False)
    with refuses(Reason.STALE_REQUEST_ID):
        await node.guard(OP)


async def test_a_guard_that_its_own_abort_has_overtaken_is_stale(node: Node) -> None:
    with refuses(Reason.GUARD_REQUIRED):
        await node.finalize(OP, commit=False)
    with refuses(Reason.STALE_REQUEST_ID):
        await node.guard(OP)
    assert node.state.guard is None
    await node.guard(command("next", 2))


async def test_a_guard_that_was_overtaken_is_stale_also_where_an_older_lease_has_run_out(node: Node) -> None:
    await node.guard(OP)
    node.clock.ahead += 60
    late = command("late", 2)
    with refuses(Reason.STALE_REQUEST_ID):
        await node.finalize(late, commit=False)
    with refuses(Reason.STALE_REQUEST_ID):
        await node.guard(late)


async def test_a_commit_or_a_former_leader_that_finds_no_guard_ends_nothing(node: Node) -> None:
    with refuses(Reason.GUARD_REQUIRED):
        await node.finalize(OP)
    with refuses(Reason.STALE_EPOCH):
        await node.finalize(command("op", epoch=EPOCH - 1), commit=False)
    await node.guard(OP)


async def test_retirement_survives_a_restart_and_ends_with_a_new_instance(
    tmp_path: Path, gateway: ScriptedGateway
) -> None:
    node = Node(tmp_path, gateway, ranks=(0, 1), launched=())
    async with node.running():
        await node.join()
        await node.guard(OP)
        answer = await node.finalize(OP, retired=[1])
    async with node.running():
        assert await node.finalize(OP, retired=[1]) == answer
        await node.join()
        assert node.state.retired == {1}
        with refuses(Reason.UNKNOWN_RANK):
            await node.status(command("next", 2), 1)
        await node.join(INSTANCE + 1)
        assert node.state.retired == frozenset()


async def test_status_reads_anew_exactly_what_was_asked(node: Node, gateway: ScriptedGateway) -> None:
    await gateway.say(1, DEAD)
    first = await node.status(OP, 0, 1)
    assert [(reading.dp_rank, reading.status) for reading in first.observations] == [(0, HEALTHY), (1, DEAD)]
    again = await node.status(OP, 1)
    assert again.observations[0].observation > first.observations[1].observation
    with refuses(Reason.UNKNOWN_RANK):
        await node.status(OP, 1, 2)
    with refuses(Reason.INVALID_REQUEST):
        await node.status(OP)


async def test_a_headless_endpoint_has_no_status(tmp_path: Path, gateway: ScriptedGateway) -> None:
    async with Node(tmp_path, gateway, ranks=(0, 3), launched=()).running() as node:
        await node.join()
        with refuses(Reason.UNKNOWN_RANK):
            await node.status(OP, 3)
        await node.guard(OP)
        assert list((await node.finalize(OP, retired=[3])).retired_dp_ranks) == [3]


async def test_another_engine_on_the_port_is_an_identity_problem(node: Node, gateway: ScriptedGateway) -> None:
    await gateway.say(0, HEALTHY, engine_incarnation="another")
    (reading,) = (await node.status(OP, 0)).observations
    assert (reading.status, reading.problem) == (UNKNOWN, common_pb2.OBSERVATION_PROBLEM_IDENTITY)


async def test_a_gateway_that_cannot_be_asked_is_our_own_problem(node: Node) -> None:
    await node.gateway_down()
    readings = (await node.status(OP, 0, 1)).observations
    assert {reading.problem for reading in readings} == {common_pb2.OBSERVATION_PROBLEM_LOCAL}


async def test_watch_status_sends_a_snapshot_then_changes(node: Node, gateway: ScriptedGateway) -> None:
    watcher = asyncio.create_task(node.watcher.run())
    request = node_manager_pb2.WatchStatusRequest(header=command_to_header(OP), dp_ranks=[1])
    stream = node.stub.WatchStatus(request)
    messages = aiter(stream)
    first = await anext(messages)
    assert (first.observation.dp_rank, first.observation.status) == (1, HEALTHY)
    assert (await anext(messages)).snapshot_complete
    await gateway.say(0, DEAD)
    await gateway.say(1, UNHEALTHY)
    change = await anext(messages)
    while change.observation.status == HEALTHY:  # the watcher's own first reading
        change = await anext(messages)
    assert (change.observation.dp_rank, change.observation.status) == (1, UNHEALTHY)
    stream.cancel()
    watcher.cancel()
    await asyncio.wait([watcher])


async def test_a_watch_of_a_former_leader_ends(node: Node, gateway: ScriptedGateway) -> None:
    watcher = asyncio.create_task(node.watcher.run())
    request = node_manager_pb2.WatchStatusRequest(header=command_to_header(OP), dp_ranks=[1])
    stream = node.stub.WatchStatus(request)
    messages = aiter(stream)
    while not (await anext(messages)).snapshot_complete:
        pass
    await node.join(epoch=EPOCH + 1)
    await gateway.say(1, DEAD)
    with pytest.raises(grpc.aio.AioRpcError, match="is over"):
        [message async for message in messages]
    watcher.cancel()
    await asyncio.wait([watcher])


async def test_stop_is_idempotent_by_instance_and_generation(tmp_path: Path, gateway: ScriptedGateway) -> None:
    node = Node(tmp_path, gateway, ranks=(0, 1), launched=())
    stop = node_lifecycle_pb2.StopRequest(header=command_to_header(OP), reason="reconfiguration")
    async with node.running():
        await node.join()
        await call(node.lifecycle.Stop, stop, timeout=10)
        assert node.stops.is_set()
    node.stops.clear()
    async with node.running():
        await call(node.lifecycle.Stop, stop, timeout=10)
        assert not node.stops.is_set(), "what was started since is not stopped by a repeat"
        next_one = node_lifecycle_pb2.StopRequest(header=command_to_header(command("x", 2)))
        await call(node.lifecycle.Stop, next_one, timeout=10)
        assert node.stops.is_set()


async def test_stop_ends_the_pod_also_when_the_disk_is_full(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that stay alive are worse than a Stop that is forgotten."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    await call(node.lifecycle.Stop, node_lifecycle_pb2.StopRequest(header=command_to_header(OP)), timeout=10)
    assert node.stops.is_set()
    assert node.state.stopped is None


async def test_a_former_leader_stops_nothing(node: Node) -> None:
    await node.join(epoch=EPOCH + 1)
    with refuses(Reason.STALE_EPOCH):
        await call(node.lifecycle.Stop, node_lifecycle_pb2.StopRequest(header=command_to_header(OP)), timeout=10)
    assert not node.stops.is_set()
