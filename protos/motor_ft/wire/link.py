"""A reporter's stream to the Controller: Hello, Welcome, Snapshot, reports and heartbeats (protocol.md section 2)."""

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, NamedTuple, Protocol, TypeVar

import grpc
from prometheus_client import Counter, Gauge

from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import fault_report_pb2, fault_report_pb2_grpc
from motor_ft.v1.fault_report_pb2 import FaultReportRequest, FaultReportResponse
from motor_ft.wire.backoff import Backoff
from motor_ft.wire.channel import open_channel
from motor_ft.wire.convert import demand, duration_from_pb
from motor_ft.wire.errors import from_rpc_error
from motor_ft.wire.log import get_logger
from motor_ft.wire.outbox import Outbox
from motor_ft.wire.standby import begins_to_lead
from motor_ft.wire.tls import ClientTls

WELCOME_SEC = 5.0
UNHEARD = "no Controller has answered"
T = TypeVar("T")
Result = TypeVar("Result")
Stream = grpc.aio.StreamStreamCall[FaultReportRequest, FaultReportResponse]
_log = get_logger(__name__)


class LinkMetrics(Protocol):
    """What a link counts."""

    @property
    def connected(self) -> Gauge:
        """1 while a Controller has answered Hello on the open stream."""
        ...

    @property
    def reports(self) -> Counter:
        """Reports sent, by kind."""
        ...

    @property
    def rejected(self) -> Counter:
        """Reports refused, by reason."""
        ...


class Pace(NamedTuple):
    """How often to send a heartbeat, and after which silence the other side counts as gone; seconds."""

    heartbeat_interval_sec: float
    heartbeat_ttl_sec: float


class ReportLink(ABC, Generic[T]):
    """Keeps one stream open to whichever Controller leads, and empties ``outbox`` into it.

    ``wake`` is set by whoever has put something into the outbox. ``now`` is monotonic; ``rng`` returns numbers in
    [0, 1) for the jitter of pauses. ``connected`` while a Controller has answered Hello on the open stream. What a
    reporter says, and what it does when it is told something, is up to the subclass.
    """

    def __init__(
        self,
        controllers: Sequence[str],
        outbox: Outbox[T],
        wake: asyncio.Event,
        metrics: LinkMetrics,
        *,
        now: Callable[[], float],
        rng: Callable[[], float],
        tls: ClientTls | None = None,
    ) -> None:
        self.connected = False
        self.problem = UNHEARD
        """Why there was no link when one was tried last; holds while not ``connected``."""
        self._tls = tls
        self._controllers = controllers
        self._outbox = outbox
        self._wake = wake
        self._link_metrics = metrics
        self._now = now
        self._pace = Pace(1.0, WELCOME_SEC)
        self._reconnect = Backoff(0.1, 5.0, 2.0, rng)
        self._retry = Backoff(0.5, 10.0, 2.0, rng)

    @abstractmethod
    def hello(self) -> FaultReportRequest:
        """Who reports; carries no sequence, because every stream begins with one."""

    @abstractmethod
    async def welcomed(self, welcome: fault_report_pb2.Welcome) -> None:
        """Take the Controller on; raises FtError STALE_EPOCH for a former leader."""

    @abstractmethod
    def report(self, sequence: int, item: T, now: float) -> FaultReportRequest:
        """One numbered report; a snapshot is taken here."""

    @abstractmethod
    def heartbeat(self) -> FaultReportRequest:
        """The reporter lives."""

    @abstractmethod
    def directed(self, directive: fault_report_pb2.Directive) -> bool:
        """Do what is said; False when a former leader says it. A snapshot is seen to here."""

    def linked(self) -> None:
        """A stream has begun: what was told on the last one holds no more. Most have nothing to forget."""

    async def run(self) -> None:
        """Connect again and again until cancelled.

        A leader that is named is tried at once, unless it was just lost; so is a Controller that begins to lead.
        """
        leader = lost = ""
        turns = itertools.cycle(self._controllers)
        while True:
            address, named = leader or next(turns), bool(leader)
            try:
                leader = await self._session(address)
            except FtError as error:
                leader = ""
                self.problem = f"no link to the Controller {address}: {error}"
                _log.warning("no link to the controller", controller=address, problem=str(error))
            finally:
                lost = address if self.connected else lost
                self._connected(False)
            if leader == lost:  # others may learn later than we that it is gone
                leader = lost = ""
            if named or not leader:
                leader = await begins_to_lead(self._controllers, self._reconnect.next(), self._tls) or leader

    async def _session(self, address: str) -> str:
        """One stream to its end; returns the leader that the Controller named, empty for none."""
        channel = open_channel(address, peer="controller", tls=self._tls)
        stream = fault_report_pb2_grpc.FaultReportServiceStub(channel).FaultReport()
        try:
            async with asyncio.timeout(WELCOME_SEC):
                await stream.write(self.hello())
                first = await self._read(stream)
            if first.HasField("not_leader"):
                return first.not_leader.leader
            demand(first.HasField("welcome"), "directive", "Welcome must be the first")
            await self._welcome(first.welcome)
            self.linked()
            self._connected(True)
            self.problem = UNHEARD
            self._reconnect.reset()
            _log.info("linked", controller=address, instance_id=first.welcome.instance_id)
            return await self._converse(stream)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        except (TimeoutError, asyncio.InvalidStateError) as error:
            raise FtError(Reason.OUTCOME_UNKNOWN, f"{address} does not answer") from error
        finally:
            stream.cancel()
            await channel.close()

    def _connected(self, connected: bool) -> None:
        self.connected = connected
        self._link_metrics.connected.set(connected)

    async def _welcome(self, welcome: fault_report_pb2.Welcome) -> None:
        pace = Pace(duration_from_pb(welcome.heartbeat_interval), duration_from_pb(welcome.heartbeat_ttl))
        for name, seconds in pace._asdict().items():
            demand(seconds > 0, f"welcome.{name.removesuffix('_sec')}", "must be positive")
        await self.welcomed(welcome)
        self._pace = pace

    async def _converse(self, stream: Stream) -> str:
        """Send and hear until one of both ends; the channel's own keepalive does not notice a frozen process."""
        hearing = asyncio.create_task(self._hear(stream), name="link/hear")
        sending = asyncio.create_task(self._send(stream), name="link/send")
        try:
            await asyncio.wait((hearing, sending), return_when=asyncio.FIRST_COMPLETED)
            return hearing.result() if hearing.done() else sending.result()
        finally:
            hearing.cancel()
            sending.cancel()
            await asyncio.gather(hearing, sending, return_exceptions=True)
            del hearing, sending  # their exception knows this frame; together they would keep the stream, see _within

    async def _send(self, stream: Stream) -> str:
        """Heartbeats on time, and everything that the outbox has; ends by raising."""
        outbox = self._outbox
        outbox.reconnected()
        beat_at = self._now()
        while True:
            self._wake.clear()
            # A clock reading for each: what comes in while one is written is younger than the reading before.
            while (entry := outbox.next(sent_at := self._now())) is not None:
                await self._write(stream, self.report(*entry, sent_at))
            # After these, because nothing that an earlier stream left is waited for by now.
            now, ttl = self._now(), self._pace.heartbeat_ttl_sec
            if outbox.unacknowledged_for(now) > ttl:
                raise FtError(Reason.OUTCOME_UNKNOWN, f"no acknowledgement for {ttl:g} s")
            if now >= beat_at:
                await self._write(stream, self.heartbeat())
                beat_at = now + self._pace.heartbeat_interval_sec
            due = outbox.due_in(now)
            pause = beat_at - now if due is None else min(beat_at - now, due)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _write(self, stream: Stream, message: FaultReportRequest) -> None:
        await _within(self._pace.heartbeat_ttl_sec, stream.write(message))
        self._link_metrics.reports.labels(message.WhichOneof("report")).inc()

    async def _hear(self, stream: Stream) -> str:
        """Do what the Controller says; returns the leader that it names."""
        while True:
            response = await _within(self._pace.heartbeat_ttl_sec, self._read(stream))
            if response.HasField("ack"):
                self._outbox.acknowledged(response.ack.sequence)
                self._retry.reset()
                self._wake.set()
            elif response.HasField("rejected"):
                self._rejected(response.rejected)
            elif response.HasField("directive"):
                self._directed(response.directive)
            elif response.HasField("welcome"):
                await self._welcome(response.welcome)
            elif response.HasField("not_leader"):
                return response.not_leader.leader

    def _rejected(self, rejected: fault_report_pb2.Rejected) -> None:
        _log.warning("report rejected", sequence=rejected.sequence, reason=rejected.reason, text=rejected.message)
        self._link_metrics.rejected.labels(rejected.reason).inc()
        if rejected.sequence:
            self._outbox.rejected(rejected.sequence, self._now() + self._retry.next())
            self._wake.set()

    def _directed(self, directive: fault_report_pb2.Directive) -> None:
        if not self.directed(directive):
            _log.warning("directive of a former leader ignored", epoch=directive.controller_epoch)
        elif directive.send_snapshot:
            self._outbox.request_snapshot()
            self._wake.set()

    async def _read(self, stream: Stream) -> FaultReportResponse:
        response = await stream.read()
        if not isinstance(response, FaultReportResponse):
            raise FtError(Reason.OUTCOME_UNKNOWN, "the Controller ended the stream")
        return response


async def _within(seconds: float, work: Awaitable[Result]) -> Result:
    """Raises FtError OUTCOME_UNKNOWN when it takes longer.

    A TimeoutError that ends a task knows the task, and so lives on with all that its frames hold, until some garbage
    collection: a stream among it keeps its connection open at both ends.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await work
    raise FtError(Reason.OUTCOME_UNKNOWN, f"the Controller does not answer for {seconds:g} s")
