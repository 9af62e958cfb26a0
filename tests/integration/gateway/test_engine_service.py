"""EngineService as a NodeManager reaches it: on a unix socket, through every interceptor."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import grpc
import pytest
from prometheus_client import CollectorRegistry

from gateway.app import ENGINE_SERVICE, build_engine_service
from gateway.config import EngineAddress, EngineGatewayConfig
from motor_ft.model.command import Command
from motor_ft.model.errors import FieldError, FtError, Reason
from motor_ft.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from motor_ft.wire.channel import call, open_channel
from motor_ft.wire.convert import command_to_header, duration_to_pb
from motor_ft.wire.metrics import RpcMetrics
from motor_ft.wire.policy import POLICIES
from motor_ft.wire.server import RpcServer
from tests.support.engine import FakeGroup

Stub: TypeAlias = "engine_pb2_grpc.EngineServiceAsyncStub"


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with FakeGroup(2, "vllm_v1") as group:
        yield group


@pytest.fixture
async def stub(group: FakeGroup, tmp_path: Path) -> AsyncIterator[Stub]:
    async with serving(group, tmp_path) as stub:
        yield stub


@asynccontextmanager
async def serving(group: FakeGroup, tmp_path: Path, dialect: Literal["auto", "sglang"] = "auto") -> AsyncIterator[Stub]:
    registry = CollectorRegistry()
    engines = tuple(EngineAddress(rank, group.url(rank)) for rank in range(group.config.dp_size))
    parts = build_engine_service(EngineGatewayConfig(engines=engines, dialect=dialect), registry)
    server = RpcServer(
        name="test",
        listen=f"unix:{tmp_path}/engine.sock",
        metrics=RpcMetrics(registry),
        policies=POLICIES,
        commands=parts.ledger,
    )
    server.add(ENGINE_SERVICE, engine_pb2_grpc.add_EngineServiceServicer_to_server, parts.servicer)
    await server.start()
    async with open_channel(f"unix:{tmp_path}/engine.sock") as channel:
        yield engine_pb2_grpc.EngineServiceStub(channel)
    await server.stop(1.0)
    await parts.close()


def target(rank: int, incarnation: str = "e1") -> engine_pb2.EngineTarget:
    return engine_pb2.EngineTarget(dp_rank=rank, engine_incarnation=incarnation)


def instruction(request_id: str = "r1", epoch: int = 5, **fields: Any) -> engine_pb2.ApplyInstructionRequest:
    values: dict[str, Any] = {
        "header": command_to_header(Command(7, request_id, epoch, 1)),
        "instruction": common_pb2.INSTRUCTION_SCALE_DOWN,
        "targets": [target(0)],
        "removed_dp_ranks": [1],
        "dp_master_ip": "127.0.0.1",
        "dp_store_port": 29500,
        "lease_remaining": duration_to_pb(60.0),
    }
    return engine_pb2.ApplyInstructionRequest(**(values | fields))


async def read(stub: Stub, *ranks: int) -> list[common_pb2.EngineObservation]:
    request = engine_pb2.GetEngineStatusRequest(targets=[target(rank) for rank in ranks])
    return list((await call(stub.GetEngineStatus, request, timeout=5.0)).observations)


async def apply(stub: Stub, request: engine_pb2.ApplyInstructionRequest) -> common_pb2.RankOutcome:
    (outcome,) = (await call(stub.ApplyInstruction, request, timeout=5.0)).outcomes
    return outcome


async def refused(stub: Stub, request: engine_pb2.ApplyInstructionRequest) -> FtError:
    with pytest.raises(FtError) as caught:
        await call(stub.ApplyInstruction, request, timeout=5.0)
    return caught.value


async def test_engines_are_read_and_named_by_incarnation(stub: Stub) -> None:
    first, second = await read(stub, 1, 0)
    assert (first.dp_rank, second.dp_rank) == (1, 0)
    assert (first.status, first.engine_incarnation) == (common_pb2.ENGINE_STATUS_HEALTHY, "e1")
    (later,) = await read(stub, 1)
    assert later.observation > first.observation


async def test_counters_begin_above_those_of_an_earlier_process(stub: Stub) -> None:
    """Counting starts at this machine's monotonic clock, which no process can have out-counted."""
    before = time.monotonic_ns()
    (reading,) = await read(stub, 0)
    assert 0 < reading.observation <= before + 1


async def test_a_watch_begins_with_every_rank_and_goes_on_with_changes(stub: Stub, group: FakeGroup) -> None:
    request = engine_pb2.WatchEngineRequest(
        targets=[target(0), target(1)], interval=duration_to_pb(0.01), timeout=duration_to_pb(5.0)
    )
    call = stub.WatchEngine(request, timeout=30.0)
    stream = aiter(call)
    assert {(await anext(stream)).observation.dp_rank for _ in range(2)} == {0, 1}
    await group.inject(1, "worker_kill")
    while (reading := (await anext(stream)).observation).status != common_pb2.ENGINE_STATUS_DEAD:
        pass
    assert reading.dp_rank == 1
    call.cancel()


async def test_a_scale_down_reaches_the_engine_in_its_words(stub: Stub, group: FakeGroup) -> None:
    await read(stub, 0)
    outcome = await apply(stub, instruction())
    assert (outcome.outcome, outcome.engine_request_id) == (common_pb2.APPLY_OUTCOME_ACCEPTED, "r1")
    (record,) = group.applies()
    assert record.body == {
        "instruction": "scale_down",
        "request_id": "r1",
        "params": {"removed_dp_ranks": [1], "dp_master_ip": "127.0.0.1", "dp_store_port": 29500},
    }


async def test_a_server_of_all_ranks_gets_one_order_with_what_is_not_retired(tmp_path: Path) -> None:
    async with FakeGroup(4, "sglang") as group, serving(group, tmp_path, "sglang") as stub:
        await read(stub, 0, 2, 3)
        order = instruction(targets=[target(0), target(3)], removed_dp_ranks=[1, 2], retired_dp_ranks=[1])
        outcomes = (await call(stub.ApplyInstruction, order, timeout=5.0)).outcomes
        assert [(each.dp_rank, each.outcome, each.engine_request_id) for each in outcomes] == [
            (rank, common_pb2.APPLY_OUTCOME_ACCEPTED, "r1") for rank in (0, 3)
        ]
        (record,) = group.applies()
        assert record.body == {"instruction": "scale_down", "request_id": "r1", "params": {"removed_dp_ranks": [2]}}


async def test_a_server_of_all_ranks_gets_nothing_when_one_of_them_is_another_process(tmp_path: Path) -> None:
    async with FakeGroup(2, "sglang") as group, serving(group, tmp_path, "sglang") as stub:
        await read(stub, 0, 1)
        retry: dict[str, Any] = {"removed_dp_ranks": [], "dp_master_ip": "", "dp_store_port": 0}
        order = instruction(instruction=common_pb2.INSTRUCTION_RETRY, targets=[target(0), target(1, "e2")], **retry)
        outcomes = (await call(stub.ApplyInstruction, order, timeout=5.0)).outcomes
        assert {each.outcome for each in outcomes} == {common_pb2.APPLY_OUTCOME_NOT_SENT}
        assert group.applies() == []


async def test_a_repeated_command_gets_the_first_answer_and_sends_nothing(stub: Stub, group: FakeGroup) -> None:
    await read(stub, 0)
    first = await apply(stub, instruction())
    assert await apply(stub, instruction(lease_remaining=duration_to_pb(3.0))) == first
    assert len(group.applies()) == 1
    error = await refused(stub, instruction(dp_store_port=29501))
    assert error.reason is Reason.REQUEST_ID_REUSED


async def test_a_lower_epoch_is_refused_before_any_cached_answer(stub: Stub, group: FakeGroup) -> None:
    await read(stub, 0)
    await apply(stub, instruction("old", epoch=5))
    await apply(stub, instruction("new", epoch=6))
    error = await refused(stub, instruction("old", epoch=5))
    assert (error.reason, error.metadata) == (Reason.STALE_EPOCH, {"got": "5", "current": "6"})
    assert len(group.applies()) == 2


async def test_an_engine_that_was_never_declared_gets_nothing(stub: Stub, group: FakeGroup) -> None:
    outcome = await apply(stub, instruction())
    assert outcome.outcome == common_pb2.APPLY_OUTCOME_NOT_SENT
    assert group.applies() == []


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"instruction": common_pb2.INSTRUCTION_UNSPECIFIED}, "instruction"),
        ({"instruction": 99}, "instruction"),
        ({"targets": []}, "targets"),
        ({"targets": [target(0), target(0)]}, "targets"),
        ({"targets": [target(-1)]}, "targets[0].dp_rank"),
        ({"targets": [target(0, "")]}, "targets[0].engine_incarnation"),
        ({"targets": [target(1)]}, "targets"),
        ({"removed_dp_ranks": []}, "removed_dp_ranks"),
        ({"removed_dp_ranks": [2, 1]}, "removed_dp_ranks"),
        ({"retired_dp_ranks": [2]}, "retired_dp_ranks"),
        ({"dp_master_ip": ""}, "dp_master_ip"),
        ({"dp_store_port": 0}, "dp_store_port"),
        ({"dp_store_port": 70000}, "dp_store_port"),
        ({"lease_remaining": None}, "lease_remaining"),
        ({"lease_remaining": duration_to_pb(3601)}, "lease_remaining"),
        ({"timeout": duration_to_pb(-1)}, "timeout"),
        ({"instruction": common_pb2.INSTRUCTION_RETRY}, "removed_dp_ranks"),
        ({"instruction": common_pb2.INSTRUCTION_RETRY, "removed_dp_ranks": []}, "dp_master_ip"),
        (
            {"instruction": common_pb2.INSTRUCTION_RETRY, "removed_dp_ranks": [], "dp_master_ip": ""},
            "dp_store_port",
        ),
        ({"header": command_to_header(Command(0, "r1", 5, 1))}, "header.instance_id"),
        ({"header": command_to_header(Command(7, "r1", None, None))}, "header.controller_epoch"),
    ],
)
async def test_a_bad_field_is_named_and_nothing_is_sent(
    stub: Stub, group: FakeGroup, fields: dict[str, Any], path: str
) -> None:
    await read(stub, 0)
    error = await refused(stub, instruction(**fields))
    assert isinstance(error, FieldError)
    assert path in error.violations
    assert group.applies() == []


async def test_a_watch_without_an_interval_is_refused(stub: Stub) -> None:
    stream = stub.WatchEngine(engine_pb2.WatchEngineRequest(targets=[target(0)]), timeout=5.0)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_rank_of_another_pod_is_unknown(stub: Stub) -> None:
    with pytest.raises(FtError) as caught:
        await read(stub, 7)
    assert caught.value.reason is Reason.UNKNOWN_RANK


async def test_one_token_proves_that_an_engine_serves(stub: Stub, group: FakeGroup) -> None:
    await read(stub, 0)
    request = engine_pb2.ProbeCompletionRequest(target=target(0), timeout=duration_to_pb(5.0))
    assert (await call(stub.ProbeCompletion, request, timeout=5.0)).outcome == common_pb2.PROBE_OUTCOME_SERVED
    await group.inject(0, "completions_fail")
    response = await call(stub.ProbeCompletion, request, timeout=5.0)
    assert response.outcome == common_pb2.PROBE_OUTCOME_FAILED
    assert "HTTP 500" in response.detail
