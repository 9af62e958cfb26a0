"""Every unary call has a timeout and bears its identities."""

import asyncio

import pytest

from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import node_manager_pb2, node_manager_pb2_grpc
from motor_ft.wire.authorizer import SharedToken
from motor_ft.wire.channel import call, connected, open_channel
from motor_ft.wire.policy import POLICIES, MethodPolicy
from tests.integration.wire.support import TIMEOUT, Context, Served, guard, serving

PROTECTED = {
    **POLICIES,
    "/motor_ft.v1.NodeManagerService/Guard": MethodPolicy(command=True, authenticated=True),
    "/motor_ft.v1.NodeManagerService/WatchStatus": MethodPolicy(command=True, authenticated=True),
}


async def test_a_unary_call_without_a_timeout_is_a_mistake(served: Served) -> None:
    with pytest.raises(ValueError, match=r"/motor_ft.v1.NodeManagerService/Guard of .* needs a timeout"):
        await served.stub.Guard(guard())


async def test_the_request_id_of_the_header_is_sent_as_metadata(served: Served) -> None:
    sent: list[object] = []

    async def act(context: Context) -> None:
        sent.extend(value for key, value in context.invocation_metadata() or () if key == "x-request-id")

    served.servicer.act = act
    await call(served.stub.Guard, guard("r42"), timeout=TIMEOUT)
    assert sent == ["r42"]


async def test_the_right_token_opens_unary_calls_and_streams() -> None:
    async with serving(policies=PROTECTED, authorizer=SharedToken("t"), token="t") as served:
        await call(served.stub.Guard, guard(), timeout=TIMEOUT)
        stream = served.stub.WatchStatus(node_manager_pb2.WatchStatusRequest(header=guard().header))
        assert len([response async for response in stream]) == 1


@pytest.mark.parametrize("token", ["", "other"])
async def test_no_token_or_another_is_refused_before_the_ledger_is_asked(token: str) -> None:
    async with serving(policies=PROTECTED, authorizer=SharedToken("t"), token=token) as served:
        with pytest.raises(FtError) as refused:
            await call(served.stub.Guard, guard(), timeout=TIMEOUT)
        assert refused.value.reason is Reason.UNAUTHENTICATED
        assert served.ledger.asked == []


async def test_what_the_table_leaves_open_needs_no_token() -> None:
    async with serving(policies=PROTECTED, authorizer=SharedToken("t")) as served:
        await call(served.stub.Finalize, node_manager_pb2.FinalizeRequest(header=guard().header), timeout=TIMEOUT)


async def test_a_call_whose_channel_is_closed_has_no_known_outcome_and_one_that_is_cancelled_is() -> None:
    async with serving() as served:
        arrived = asyncio.Semaphore(0)

        async def act(context: Context) -> None:
            arrived.release()
            await asyncio.Event().wait()

        served.servicer.act = act
        channel = open_channel(served.address)
        stub = node_manager_pb2_grpc.NodeManagerServiceStub(channel)
        calls = [asyncio.create_task(call(stub.Guard, guard(name), timeout=TIMEOUT)) for name in ("a", "b")]
        for _ in calls:
            await arrived.acquire()
        calls[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[0]
        await channel.close()
        with pytest.raises(FtError) as unknown:
            await calls[1]
        assert unknown.value.reason is Reason.OUTCOME_UNKNOWN
        assert not await connected(channel)
