"""ClusterD's fault service: a subscription for changes, and a query for what it does not tell (section 6)."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import grpc

from gateway.config import ClusterDConfig
from gateway.mindcluster.core.board import Place
from gateway.mindcluster.core.observed import Source
from gateway.mindcluster.core.slot import Times
from gateway.mindcluster.feed import Feed
from gateway.mindcluster.signals import read_signal
from motor_ft.clusterd import fault_pb2, fault_pb2_grpc
from motor_ft.wire.backoff import Backoff
from motor_ft.wire.tls import read_pems

REGISTERED, ANSWERED = 0, 200

OPTIONS = (
    # Faster pings end the connection with too_many_pings, on servers before 26 without exception.
    ("grpc.keepalive_time_ms", 300_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 8 * 1024 * 1024),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds.

    A stream that was not refused within ``settled_sec`` works: it says nothing before something changes. One that
    lasted ``stable_sec`` has ended as streams do: proxies cut silent ones every minute. ``min_gap_sec`` lies between
    two queries, however often the subscription begins anew: ClusterD limits rates.
    """

    request_sec: float = 5.0
    query_interval_sec: float = 8.0
    min_gap_sec: float = 1.0
    settled_sec: float = 1.0
    stable_sec: float = 20.0
    stream_sec: float = 600.0


def open_clusterd(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """Open a channel to ``host:port``; without credentials in plain text, as ClusterD serves by default."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=OPTIONS)
    return grpc.aio.secure_channel(address, credentials, options=OPTIONS)


class ClusterD:
    """Both ways to ask ClusterD.

    ``role`` must be this process's own: a second subscriber with the same one ends the first's stream.
    ``cards_elsewhere``: another source knows the numbers of virtual cards.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        role: str,
        feed: Feed,
        times: Callable[[], Times],
        *,
        backoff: Callable[[], Backoff],
        timing: Timing,
        cards_elsewhere: bool,
    ) -> None:
        self._stub = fault_pb2_grpc.FaultStub(channel)
        self._who = fault_pb2.ClientInfo(jobId="", role=role)
        self._feed = feed
        self._board = feed.board
        self._times = times
        self._backoff = backoff
        self._timing = timing
        self._cards_elsewhere = cards_elsewhere
        self._ask = asyncio.Event()

    async def subscribe(self) -> None:
        """Register and listen, again and again until cancelled."""
        backoff = self._backoff()
        while True:
            started = self._times().monotonic
            try:
                problem = await self._listen()
            except grpc.aio.AioRpcError as error:
                problem = _text(error)
            self._board.unconfirm(Source.CLUSTERD_STREAM)
            if self._times().monotonic - started < self._timing.stable_sec:
                self._board.broken(Source.CLUSTERD_STREAM, problem)
            else:
                backoff.reset()
            self._feed.touch()
            await asyncio.sleep(backoff.next())

    async def query(self) -> None:
        """Ask for the whole cluster regularly, and at once when the subscription begins anew; until cancelled."""
        backoff = self._backoff()
        while True:
            self._ask.clear()
            problem = await self._reconcile()
            if problem:
                self._board.broken(Source.CLUSTERD_QUERY, problem)
            else:
                self._board.working(Source.CLUSTERD_QUERY)
                backoff.reset()
            self._feed.touch()
            pause = backoff.next() if problem else self._timing.query_interval_sec
            await asyncio.sleep(min(pause, self._timing.min_gap_sec))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause - self._timing.min_gap_sec):
                    await self._ask.wait()

    async def _listen(self) -> str:
        """One registration and its stream; returns why it ended."""
        status = await self._stub.Register(self._who, timeout=self._timing.request_sec)
        if status.code != REGISTERED:
            return f"registration refused: {status.code} {status.info}"
        stream = self._stub.SubscribeFaultMsgSignal(self._who, timeout=self._timing.stream_sec)
        settled = asyncio.get_running_loop().call_later(self._timing.settled_sec, self._settled)
        try:
            async for signal in stream:
                now = self._times()
                reading = read_signal(signal, now.wall, query=False, cards_elsewhere=self._cards_elsewhere)
                self._board.take(Place(Source.CLUSTERD_STREAM, part=signal.jobId), reading, now)
                self._feed.touch()
        finally:
            settled.cancel()
            stream.cancel()
        return "the stream has ended: another subscriber may have the same role"

    def _settled(self) -> None:
        self._board.working(Source.CLUSTERD_STREAM)
        self._feed.touch()
        self._ask.set()

    async def _reconcile(self) -> str:
        """One query; returns why nothing is known from it, empty when all is."""
        asked = self._times()
        try:
            result = await self._stub.GetFaultMsgSignal(self._who, timeout=self._timing.request_sec)
        except grpc.aio.AioRpcError as error:
            return _text(error)
        if result.code != ANSWERED:
            return f"query refused: {result.code} {result.info}"
        if not result.HasField("faultSignal"):
            return "the answer has no signal, which does not mean that the cluster is healthy"
        now = self._times()
        reading = read_signal(result.faultSignal, now.wall, query=True, cards_elsewhere=self._cards_elsewhere)
        self._board.answered(reading, asked.monotonic, now)
        return ""


def _text(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details() or 'no details'}"


def read_credentials(config: ClusterDConfig) -> grpc.ChannelCredentials | None:
    """Read TLS files, None for plain text; raises ConfigError for files that cannot be used."""
    if not config.ca_file:
        return None
    return grpc.ssl_channel_credentials(*read_pems("clusterd", config.ca_file, config.cert_file, config.key_file))
