"""Who leads: Controllers queue up under one prefix, and the oldest key leads."""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from controller.store.etcd.client import EtcdClient
from controller.store.etcd.errors import CompactedError
from controller.store.etcd.lease import Lease
from controller.store.etcd.requests import after, put
from motor_ft.etcd import rpc_pb2 as pb
from motor_ft.wire.log import get_logger

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Candidacy:
    """A place in the queue: a key that lives as long as its lease, known by the revision that created it."""

    key: bytes
    revision: int
    lease: Lease


async def queue_up(client: EtcdClient, prefix: bytes, lease: Lease, address: str) -> Candidacy:
    """Take the last place; ``address`` is where whoever asks finds this Controller. Raises FtError."""
    key = prefix + f"{lease.id:016x}".encode()
    response = await client.txn(pb.TxnRequest(success=[put(key, address.encode(), lease.id)]))
    return Candidacy(key, response.header.revision, lease)


async def elected(client: EtcdClient, prefix: bytes, mine: Candidacy, follow: Callable[[str], None]) -> None:
    """Return when every key before is gone; ``follow`` is told who leads until then. Raises FtError."""
    while True:
        response = await client.range(
            pb.RangeRequest(
                key=prefix,
                range_end=after(prefix),
                max_create_revision=mine.revision - 1,
                sort_target=pb.RangeRequest.CREATE,
                sort_order=pb.RangeRequest.ASCEND,
                limit=1,
            )
        )
        if not response.kvs:
            return
        leader = response.kvs[0].value.decode(errors="replace")
        follow(leader)
        _log.info("standing by", leader=leader)
        await _deleted(client, response.kvs[0].key, response.header.revision + 1)


async def _deleted(client: EtcdClient, key: bytes, revision: int) -> None:
    """Return when the key is deleted, or has been in revisions that are not kept any more."""
    try:
        async with aclosing(client.watch(key, revision)) as events:
            async for event in events:
                if event.type == pb.Event.DELETE:
                    return
    except CompactedError:
        return
