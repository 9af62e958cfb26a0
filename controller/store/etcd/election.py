"""Who leads: Controllers queue up under one prefix, the oldest key leads, each other one watches the key before it."""

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


async def queue_up(client: EtcdClient, prefix: bytes, lease: Lease, name: str) -> Candidacy:
    """Take the last place; ``name`` is for people who look at the keys. Raises FtError."""
    key = prefix + f"{lease.id:016x}".encode()
    response = await client.txn(pb.TxnRequest(success=[put(key, name.encode(), lease.id)]))
    return Candidacy(key, response.header.revision, lease)


async def elected(client: EtcdClient, prefix: bytes, mine: Candidacy) -> None:
    """Return when every key before is gone. Raises FtError."""
    while True:
        response = await client.range(
            pb.RangeRequest(
                key=prefix,
                range_end=after(prefix),
                max_create_revision=mine.revision - 1,
                sort_target=pb.RangeRequest.CREATE,
                sort_order=pb.RangeRequest.DESCEND,
                limit=1,
            )
        )
        if not response.kvs:
            return
        before = response.kvs[0]
        _log.info("standing by", behind=before.value.decode(errors="replace"))
        await _deleted(client, before.key, response.header.revision + 1)


async def _deleted(client: EtcdClient, key: bytes, revision: int) -> None:
    """Return when the key is deleted, or has been in revisions that are not kept any more."""
    try:
        async with aclosing(client.watch(key, revision)) as events:
            async for event in events:
                if event.type == pb.Event.DELETE:
                    return
    except CompactedError:
        return
