"""``controller.core.ports.Store`` in etcd: each write is one transaction on its record and on the leader's key."""

import asyncio
import re
from collections.abc import Callable, Sequence

from controller.core.ports import Loaded, Stored
from controller.core.records import IdentityRecord, RuntimeRecord
from controller.store.codec import Kind, Row, UnreadableError, decode, encode, gather
from controller.store.etcd.client import EtcdClient
from controller.store.etcd.election import Candidacy, elected, queue_up
from controller.store.etcd.errors import RefusedError
from controller.store.etcd.lease import Lease
from controller.store.etcd.requests import after, created_at, delete_all, get, modified_at, put
from motor_ft.etcd import rpc_pb2 as pb
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.log import get_logger
from motor_ft.wire.tasks import Tasks

RETRY_SEC = 1.0
RESIGN_SEC = 1.0
"""How long to try to hand over at the end; without that a standby waits until the lease has expired."""
EPOCH_OFFSET, FLEET_EPOCH = "epoch_offset", "fleet_epoch"
NOT_RENEWED = "its lease was not renewed in time"

_log = get_logger(__name__)


class EtcdStore:
    """Leads once: after its leadership is lost nothing is written any more, and ``on_lost`` is told so, once.

    ``now`` is a clock in seconds that goes on while this machine sleeps, ``address`` where others find this Controller.
    """

    def __init__(
        self,
        client: EtcdClient,
        *,
        prefix: str,
        lease_ttl_sec: int,
        address: str,
        now: Callable[[], float],
        on_lost: Callable[[FtError], None],
    ) -> None:
        self._client = client
        self._prefix = prefix.rstrip("/").encode()
        self._lease_ttl_sec = lease_ttl_sec
        self._address = address
        self._now = now
        self._on_lost = on_lost
        self._tasks = Tasks("etcd")
        self._lease: Lease | None = None
        self._leadership: Candidacy | None = None
        self._lost: FtError | None = None
        self._leader = ""
        self._epoch = 0

    # --- leadership ---

    def leads(self) -> bool:
        return self._leadership is not None and self._lost is None and self._leadership.lease.holds

    def leader(self) -> str:
        return self._leader

    async def lead(self, above: int = 0) -> int:
        """Wait until this Controller leads; a later call only raises the epoch, by an offset that is stored.

        An epoch is the create revision of the leader's key plus that offset. A fleet that is ahead has followed a
        Controller on another etcd, or on this one before it lost its data: that is stored too, so that no Controller
        begins a term before an operator has seen to it. An equal epoch may have been told by this one itself.
        """
        if self._leadership is None:
            self._leadership = await self._campaign()
        revision = self._leadership.revision
        ahead, floor = (above, 0) if above > self._epoch else (0, self._epoch + 1 - revision)
        fleet = await self._count(FLEET_EPOCH, lambda seen: max(seen, ahead))
        epoch = revision + await self._count(EPOCH_OFFSET, lambda offset: max(offset, floor))
        if epoch <= fleet:
            raise self._behind(epoch, fleet)
        self._epoch = epoch
        return epoch

    def _behind(self, epoch: int, fleet: int) -> FtError:
        text = (
            f"the fleet has followed epoch {fleet}, here it would be {epoch}: this etcd has lost its data, or it is "
            "another one than the fleet's; if store.etcd names the right one: "
            f"motor-controller raise-epoch --config FILE --above {fleet}"
        )
        error = FtError(Reason.EPOCH_BEHIND_FLEET, text, got=epoch, current=fleet)
        if self._epoch:
            self._lose("its epoch is behind the fleet's", error)
        return error

    async def raise_epoch(self, above: int | None, *, dry_run: bool) -> tuple[int, int]:
        """For an operator, whoever leads: every later term is above; the offset before and after.

        Without ``above`` it is the highest epoch of the fleet that a Controller has met here. Raises FtError.
        """
        if above is None:
            above = _number(await self._read(self._key(FLEET_EPOCH)))
        key = self._key(EPOCH_OFFSET)
        kv = await self._read(key)
        offset = max(_number(kv), above)
        if offset > _number(kv) and not dry_run:
            change = pb.TxnRequest(compare=[modified_at(key, kv.mod_revision)], success=[put(key, b"%d" % offset)])
            if not (await self._client.txn(change)).succeeded:
                raise FtError(Reason.STORE_CONFLICT, f"{key.decode()} was changed at the same time; run it again")
        return _number(kv), offset

    async def close(self) -> None:
        self._leadership = None
        await self._resign()
        await self._client.close()

    async def _campaign(self) -> Candidacy:
        while True:
            try:
                return await self._stand()
            except RefusedError:
                raise
            except FtError as error:
                _log.warning("cannot stand for leadership, trying again", error=error.message)
            await self._resign()
            await asyncio.sleep(RETRY_SEC)

    async def _stand(self) -> Candidacy:
        """Queue up and wait; raises FtError also when the place is lost on the way."""
        self._lease = lease = await Lease.grant(self._client, self._lease_ttl_sec, self._now)
        keeper = self._tasks.spawn("lease", self._keep(lease))
        prefix = self._key("leader/")
        candidacy = await queue_up(self._client, prefix, lease, self._address)
        election = asyncio.create_task(elected(self._client, prefix, candidacy, self._follow), name="etcd/election")
        try:
            await asyncio.wait({keeper, election}, return_when=asyncio.FIRST_COMPLETED)
            if not lease.holds:
                raise FtError(Reason.STORE_UNAVAILABLE, NOT_RENEWED)
            election.result()
        finally:
            election.cancel()
            await asyncio.gather(election, return_exceptions=True)
        self._follow(self._address)
        return candidacy

    def _follow(self, leader: str) -> None:
        self._leader = leader

    async def _keep(self, lease: Lease) -> None:
        await lease.keep()
        if self._leadership is not None:
            self._lose(NOT_RENEWED)

    def _must_lead(self) -> Candidacy:
        if self._leadership is None:
            raise FtError(Reason.NOT_LEADER, "this Controller does not lead")
        if not self.leads():
            raise self._lose(NOT_RENEWED)
        return self._leadership

    def _lose(self, why: str, cause: FtError | None = None) -> FtError:
        if self._lost is None:
            text = f"this Controller leads no longer, {why}; it must start again and stand by"
            self._lost = FtError(Reason.NOT_LEADER, text)
            self._leader = ""
            self._on_lost(cause or self._lost)
        return self._lost

    async def _resign(self) -> None:
        """Let the next one lead at once."""
        await self._tasks.close()
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            async with asyncio.timeout(RESIGN_SEC):
                await self._client.revoke(lease.id)
        except (FtError, TimeoutError) as error:
            _log.warning("lease not given back, it expires by itself", error=str(error))

    # --- records ---

    async def next_instance_id(self) -> int:
        return await self._count("instance_id", lambda last: last + 1)

    async def load(self) -> Loaded:
        prefix = self._key("record/")
        found = await self._client.range(pb.RangeRequest(key=prefix, range_end=after(prefix)))
        return gather(row for kv in found.kvs if (row := self._row(kv)) is not None)

    async def runtime(self, instance_id: int) -> Stored[RuntimeRecord] | None:
        kv = await self._read(self._record(instance_id) + Kind.RUNTIME.encode())
        if not kv.mod_revision:
            return None
        try:
            return Stored(decode(kv.value, RuntimeRecord), kv.mod_revision)
        except UnreadableError as error:
            raise FtError(Reason.STORE_UNAVAILABLE, f"runtime record of instance {instance_id} {error}") from error

    async def save_runtime(self, instance_id: int, record: RuntimeRecord, expected: int) -> int:
        return await self._save(instance_id, Kind.RUNTIME, encode(record), expected)

    async def save_identity(self, record: IdentityRecord, expected: int) -> int:
        return await self._save(record.instance_id, Kind.IDENTITY, encode(record), expected)

    async def remove(self, instance_id: int) -> None:
        await self._write([delete_all(self._record(instance_id))])

    async def probe(self) -> None:
        """A write that is never carried out, for its conditions exclude each other; it leaves no revision behind.

        Etcd judges it as any other: it needs a majority, and room.
        """
        leader = self._must_lead()
        never = [created_at(leader.key, leader.revision), created_at(leader.key, 0)]
        change = pb.TxnRequest(compare=never, success=[put(self._key("probe"), b"")], failure=[get(leader.key)])
        (found,) = (await self._client.txn(change)).responses
        if _only(found.response_range).create_revision != leader.revision:
            raise self._lose("another one has taken over")

    async def _save(self, instance_id: int, kind: Kind, body: bytes, expected: int) -> int:
        key = self._record(instance_id) + kind.encode()
        return await self._write([put(key, body)], [modified_at(key, expected)])

    async def _count(self, name: str, change: Callable[[int], int]) -> int:
        """Change a durable number, from 0, and return it."""
        self._must_lead()
        key = self._key(name)
        kv = await self._read(key)
        value = change(_number(kv))
        await self._write([put(key, b"%d" % value)], [modified_at(key, kv.mod_revision)])
        return value

    async def _read(self, key: bytes) -> pb.KeyValue:
        return _only(await self._client.range(pb.RangeRequest(key=key)))

    async def _write(self, changes: Sequence[pb.RequestOp], on: Sequence[pb.Compare] = ()) -> int:
        """Change and return the new revision, if this Controller leads and all of ``on`` holds."""
        leader = self._must_lead()
        compare = [created_at(leader.key, leader.revision), *on]
        look = [get(key.key) for key in compare]
        response = await self._client.txn(pb.TxnRequest(compare=compare, success=changes, failure=look))
        if response.succeeded:
            return response.header.revision
        found = [_only(reply.response_range) for reply in response.responses]
        if found[0].create_revision != leader.revision:
            raise self._lose("another one has taken over")
        text = f"{on[0].key.decode()} is at revision {found[1].mod_revision}, not {on[0].mod_revision}"
        raise FtError(Reason.STORE_CONFLICT, text)

    def _row(self, kv: pb.KeyValue) -> Row | None:
        """None for a key that is no record of ours: a later version may have written it."""
        name = kv.key.removeprefix(self._key("record/")).decode(errors="replace")
        instance_id, _, kind = name.partition("/")
        if not re.fullmatch("[0-9]{1,19}", instance_id) or kind not in set(Kind):
            _log.warning("this key is no record and is left alone", key=name)
            return None
        return Row(Kind(kind), int(instance_id), kv.mod_revision, kv.value)

    def _record(self, instance_id: int) -> bytes:
        return self._key(f"record/{instance_id}/")

    def _key(self, name: str) -> bytes:
        return self._prefix + b"/" + name.encode()


def _only(found: pb.RangeResponse) -> pb.KeyValue:
    """Return the key that was read; an empty one, all of whose revisions are 0, when it does not exist."""
    return found.kvs[0] if found.kvs else pb.KeyValue()


def _number(kv: pb.KeyValue) -> int:
    """0 for a key that does not exist."""
    try:
        return int(kv.value or b"0")
    except ValueError:
        raise RefusedError(f"the value of {kv.key.decode()} is not a number: {kv.value!r}") from None
