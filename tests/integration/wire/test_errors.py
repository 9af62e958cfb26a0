"""What one side raises, the other side raises."""

import asyncio

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from structlog.testing import capture_logs

from motor_ft.model.errors import CATALOG, FieldError, FtError, Reason
from motor_ft.v1 import node_manager_pb2, node_manager_pb2_grpc
from motor_ft.wire.channel import call, open_channel
from motor_ft.wire.errors import DETAILS_KEY, abort, from_rpc_error
from tests.integration.wire.support import SERVICE, TIMEOUT, Context, Ledger, Served, Servicer, guard


async def raised(served: Served, error: BaseException) -> FtError:
    async def act(_context: Context) -> None:
        raise error

    served.servicer.act = act
    with pytest.raises(FtError) as refused:
        await call(served.stub.Guard, guard(), timeout=TIMEOUT)
    return refused.value


def test_the_catalog_has_every_reason_with_a_code_that_exists() -> None:
    assert CATALOG.keys() == set(Reason)
    assert {kind.grpc_code for kind in CATALOG.values()} <= set(grpc.StatusCode.__members__) - {"OK"}


@pytest.mark.parametrize("reason", CATALOG)
async def test_every_reason_crosses_the_wire_and_comes_back_equal(served: Served, reason: Reason) -> None:
    sent = FtError(reason, "what, wo und was — 说明", got=1, holder="x")
    got = await raised(served, sent)
    assert (got.reason, got.message, got.metadata) == (reason, sent.message, {"got": "1", "holder": "x"})
    await served.counts(1, "motor_ft_refusals_total", reason=reason)
    labels = {"service": "motor_ft.v1.NodeManagerService", "method": "Guard", "code": CATALOG[reason].grpc_code}
    await served.counts(1, "motor_ft_rpc_total", **labels)


async def test_field_violations_come_back_equal(served: Served) -> None:
    got = await raised(served, FieldError({"plan.survivors[0].dp_rank": "negative", "lease": "absent"}))
    assert isinstance(got, FieldError)
    assert got.violations == {"plan.survivors[0].dp_rank": "negative", "lease": "absent"}


@pytest.mark.parametrize("letter", ["x", "\U0001f600"])
async def test_an_error_with_a_huge_text_keeps_its_reason(served: Served, letter: str) -> None:
    got = await raised(served, FtError(Reason.ENGINE_REFUSED, letter * 100_000, body=letter * 100_000))
    assert got.reason is Reason.ENGINE_REFUSED
    assert got.message == letter * len(got.message)


@pytest.mark.parametrize("reason", [Reason.NOT_LEADER, Reason.OVERLOADED])
async def test_who_may_come_again_is_told_when(served: Served, reason: Reason) -> None:
    async def act(_context: Context) -> None:
        raise FtError(reason, "later")

    served.servicer.act = act
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await served.stub.Guard(guard(), timeout=TIMEOUT)
    status = status_pb2.Status.FromString(refused.value.trailing_metadata()[DETAILS_KEY])
    retry = error_details_pb2.RetryInfo()
    assert [detail.Unpack(retry) for detail in status.details] == [False, True]
    assert retry.retry_delay.seconds > 0


async def test_the_text_of_an_unexpected_exception_is_logged_and_never_sent(served: Served) -> None:
    with capture_logs() as logs:
        got = await raised(served, RuntimeError("password=secret"))
    assert got.reason is Reason.INTERNAL
    assert "secret" not in str(got)
    (line,) = [line for line in logs if line["log_level"] == "error"]
    assert line["exc_info"].args == ("password=secret",)
    await served.counts(1, "motor_ft_refusals_total", reason="INTERNAL")


@pytest.mark.parametrize("method", ["Guard", "WatchStatus"])
async def test_bytes_that_are_no_message_are_an_invalid_request_and_no_exception(served: Served, method: str) -> None:
    """Nothing of the decoder reaches the caller, and nobody can fill the log with its traces."""
    async with grpc.aio.insecure_channel(served.address) as channel:
        unary: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/{method}")
        stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"/{SERVICE}/{method}")
        with capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError) as refused:
            await (unary(b"\xff", timeout=TIMEOUT) if method == "Guard" else stream(b"\xff", timeout=TIMEOUT).read())
    assert from_rpc_error(refused.value).reason is Reason.INVALID_REQUEST
    assert "DecodeError" not in str(refused.value)
    assert [line["log_level"] for line in logs] == ["info"]
    assert served.ledger.asked == []


async def test_a_stream_does_not_leak_either(served: Served) -> None:
    async def watch(_context: Context):  # type: ignore[no-untyped-def]
        yield None
        raise RuntimeError("password=secret")

    served.servicer.watch = watch
    stream = served.stub.WatchStatus(node_manager_pb2.WatchStatusRequest(header=guard().header))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        [response async for response in stream]
    got = from_rpc_error(refused.value)
    assert got.reason is Reason.INTERNAL
    assert "secret" not in str(refused.value)


async def test_a_refusal_of_one_message_ends_the_stream_with_its_reason_and_is_counted(served: Served) -> None:
    async def watch(context: Context):  # type: ignore[no-untyped-def]
        yield None
        await abort(context, FtError(Reason.STALE_INCARNATION, "old reporter"))

    served.servicer.watch = watch
    stream = served.stub.WatchStatus(node_manager_pb2.WatchStatusRequest(header=guard().header))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        [response async for response in stream]
    assert from_rpc_error(refused.value).reason is Reason.STALE_INCARNATION
    await served.counts(1, "motor_ft_refusals_total", reason="STALE_INCARNATION")
    assert served.count("motor_ft_refusals_total", reason="INTERNAL") == 0


async def test_a_server_that_is_gone_leaves_the_outcome_unknown_and_is_named(served: Served) -> None:
    await served.server.stop(0)
    with pytest.raises(FtError) as refused:
        await call(served.stub.Guard, guard(), timeout=TIMEOUT)
    assert refused.value.reason is Reason.OUTCOME_UNKNOWN
    assert f"/motor_ft.v1.NodeManagerService/Guard of node manager at {served.address}" in str(refused.value)


async def test_a_deadline_leaves_the_outcome_unknown(served: Served) -> None:
    async def act(_context: Context) -> None:
        await asyncio.Event().wait()

    served.servicer.act = act
    with pytest.raises(FtError, match=r"DEADLINE_EXCEEDED: /motor_ft.v1.NodeManagerService/Guard of") as refused:
        await call(served.stub.Guard, guard(), timeout=0.05)
    assert refused.value.reason is Reason.OUTCOME_UNKNOWN


@pytest.mark.parametrize("domain", ["example.com", "motor-ft"])
async def test_a_foreign_error_is_internal_whatever_its_details_say(domain: str) -> None:
    class Foreign(Servicer):
        async def Guard(
            self, request: node_manager_pb2.GuardRequest, context: Context
        ) -> node_manager_pb2.GuardResponse:
            status = status_pb2.Status(code=9)
            status.details.add().Pack(error_details_pb2.ErrorInfo(reason="FROM_THE_FUTURE", domain=domain))
            metadata = ((DETAILS_KEY, status.SerializeToString()),)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no", metadata)

    server = grpc.aio.server()
    node_manager_pb2_grpc.add_NodeManagerServiceServicer_to_server(Foreign(Ledger()), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(FtError, match="FAILED_PRECONDITION: no") as refused:
            await call(node_manager_pb2_grpc.NodeManagerServiceStub(channel).Guard, guard(), timeout=TIMEOUT)
    await server.stop(0)
    assert refused.value.reason is Reason.INTERNAL
