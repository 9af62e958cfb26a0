"""ControllerService over real connections, on the FaultManager's own board."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from controller.core.gate import GateReason, GateResult
from controller.core.phases import Phase
from controller.core.status import InstanceState, InstanceStatus, PodStatus
from controller.fault_manager.board import Board
from controller.rpc.controller import WATCH_LIMIT
from motor_ft.model.engine import EngineStatus
from motor_ft.model.errors import FieldError, FtError, Reason
from motor_ft.model.topology import Endpoint, Role
from motor_ft.v1 import controller_pb2, controller_pb2_grpc
from motor_ft.v1.controller_pb2 import ListInstancesRequest, WatchInstancesRequest, WatchInstancesResponse
from motor_ft.wire.channel import call
from motor_ft.wire.errors import from_rpc_error
from tests.integration.controller.serving import add_instances, connected, new_server

GRPC_DEFAULT = 4 * 1024 * 1024
"""Longer messages are refused by clients that were not told otherwise."""
Watch = grpc.aio.UnaryStreamCall[WatchInstancesRequest, WatchInstancesResponse]


def status(instance_id: int, *, job: str = "job", state: InstanceState = InstanceState.ACTIVE) -> InstanceStatus:
    """An instance in the middle of a scale-down."""
    return InstanceStatus(
        instance_id=instance_id,
        phase=Phase.SCALING_DOWN,
        original_dp_ranks=(0, 1, 2, 3),
        request_id="r-1",
        dead_committed=(3,),
        pending_removed_ranks=(1,),
        fallback_strategy="instance_reconfiguration",
        gate=GateResult((GateReason.EPLB_REQUIRED,)),
        engine_statuses={0: EngineStatus.UNHEALTHY, 1: EngineStatus.DEAD},
        serving_published=True,
        last_error="GUARD_FAILED: nobody there",
        can_serve=False,
        generation=5,
        job_name=job,
        model_name="model",
        role=Role.DECODE,
        dp_size=4,
        state=state,
        pods=(PodStatus("pod-0", "node-0", "10.0.0.1", "10.0.0.1:9000", (Endpoint(0, "10.0.0.1", 8000),), True),),
        automation_stopped=True,
        automation_paused=True,
        last_decision="dp_scale_down: U+D",
        update_time=1_700_000_000.25,
    )


@asynccontextmanager
async def served(
    board: Board, *, progress_sec: float = 60.0
) -> "AsyncIterator[controller_pb2_grpc.ControllerServiceAsyncStub]":
    """A stub of a running server."""
    server = new_server()
    add_instances(server, board, progress_sec=progress_sec)
    async with connected(server) as channel:
        yield controller_pb2_grpc.ControllerServiceStub(channel)


def board_of(*statuses: InstanceStatus) -> Board:
    """A board that shows these."""
    board = Board()
    for shown in statuses:
        board.put(shown)
    return board


async def read(watch: Watch) -> WatchInstancesResponse:
    """The next message; a refusal raises FtError."""
    try:
        response = await watch.read()
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    assert isinstance(response, WatchInstancesResponse), "the watch has ended"
    return response


async def test_an_instance_shows_everything() -> None:
    async with served(board_of(status(7))) as stub:
        answer = await call(stub.GetInstance, controller_pb2.GetInstanceRequest(instance_id=7), timeout=5)
    assert MessageToDict(answer.instance, preserving_proto_field_name=True) == {
        "instance_id": "7",
        "phase": "PHASE_SCALING_DOWN",
        "original_dp_ranks": [0, 1, 2, 3],
        "request_id": "r-1",
        "dead_committed": [3],
        "pending_removed_ranks": [1],
        "alive_dp_ranks": [0, 2],
        "fallback_strategy": "instance_reconfiguration",
        "gate": {"reason_codes": ["EPLB_REQUIRED"]},
        "engine_statuses": {"0": "ENGINE_STATUS_UNHEALTHY", "1": "ENGINE_STATUS_DEAD"},
        "serving_published": True,
        "last_error": "GUARD_FAILED: nobody there",
        "generation": "5",
        "job_name": "job",
        "model_name": "model",
        "role": "ROLE_DECODE",
        "dp_size": 4,
        "state": "INSTANCE_STATE_ACTIVE",
        "pods": [
            {
                "name": "pod-0",
                "node_name": "node-0",
                "ip": "10.0.0.1",
                "node_manager_address": "10.0.0.1:9000",
                "endpoints": [{"ip": "10.0.0.1", "business_port": 8000}],
                "connected": True,
            }
        ],
        "automation_stopped": True,
        "automation_paused": True,
        "last_decision": "dp_scale_down: U+D",
        "update_time": "2023-11-14T22:13:20.250Z",
    }


async def test_before_the_first_gate_there_is_none() -> None:
    async with served(board_of(replace(status(7), gate=None, update_time=0.0))) as stub:
        answer = await call(stub.GetInstance, controller_pb2.GetInstanceRequest(instance_id=7), timeout=5)
    assert not answer.instance.HasField("gate")
    assert not answer.instance.HasField("update_time")


async def test_an_unknown_instance_is_named() -> None:
    async with served(Board()) as stub:
        with pytest.raises(FtError) as refusal:
            await call(stub.GetInstance, controller_pb2.GetInstanceRequest(instance_id=9), timeout=5)
        assert refusal.value.reason is Reason.UNKNOWN_INSTANCE
        with pytest.raises(FtError) as refusal:
            await read(stub.WatchInstances(WatchInstancesRequest(instance_id=9)))
        assert refusal.value.reason is Reason.UNKNOWN_INSTANCE


async def test_pages_show_every_instance_once_whatever_goes_meanwhile() -> None:
    board = board_of(*map(status, (1, 2, 3, 5, 8)))
    seen: list[int] = []
    token = ""
    async with served(board) as stub:
        while True:
            page = await call(stub.ListInstances, ListInstancesRequest(page_size=2, page_token=token), timeout=5)
            assert page.scale_down_disabled
            seen += [instance.instance_id for instance in page.instances]
            token = page.next_page_token
            if not token:
                break
            board.put(status(seen[-1], state=InstanceState.DELETED))
    assert seen == [1, 2, 3, 5, 8]


async def test_large_instances_are_fewer_on_a_page() -> None:
    """A page is a message that every client takes, and shows one instance at least."""
    sizes = dict(enumerate((900_000, 900_000, 900_000, 3_000_000, 10), start=1))
    board = board_of(*(replace(status(key), degraded=("x" * size,)) for key, size in sizes.items()))
    pages: list[list[int]] = []
    token = ""
    async with served(board) as stub:
        while token or not pages:
            page = await call(stub.ListInstances, ListInstancesRequest(page_token=token), timeout=5)
            assert page.ByteSize() < GRPC_DEFAULT
            pages.append([instance.instance_id for instance in page.instances])
            token = page.next_page_token
    assert pages == [[1, 2], [3], [4], [5]]


async def test_list_filters_by_job_and_shows_deleted_only_when_asked() -> None:
    board = board_of(status(1), status(2, job="other"), status(3, state=InstanceState.DELETED))

    async with served(board) as stub:

        async def ids(request: ListInstancesRequest) -> list[int]:
            page = await call(stub.ListInstances, request, timeout=5)
            return [instance.instance_id for instance in page.instances]

        assert await ids(ListInstancesRequest()) == [1, 2]
        assert await ids(ListInstancesRequest(job_name="other")) == [2]
        assert await ids(ListInstancesRequest(show_deleted=True)) == [1, 2, 3]
        assert await ids(ListInstancesRequest(page_token="1")) == [2]
        assert await ids(ListInstancesRequest(page_size=5000)) == [1, 2]


@pytest.mark.parametrize(
    ("size", "token", "path"),
    [
        (-1, "", "page_size"),
        (0, "x", "page_token"),
        (0, "-1", "page_token"),
        (0, "²", "page_token"),
        (0, 5000 * "1", "page_token"),
    ],
)
async def test_a_bad_page_is_refused_by_field(size: int, token: str, path: str) -> None:
    async with served(Board()) as stub:
        with pytest.raises(FieldError) as refusal:
            await call(stub.ListInstances, ListInstancesRequest(page_size=size, page_token=token), timeout=5)
    assert list(refusal.value.violations) == [path]


async def test_a_watch_begins_with_a_snapshot_and_goes_on_with_changes() -> None:
    """Revisions never go back; the end of the snapshot is said, also when it is empty."""
    board = board_of(status(1), status(2), replace(status(1), request_id="r-2"))
    async with served(board) as stub:
        watch = stub.WatchInstances(WatchInstancesRequest())
        snapshot = [await read(watch) for _ in range(3)]
        board.put(replace(status(2), request_id="r-3"))
        board.put(status(3))
        changes = [await read(watch) for _ in range(2)]
        empty = stub.WatchInstances(WatchInstancesRequest(instance_id=3))
        assert [(await read(empty)).instance.instance_id, (await read(empty)).snapshot_complete] == [3, True]
    said = [(each.instance.instance_id, each.revision, each.snapshot_complete) for each in snapshot + changes]
    assert said == [(2, 2, False), (1, 3, False), (0, 3, True), (2, 4, False), (3, 5, False)]


async def test_a_watch_of_nothing_yet_says_that_its_snapshot_is_complete() -> None:
    async with served(Board()) as stub:
        first = await read(stub.WatchInstances(WatchInstancesRequest()))
        assert first == WatchInstancesResponse(snapshot_complete=True)


async def test_a_watch_shows_progress_while_nothing_changes() -> None:
    """A client can tell a quiet Controller from a dead one."""
    board = board_of(status(1))
    async with served(board, progress_sec=0.05) as stub:
        watch = stub.WatchInstances(WatchInstancesRequest())
        messages = [await read(watch) for _ in range(4)]
        board.put(replace(status(1), request_id="r-2"))
        while not (change := await read(watch)).HasField("instance"):
            pass
    assert messages[2:] == [WatchInstancesResponse(revision=1)] * 2
    assert (change.instance.request_id, change.revision) == ("r-2", 2)


async def test_a_watch_of_one_instance_shows_no_other() -> None:
    """What happens to others is progress."""
    board = board_of(status(1), status(2))
    async with served(board) as stub:
        watch = stub.WatchInstances(WatchInstancesRequest(instance_id=1))
        assert [(await read(watch)).instance.instance_id for _ in range(2)] == [1, 0]
        board.put(replace(status(2), request_id="r-2"))
        board.put(replace(status(1), request_id="r-2"))
        other, own = await read(watch), await read(watch)
    assert (other.HasField("instance"), other.revision) == (False, 3)
    assert (own.instance.instance_id, own.revision) == (1, 4)


async def test_a_slow_watcher_is_cut_never_skipped() -> None:
    """It gets every change up to the cut, and then OVERLOADED."""
    board = board_of(status(1))
    async with served(board) as stub:
        watch = stub.WatchInstances(WatchInstancesRequest())
        await read(watch)
        await read(watch)
        for number in range(2 * WATCH_LIMIT):
            board.put(replace(status(1), request_id=f"r-{number}"))
        revisions: list[int] = []
        with pytest.raises(FtError) as cut:
            await _read_all(watch, revisions)
    assert cut.value.reason is Reason.OVERLOADED
    assert revisions == list(range(2, 2 + len(revisions)))
    assert WATCH_LIMIT <= len(revisions) < 2 * WATCH_LIMIT


async def _read_all(watch: Watch, revisions: list[int]) -> None:
    while True:
        revisions.append((await read(watch)).revision)
