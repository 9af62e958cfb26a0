"""A thin client of etcd's v3 API: what may be repeated fails over, a write is sent once (docs/adr/0001)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import grpc

from controller.store.etcd.errors import CompactedError, RefusedError, failed, not_taken, stale_token, unavailable
from controller.store.etcd.member import Login, Member
from motor_ft.etcd import rpc_pb2 as pb
from motor_ft.model.errors import FtError
from motor_ft.wire.log import get_logger

PAUSE_SEC = 0.05
"""After a failure, before the next attempt."""

T = TypeVar("T")
_Call = Callable[[Member, dict[str, Any]], Awaitable[T]]
_log = get_logger(__name__)


class EtcdClient:
    """Calls one member at a time, the next one after a failure.

    ``timeout_sec`` bounds every call with all its attempts; ``told`` is told why one failed, and with an empty text
    that something was written. Failures are FtError ``STORE_UNAVAILABLE``: a RefusedError where etcd said so; else
    nobody answered, and of a ``txn`` it is not known whether it was done.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        credentials: grpc.ChannelCredentials | None = None,
        login: Login | None = None,
        timeout_sec: float = 5.0,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._members = [Member(endpoint, credentials) for endpoint in endpoints]
        self._current = 0
        self._login = login
        self._token = ""
        self._timeout_sec = timeout_sec
        self._told = told
        self._closed = False

    async def range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        """Read, linearizable."""
        return await self._call("read", lambda member, sent: member.kv.Range(request, **sent))

    async def txn(self, request: pb.TxnRequest) -> pb.TxnResponse:
        """Compare and write; sent again only where the first member cannot have taken it."""
        response = await self._call("write", lambda member, sent: member.kv.Txn(request, **sent), once=True)
        self._told("")  # nothing else shows it: without room etcd still reads, and renews leases
        return response

    async def grant(self, ttl_sec: int) -> pb.LeaseGrantResponse:
        """A new lease; one whose reply was lost ends by itself."""
        request = pb.LeaseGrantRequest(TTL=ttl_sec)
        granted = await self._call("lease grant", lambda member, sent: member.lease.LeaseGrant(request, **sent))
        self._told("")
        return granted

    async def revoke(self, lease_id: int) -> None:
        """End a lease and delete its keys; one that is gone is a RefusedError."""
        request = pb.LeaseRevokeRequest(ID=lease_id)
        await self._call("lease revoke", lambda member, sent: member.lease.LeaseRevoke(request, **sent))

    async def keep_alive(self, lease_id: int, *, timeout: float) -> int:
        """Renew a lease, one attempt; returns the seconds that it lasts from when etcd took this, 0: it is gone."""
        request = pb.LeaseKeepAliveRequest(ID=lease_id)

        async def renew(member: Member, sent: dict[str, Any]) -> int:
            replies = [reply.TTL async for reply in member.lease.LeaseKeepAlive(iter([request]), **sent)]
            return replies[0] if replies else 0

        member = self._member()
        try:
            ttl_sec = await self._authenticated(member, renew, timeout)
        except grpc.aio.AioRpcError as error:
            self._leave(member)
            failure = failed("lease keepalive", member.endpoint, error)
            self._told(failure.message)
            raise failure from error
        return ttl_sec

    async def watch(self, key: bytes, revision: int) -> AsyncGenerator[pb.Event]:
        """Every event of a key from a revision on, over failures of members; does not end by itself.

        Raises CompactedError or RefusedError.
        """
        while True:
            member = self._member()
            try:
                async with aclosing(self._watch_at(member, key, revision)) as events:
                    async for event in events:
                        # The event's, never the header's: that may be ahead of events that are still to come.
                        revision = event.kv.mod_revision + 1
                        yield event
            except grpc.aio.AioRpcError as error:
                self._leave(member)
                failure = failed("watch", member.endpoint, error)
                if isinstance(failure, RefusedError):
                    raise failure from error
                _log.warning("watch interrupted", error=failure.message)
                await asyncio.sleep(PAUSE_SEC)

    async def close(self) -> None:
        """Let go of the connections; every call fails from now on."""
        self._closed = True
        for member in self._members:
            await member.close()

    async def _watch_at(self, member: Member, key: bytes, revision: int) -> AsyncGenerator[pb.Event]:
        """Events of one stream; ends when a new login may help."""
        fresh = not self._token
        await self._log_in(member, self._timeout_sec)
        token = self._token
        call = member.watch.Watch(metadata=self._metadata())
        try:
            create = pb.WatchCreateRequest(key=key, start_revision=revision)
            await call.write(pb.WatchRequest(create_request=create))
            async for response in call:
                if response.compact_revision:
                    raise CompactedError(f"revisions below {response.compact_revision} are compacted")
                if response.canceled and not fresh:  # etcd says "permission denied" of an expired login too
                    self._forget(token)
                    return
                if response.canceled:
                    raise RefusedError(f"watch at {member.endpoint}: {response.cancel_reason}")
                for event in response.events:
                    yield event
        finally:
            call.cancel()

    # --- one call ---

    async def _call(self, what: str, call: _Call[T], *, once: bool = False) -> T:
        try:
            return await self._attempt(what, call, once=once)
        except FtError as error:
            self._told(error.message)
            raise

    async def _attempt(self, what: str, call: _Call[T], *, once: bool) -> T:
        """Go round until a member answers; ``once`` ends with the first request that may have been taken."""
        attempt_sec = self._timeout_sec / len(self._members)
        last = "no connection"
        try:
            async with asyncio.timeout(self._timeout_sec):
                while True:
                    member = self._member()
                    try:
                        if not once or await member.connected():
                            return await self._authenticated(member, call, attempt_sec)
                    except grpc.aio.AioRpcError as error:
                        failure = failed(what, member.endpoint, error)
                        if isinstance(failure, RefusedError):
                            raise failure from error
                        self._leave(member)
                        if once and not not_taken(error):
                            raise failure from error
                        last = failure.message
                    else:
                        self._leave(member)
                    await asyncio.sleep(PAUSE_SEC)
        except TimeoutError as error:
            self._leave(self._member())
            members = ", ".join(member.endpoint for member in self._members)
            text = f"no answer to a {what} from {members} within {self._timeout_sec:g} s; last: {last}"
            raise unavailable(text) from error

    async def _authenticated(self, member: Member, call: _Call[T], timeout_sec: float) -> T:
        """Call, and once more with a new login if the present one is not accepted; raises AioRpcError."""
        await self._log_in(member, timeout_sec)
        token = self._token
        try:
            return await call(member, {"timeout": timeout_sec, "metadata": self._metadata()})
        except grpc.aio.AioRpcError as error:
            if not token or not stale_token(error):
                raise
        self._forget(token)
        await self._log_in(member, timeout_sec)
        return await call(member, {"timeout": timeout_sec, "metadata": self._metadata()})

    async def _log_in(self, member: Member, timeout_sec: float) -> None:
        if self._login is None or self._token:
            return
        request = await self._login.request()
        response = await member.auth.Authenticate(request, timeout=timeout_sec)
        self._token = response.token

    def _forget(self, token: str) -> None:
        if self._token == token:
            self._token = ""

    def _metadata(self) -> grpc.aio.Metadata:
        # A member that is cut off from the majority says so at once, on streams too, instead of keeping us waiting.
        metadata = grpc.aio.Metadata(("hasleader", "true"))
        if self._token:
            metadata.add("token", self._token)
        return metadata

    def _member(self) -> Member:
        if self._closed:
            raise unavailable("the connection is closed")
        return self._members[self._current]

    def _leave(self, member: Member) -> None:
        """The next call goes to another member."""
        if self._members[self._current] is member:
            self._current = (self._current + 1) % len(self._members)
