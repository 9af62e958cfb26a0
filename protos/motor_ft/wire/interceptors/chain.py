"""The order in which a call passes the interceptors, for unary calls and for streams."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, TypeAlias, cast

import grpc
from google.protobuf.message import DecodeError, Message

from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.authorizer import Authorizer
from motor_ft.wire.commands import CommandLedger
from motor_ft.wire.interceptors.dedupe import answer_once
from motor_ft.wire.interceptors.errors import ErrorsMapped
from motor_ft.wire.interceptors.identity import authorize, identify
from motor_ft.wire.interceptors.observed import Observed
from motor_ft.wire.log import get_logger
from motor_ft.wire.metrics import RpcMetrics
from motor_ft.wire.policy import Lease, MethodPolicy, PolicyTable

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Unary = Callable[[Message, Context], Awaitable[Message]]
Answer = Callable[[bytes, Context], Coroutine[Any, Any, bytes]]
Deserialize = Callable[[bytes], Message]
Stream = Callable[[Any, Context], AsyncGenerator[Message, None]]

_log = get_logger(__name__)


class Chain(grpc.aio.ServerInterceptor):
    """Wraps the handlers of one server; the casts are all here, because grpc types handlers as synchronous."""

    def __init__(
        self,
        policies: PolicyTable,
        metrics: RpcMetrics,
        ledger: CommandLedger | None,
        authorizer: Authorizer | None,
        refusal: Callable[[], FtError | None],
    ) -> None:
        self._policies = policies
        self._metrics = metrics
        self._ledger = ledger
        self._authorizer = authorizer
        self._refusal = refusal
        self._wrapped: dict[str, Handler] = {}
        self._commands: set[asyncio.Task[bytes]] = set()
        self._streams: set[asyncio.Task[Any]] = set()  # those whose servicer works on the next response
        self._stopping = False

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Return the wrapped handler; None for a method that is not served."""
        method = handler_call_details.method
        if method not in self._wrapped:
            if (handler := await continuation(handler_call_details)) is None:
                return None
            self._wrapped[method] = self._wrap(method, handler)
        return self._wrapped[method]

    def end_streams(self) -> None:
        """End every stream and refuse new calls; ``grpc.aio`` would wait for them."""
        self._stopping = True
        for task in self._streams:
            task.cancel()

    async def finish_commands(self, grace: float) -> None:
        """Wait for the commands that still run, for ``grace`` seconds, then cancel them."""
        if not self._commands:
            return
        _, late = await asyncio.wait(self._commands, timeout=grace)
        for task in late:
            _log.warning("command cancelled by shutdown", method=task.get_name(), grace=grace)
            task.cancel()
        if late:
            await asyncio.wait(late)

    def _wrap(self, method: str, handler: Handler) -> Handler:
        deserialize = cast(Deserialize, handler.request_deserializer)
        if handler.response_streaming:
            behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream
            parse = partial(_parse_each if handler.request_streaming else _parse, deserialize)
            wrapped = self._stream(method, cast(Stream, behaviour), parse)
            make: Callable[..., Handler] = (
                grpc.stream_stream_rpc_method_handler
                if handler.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            return make(wrapped, None, handler.response_serializer)
        serialize = cast(Callable[[Message], bytes], handler.response_serializer)
        answer = self._unary(method, cast(Unary, handler.unary_unary), deserialize, serialize)
        if self._policies[method].command:
            answer = self._shielded(method, answer)
        # Answers are bytes already: a repeated one is what was recorded, to the byte.
        return grpc.unary_unary_rpc_method_handler(cast(Any, answer), None, None)

    def _unary(
        self, method: str, behaviour: Unary, deserialize: Deserialize, serialize: Callable[[Message], bytes]
    ) -> Answer:
        policy = self._policies[method]

        async def answer(received: bytes, context: Context) -> bytes:
            async def run() -> bytes:
                return serialize(await behaviour(request, context))

            async with ErrorsMapped(context):
                with Observed(self._metrics, method, context, timed=True):
                    self._admit(policy)
                    await authorize(self._authorizer, policy, method, context)
                    request = _parse(deserialize, received)
                    return await (self._command(method, request, run) if policy.command else run())

        return answer

    async def _command(self, method: str, request: Message, run: Callable[[], Awaitable[bytes]]) -> bytes:
        policy = self._policies[method]
        ledger = cast(CommandLedger, self._ledger)  # RpcServer.add saw to it
        command = identify(request)
        ledger.fence(command)

        async def leased() -> bytes:
            if policy.lease is not Lease.NONE:
                ledger.lease(policy.lease, command, getattr(request, "plan_hash", ""))
            return await run()

        if not policy.dedupe:
            return await leased()
        payload = request.SerializeToString(deterministic=True)
        return await answer_once(ledger, method, command, payload, leased)

    def _shielded(self, method: str, answer: Answer) -> Answer:
        """Run commands in tasks of their own: a caller that goes away must not stop one half-way."""

        async def shielded(received: bytes, context: Context) -> bytes:
            task = asyncio.create_task(answer(received, context), name=method)
            self._commands.add(task)
            task.add_done_callback(self._commands.discard)
            return await asyncio.shield(task)

        return shielded

    def _stream(
        self, method: str, behaviour: Stream, parse: Callable[[Any], Any]
    ) -> Callable[[Any, Context], AsyncIterator[Message]]:
        policy = self._policies[method]

        async def stream(received: Any, context: Context) -> AsyncIterator[Message]:
            task = cast(asyncio.Task[Any], asyncio.current_task())
            async with ErrorsMapped(context):
                with Observed(self._metrics, method, context, timed=False):
                    await authorize(self._authorizer, policy, method, context)
                    request = parse(received)
                    if policy.command:
                        cast(CommandLedger, self._ledger).fence(identify(request))
                    self._admit(policy)
                    self._streams.add(task)
                    try:
                        async with aclosing(behaviour(request, context)) as responses:
                            async for response in responses:
                                # Not while grpc sends: a cancellation there would lose the status.
                                self._streams.discard(task)
                                yield response
                                self._admit(policy)
                                self._streams.add(task)
                    except asyncio.CancelledError:
                        self._admit(policy)  # then it was end_streams, else the caller
                        raise
                    finally:
                        self._streams.discard(task)

        return stream

    def _admit(self, policy: MethodPolicy) -> None:
        if policy.leader and (refusal := self._refusal()) is not None:
            raise refusal
        if self._stopping:
            raise FtError(Reason.SHUTTING_DOWN, "the server shuts down; call again when it is back")


def _parse(deserialize: Deserialize, received: bytes) -> Message:
    """Read a request, which grpc would do outside of the interceptors: its caller would be told of an exception."""
    try:
        return deserialize(received)
    except DecodeError as error:
        raise FtError(Reason.INVALID_REQUEST, "the bytes that came are no message of this method") from error


async def _parse_each(deserialize: Deserialize, received: AsyncIterator[bytes]) -> AsyncIterator[Message]:
    async for each in received:
        yield _parse(deserialize, each)
