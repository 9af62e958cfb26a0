"""Which requests are sent again, and to whom; members are fakes that count: a real one does not fail on cue."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from controller.store.etcd.client import EtcdClient
from controller.store.etcd.errors import RefusedError
from motor_ft.etcd import rpc_pb2 as pb
from motor_ft.etcd.rpc_pb2_grpc import KVServicer, add_KVServicer_to_server
from motor_ft.model.errors import FtError, Reason

Context = grpc.aio.ServicerContext[Any, Any]
Failure = tuple[grpc.StatusCode, str]

TIMED_OUT: Failure = (grpc.StatusCode.UNAVAILABLE, "etcdserver: request timed out")
NO_LEADER: Failure = (grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader")
TOO_LARGE: Failure = (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large")
NO_SPACE: Failure = (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")


class FakeMember(KVServicer):
    """Fails the next requests as it is told, and answers the others."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self.requests = 0
        self.server = grpc.aio.server()
        self.endpoint = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        add_KVServicer_to_server(self, self.server)

    async def Range(self, request: pb.RangeRequest, context: Context) -> pb.RangeResponse:
        await self._take(context)
        return pb.RangeResponse()

    async def Txn(self, request: pb.TxnRequest, context: Context) -> pb.TxnResponse:
        await self._take(context)
        return pb.TxnResponse(succeeded=True)

    async def _take(self, context: Context) -> None:
        self.requests += 1
        if self.failures:
            await context.abort(*self.failures.pop(0))


@pytest.fixture
async def members() -> AsyncIterator[list[FakeMember]]:
    members = [FakeMember(), FakeMember()]
    for member in members:
        await member.server.start()
    yield members
    for member in members:
        await member.server.stop(0)


@pytest.fixture
async def client(members: list[FakeMember]) -> AsyncIterator[EtcdClient]:
    client = EtcdClient([member.endpoint for member in members])
    yield client
    await client.close()


def counts(members: list[FakeMember]) -> list[int]:
    return [member.requests for member in members]


async def test_a_read_goes_to_the_next_member(client: EtcdClient, members: list[FakeMember]) -> None:
    """And later calls stay there."""
    members[0].failures = [TIMED_OUT]
    await client.range(pb.RangeRequest())
    await client.range(pb.RangeRequest())
    assert counts(members) == [1, 2]


async def test_a_write_that_may_have_been_done_is_never_sent_again(
    client: EtcdClient, members: list[FakeMember]
) -> None:
    """The caller is told; its next write goes to the next member."""
    members[0].failures = [TIMED_OUT]
    with pytest.raises(FtError, match="request timed out") as failure:
        await client.txn(pb.TxnRequest())
    assert failure.value.reason is Reason.STORE_UNAVAILABLE
    assert not isinstance(failure.value, RefusedError)
    assert counts(members) == [1, 0]
    await client.txn(pb.TxnRequest())
    assert counts(members) == [1, 1]


async def test_a_write_that_was_turned_away_goes_to_the_next_member(
    client: EtcdClient, members: list[FakeMember]
) -> None:
    """A member without a majority has not looked at it."""
    members[0].failures = [NO_LEADER]
    await client.txn(pb.TxnRequest())
    assert counts(members) == [1, 1]


async def test_a_write_goes_past_a_member_that_is_down(client: EtcdClient, members: list[FakeMember]) -> None:
    """Nothing was sent to it."""
    await members[0].server.stop(0)
    await client.txn(pb.TxnRequest())
    assert counts(members) == [0, 1]


async def test_a_refusal_is_final(client: EtcdClient, members: list[FakeMember]) -> None:
    """Another member would say the same."""
    members[0].failures = [TOO_LARGE, NO_SPACE]
    with pytest.raises(RefusedError, match="request is too large"):
        await client.range(pb.RangeRequest())
    with pytest.raises(RefusedError, match="database space exceeded"):
        await client.txn(pb.TxnRequest())
    assert counts(members) == [2, 0]
