"""The stream to the Controller: Hello, Welcome, Snapshot, then reports and heartbeats (protocol.md section 2)."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import grpc

from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import Registration
from motor_ft.v1 import fault_report_pb2, fault_report_pb2_grpc
from motor_ft.v1.fault_report_pb2 import FaultReportRequest, FaultReportResponse
from motor_ft.wire.backoff import Backoff
from motor_ft.wire.channel import open_channel
from motor_ft.wire.convert import demand, duration_from_pb
from motor_ft.wire.errors import from_rpc_error
from motor_ft.wire.log import get_logger
from nodemanager import messages
from nodemanager.core.ports import Clock
from nodemanager.core.settings import Settings
from nodemanager.core.state import welcomed
from nodemanager.journal import Journal
from nodemanager.metrics import NodeMetrics
from nodemanager.pod import Pod

WELCOME_SEC = 5.0
Stream = grpc.aio.StreamStreamCall[FaultReportRequest, FaultReportResponse]
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Orders:
    """What a Directive moves: polling ten times a second or not, and for how many seconds suicide is frozen."""

    set_fast: Callable[[bool], None]
    freeze_suicide: Callable[[float], None]


class Link:
    """Keeps one stream open to whichever Controller leads."""

    def __init__(
        self,
        controllers: Sequence[str],
        registration: Callable[[], Registration],
        pod: Pod,
        journal: Journal,
        clock: Clock,
        metrics: NodeMetrics,
        orders: Orders,
        *,
        incarnation: str,
        rng: Callable[[], float],
    ) -> None:
        """``rng`` returns numbers in [0, 1) for the jitter of pauses."""
        self._controllers = itertools.cycle(controllers)
        self._registration = registration
        self._pod = pod
        self._journal = journal
        self._clock = clock
        self._metrics = metrics
        self._orders = orders
        self._incarnation = incarnation
        self._reconnect = Backoff(0.1, 5.0, 2.0, rng)
        self._retry = Backoff(0.5, 10.0, 2.0, rng)

    async def run(self) -> None:
        """Connect again and again until cancelled; a leader that is named is tried at once."""
        leader = ""
        while True:
            address, named = leader or next(self._controllers), bool(leader)
            try:
                leader = await self._session(address)
            except FtError as error:
                leader = ""
                _log.warning("no link to the controller", controller=address, problem=str(error))
            finally:
                self._metrics.connected.set(0)
            if named or not leader:
                await asyncio.sleep(self._reconnect.next())

    async def _session(self, address: str) -> str:
        """One stream to its end; returns the leader that the Controller named, empty for none."""
        channel = open_channel(address, peer="controller")
        stream = fault_report_pb2_grpc.FaultReportServiceStub(channel).FaultReport()
        try:
            async with asyncio.timeout(WELCOME_SEC):
                await stream.write(messages.hello(self._registration(), self._incarnation, self._journal.state))
                first = await self._read(stream)
            if first.HasField("not_leader"):
                return first.not_leader.leader
            demand(first.HasField("welcome"), "directive", "Welcome must be the first")
            await self._welcomed(first.welcome)
            self._orders.set_fast(False)
            self._metrics.connected.set(1)
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

    async def _welcomed(self, welcome: fault_report_pb2.Welcome) -> None:
        """Take the Controller on, its epoch durable; raises FtError STALE_EPOCH for a former leader."""
        settings = _settings(welcome)
        demand(welcome.instance_id > 0, "welcome.instance_id", "must be positive")
        await self._journal.update(
            lambda state: welcomed(
                state,
                welcome.instance_id,
                welcome.controller_epoch,
                welcome.generation,
                scale_down_on=welcome.enable_dp_scale_down_proxy,
            )
        )
        self._pod.paced(settings)
        self._pod.changed()

    async def _converse(self, stream: Stream) -> str:
        """Send and hear until one of both ends; the channel's own keepalive does not notice a frozen process."""
        hearing = asyncio.create_task(self._hear(stream), name="link/hear")
        sending = asyncio.create_task(self._send(stream), name="link/send")
        try:
            await asyncio.wait((hearing, sending), return_when=asyncio.FIRST_COMPLETED)
            return hearing.result() if hearing.done() else sending.result()
        finally:
            for task in (hearing, sending):
                task.cancel()
            await asyncio.gather(hearing, sending, return_exceptions=True)

    async def _send(self, stream: Stream) -> str:
        """Heartbeats on time, and everything that the outbox has; ends by raising."""
        outbox = self._pod.outbox
        outbox.reconnected()
        beat_at = self._clock.now()
        while True:
            self._pod.wake.clear()
            now, settings = self._clock.now(), self._pod.settings
            if outbox.unacknowledged_for(now) > settings.heartbeat_ttl_sec:
                raise FtError(Reason.OUTCOME_UNKNOWN, f"no acknowledgement for {settings.heartbeat_ttl_sec:g} s")
            while (entry := outbox.next(now)) is not None:
                await self._write(stream, messages.report(*entry, self._pod, self._journal.state, now))
            if now >= beat_at:
                await self._write(stream, messages.heartbeat(self._pod))
                beat_at = now + settings.heartbeat_interval_sec
            due = outbox.due_in(now)
            pause = beat_at - now if due is None else min(beat_at - now, due)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._pod.wake.wait()

    async def _write(self, stream: Stream, message: FaultReportRequest) -> None:
        async with asyncio.timeout(self._pod.settings.heartbeat_ttl_sec):
            await stream.write(message)
        self._metrics.reports.labels(message.WhichOneof("report")).inc()

    async def _hear(self, stream: Stream) -> str:
        """Do what the Controller says; returns the leader that it names."""
        while True:
            response = await self._read(stream)
            if response.HasField("ack"):
                self._pod.outbox.acknowledged(response.ack.sequence)
                self._retry.reset()
                self._pod.wake.set()
            elif response.HasField("rejected"):
                self._rejected(response.rejected)
            elif response.HasField("directive"):
                self._directed(response.directive)
            elif response.HasField("welcome"):
                await self._welcomed(response.welcome)
            elif response.HasField("not_leader"):
                return response.not_leader.leader

    def _rejected(self, rejected: fault_report_pb2.Rejected) -> None:
        _log.warning("report rejected", sequence=rejected.sequence, reason=rejected.reason, text=rejected.message)
        self._metrics.rejected.labels(rejected.reason).inc()
        if rejected.sequence:
            self._pod.outbox.rejected(rejected.sequence, self._clock.now() + self._retry.next())
            self._pod.wake.set()

    def _directed(self, directive: fault_report_pb2.Directive) -> None:
        if directive.controller_epoch < (self._journal.state.fence.epoch or 0):
            _log.warning("directive of a former leader ignored", epoch=directive.controller_epoch)
            return
        if directive.poll_mode != fault_report_pb2.POLL_MODE_UNSPECIFIED:
            self._orders.set_fast(directive.poll_mode == fault_report_pb2.POLL_MODE_FAST)
        if directive.HasField("freeze_suicide"):
            self._orders.freeze_suicide(duration_from_pb(directive.freeze_suicide))
        if directive.send_snapshot:
            self._pod.outbox.request_snapshot()
            self._pod.wake.set()

    async def _read(self, stream: Stream) -> FaultReportResponse:
        response = await stream.read()
        if not isinstance(response, FaultReportResponse):
            raise FtError(Reason.OUTCOME_UNKNOWN, "the Controller ended the stream")
        return response


def _settings(welcome: fault_report_pb2.Welcome) -> Settings:
    """What Welcome says about pace; raises FieldError for what cannot be."""
    settings = Settings(
        duration_from_pb(welcome.heartbeat_interval),
        duration_from_pb(welcome.heartbeat_ttl),
        duration_from_pb(welcome.poll_interval),
        welcome.status_unreachable_threshold,
        duration_from_pb(welcome.engine_request_timeout),
    )
    for name in ("heartbeat_interval_sec", "heartbeat_ttl_sec", "poll_interval_sec", "engine_timeout_sec"):
        demand(getattr(settings, name) > 0, f"welcome.{name.removesuffix('_sec')}", "must be positive")
    demand(settings.unreachable_threshold > 0, "welcome.status_unreachable_threshold", "must be at least 1")
    return settings
