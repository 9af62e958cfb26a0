"""Client side: channels that notice a dead peer, and calls that always end (protocol.md section 3)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import grpc

from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.errors import DETAILS_KEY, from_rpc_error
from motor_ft.wire.tls import ClientTls

Request = TypeVar("Request")
Response = TypeVar("Response")
Stub = TypeVar("Stub")

MAX_MESSAGE_BYTES = 32 * 1024 * 1024
"""A snapshot of all hardware faults that a Controller keeps of one adapter fits, with 600 bytes for each."""
CONNECT_SEC = 1.0
"""How long to wait for a peer that does not even refuse the connection."""

OPTIONS = (
    # Pings only while a call runs: a peer with the default policy answers idle pings with GOAWAY.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A peer that comes back is found within a second, not within the default of two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Whether a call is made again is never decided behind our back.
    ("grpc.enable_retries", 0),
    # A channel that was closed and is opened again is a new connection, not one that lives on in a pool.
    ("grpc.use_local_subchannel_pool", 1),
    # Peers are pods of the same cluster; an http_proxy in the environment is not meant for them.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)


def open_channel(target: str, *, peer: str = "", token: str = "", tls: ClientTls | None = None) -> grpc.aio.Channel:
    """Open a channel to ``host:port`` or ``unix:/path``; it connects with the first call.

    Without ``tls``, and through a socket of this machine, it is in plain text. ``peer`` names the other side in errors.
    With ``token`` unary calls and server streams carry it as a bearer token. A unary call without a timeout raises
    ValueError.
    """
    identity = grpc.aio.Metadata(("authorization", f"Bearer {token}")) if token else grpc.aio.Metadata()
    interceptors: list[grpc.aio.ClientInterceptor] = [_Unary(f"{peer} at {target}" if peer else target, identity)]
    if token:
        interceptors.append(_ServerStream(identity))
    if tls is None or target.startswith("unix:"):
        return grpc.aio.insecure_channel(target, options=OPTIONS, interceptors=interceptors)
    name = [("grpc.ssl_target_name_override", tls.server_name)] if tls.server_name else []
    return grpc.aio.secure_channel(target, tls.credentials(), options=[*OPTIONS, *name], interceptors=interceptors)


async def call(
    method: grpc.aio.UnaryUnaryMultiCallable[Request, Response], request: Request, *, timeout: float
) -> Response:
    """Call a unary method of a stub; raises FtError when it fails or takes longer than ``timeout`` seconds.

    So it does when the channel is closed meanwhile, which gRPC would tell as if the caller had been cancelled.
    """
    try:
        return await method(request, timeout=timeout)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    except (asyncio.CancelledError, grpc.aio.UsageError) as error:
        if (caller := asyncio.current_task()) is not None and caller.cancelling():
            raise
        raise FtError(Reason.OUTCOME_UNKNOWN, "the connection was closed during the call") from error


async def connected(channel: grpc.aio.Channel) -> bool:
    """Whether a request goes out at once; False when that failed, takes too long, or the channel is closed."""
    try:
        async with asyncio.timeout(CONNECT_SEC):
            state = channel.get_state(try_to_connect=True)
            while state not in {grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE}:
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except (TimeoutError, grpc.aio.UsageError):
        return False
    return state is grpc.ChannelConnectivity.READY


def failing(channel: grpc.aio.Channel) -> bool:
    """It could not connect, and waits before it tries again; opened anew it tries at once, with present TLS files."""
    return channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE


class Lasting(Generic[Stub]):
    """A stub for as long as the process lives, on a channel that is opened anew where it is ``failing``."""

    def __init__(self, open_anew: Callable[[], grpc.aio.Channel], stub: Callable[[grpc.aio.Channel], Stub]) -> None:
        self._open = open_anew
        self._make = stub
        self._channel = open_anew()
        self._stub = stub(self._channel)

    async def stub(self) -> Stub:
        """For the next call."""
        if failing(self._channel):
            failed, self._channel = self._channel, self._open()
            self._stub = self._make(self._channel)
            await failed.close()
        return self._stub

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()


class _Unary(grpc.aio.UnaryUnaryClientInterceptor):
    """Demands a timeout, sends identities, and says in errors which method of whom failed."""

    def __init__(self, where: str, identity: grpc.aio.Metadata) -> None:
        self._where = where
        self._identity = identity

    async def intercept_unary_unary(
        self,
        continuation: Callable[
            [grpc.aio.ClientCallDetails, Request], Awaitable[grpc.aio.UnaryUnaryCall[Request, Response]]
        ],
        client_call_details: grpc.aio.ClientCallDetails,
        request: Request,
    ) -> grpc.aio.UnaryUnaryCall[Request, Response]:
        what = f"{_text(client_call_details.method)} of {self._where}"
        if client_call_details.timeout is None:
            raise ValueError(f"the call of {what} needs a timeout")
        identity = self._identity
        if request_id := getattr(getattr(request, "header", None), "request_id", ""):
            identity += grpc.aio.Metadata(("x-request-id", request_id))
        call = await continuation(_identified(client_call_details, identity), request)
        try:
            await call
        except grpc.aio.AioRpcError as error:
            metadata = error.trailing_metadata()
            if DETAILS_KEY in metadata:
                raise  # the other side has said itself what it means
            details = f"{what}: {error.details()}"
            raise grpc.aio.AioRpcError(error.code(), error.initial_metadata(), metadata, details) from error
        return call


class _ServerStream(grpc.aio.UnaryStreamClientInterceptor):
    """Sends identities. Streams of requests stay without one: intercepted, their writes go through a queue."""

    def __init__(self, identity: grpc.aio.Metadata) -> None:
        self._identity = identity

    async def intercept_unary_stream(
        self,
        continuation: Callable[
            [grpc.aio.ClientCallDetails, Request], Awaitable[grpc.aio.UnaryStreamCall[Request, Response]]
        ],
        client_call_details: grpc.aio.ClientCallDetails,
        request: Request,
    ) -> grpc.aio.UnaryStreamCall[Request, Response]:
        return await continuation(_identified(client_call_details, self._identity), request)


def _identified(details: grpc.aio.ClientCallDetails, identity: grpc.aio.Metadata) -> grpc.aio.ClientCallDetails:
    metadata = (details.metadata or grpc.aio.Metadata()) + identity
    return grpc.aio.ClientCallDetails(
        details.method, details.timeout, metadata, details.credentials, details.wait_for_ready
    )


def _text(method: str | bytes) -> str:
    """Return the name that grpc hands over as bytes, whatever its types say."""
    return method if isinstance(method, str) else method.decode()
