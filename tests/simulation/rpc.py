"""gRPC over the simulated network: stands in for ``grpc.aio`` below our channels and servers.

Everything above is the real thing: stubs, messages, interceptors, servicers.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import grpc
from grpc import StatusCode

from tests.simulation.loop import PROCESS, Process
from tests.simulation.network import Network

Bytes = Callable[[Any], bytes]
Parse = Callable[[bytes], Any]
Trailer = tuple[tuple[str, bytes], ...]

WAITS_TO_CONNECT_SEC = 20.0
"""gRPC's own patience for a connection, for a call without a deadline."""


class Wire(Protocol):
    """Who wants to know what is said."""

    def sent(self, client: Process, address: str, method: str, request: bytes) -> None:
        """A unary request leaves its client."""
        ...

    def called(self, client: Process, server: Process, method: str, request: bytes) -> None:
        """A request has arrived."""
        ...

    def answered(self, client: Process, server: Process, method: str, request: bytes, answer: "Answer") -> None:
        """A unary request was answered, whether or not that arrives."""
        ...

    def got(self, client: Process, method: str, request: bytes) -> None:
        """The client has the answer of what it asked."""
        ...

    def said(self, speaker: Process, hearer: Process, method: str, message: bytes) -> None:
        """One message of a stream was sent."""
        ...


class Answer:
    """How a call ended."""

    def __init__(
        self, code: StatusCode = StatusCode.OK, text: str = "", trailer: Trailer = (), body: bytes = b""
    ) -> None:
        self.code = code
        self.text = text
        self.trailer = trailer
        self.body = body

    def error(self) -> grpc.aio.AioRpcError:
        """As the client gets it."""
        return grpc.aio.AioRpcError(self.code, grpc.aio.Metadata(), grpc.aio.Metadata(*self.trailer), self.text)


REFUSED = Answer(StatusCode.UNAVAILABLE, "connection refused")
RESET = Answer(StatusCode.UNAVAILABLE, "connection reset")


class Fabric:
    """All servers of the world, and the channels to them."""

    def __init__(self, network: Network, wire: Wire) -> None:
        self.network = network
        self.wire = wire
        self.servers: dict[str, SimServer] = {}
        self._calls = 0

    def channel(self, target: str, **_: object) -> "SimChannel":
        """In place of ``grpc.aio.insecure_channel``."""
        process = PROCESS.get()
        assert process is not None, "only simulated processes open channels"
        return SimChannel(self, process, target)

    def server(self, *, interceptors: Sequence[Any], **_: object) -> "SimServer":
        """In place of ``grpc.aio.server``."""
        process = PROCESS.get()
        assert process is not None, "only simulated processes serve"
        return SimServer(self, process, interceptors)

    def host_of(self, address: str, client: Process) -> str:
        """Where an address is; the client's own host for a socket in its file system."""
        return client.host if address.startswith("unix:") else address.rpartition(":")[0]

    def at(self, address: str) -> "SimServer | None":
        """Who listens there."""
        server = self.servers.get(address)
        return server if server is not None and server.process.alive else None

    def number(self) -> int:
        """Of the next call."""
        self._calls += 1
        return self._calls

    def killed(self, process: Process) -> None:
        """The kernel closes its sockets: peers see a reset, and nobody listens any more."""
        self.servers = {address: server for address, server in self.servers.items() if server.process is not process}
        self.reset(process)

    def reset(self, process: Process) -> None:
        """Every connection of a process is gone."""
        for call in list(self.network.calls.values()):
            if isinstance(call, Call) and process in (call.client, call.server):
                call.broken()


class Call:
    """One call under way. ``hosts`` are both ends."""

    def __init__(self, channel: "SimChannel", method: str) -> None:
        self.fabric = channel.fabric
        self.client = channel.process
        self.server: Process | None = None
        self.method = method
        self.task: asyncio.Task[None] | None = None
        self.target = self.fabric.host_of(channel.address, channel.process)
        self.hosts = frozenset({self.client.host, self.target})
        self.ended = False
        self.inbox: Inbox = Inbox()
        self.requests: Inbox = Inbox()
        self._address = channel.address
        self._channel = channel
        self._number = self.fabric.number()
        self.fabric.network.calls[self._number] = self
        channel.calls[self._number] = self

    def begin(self, request: bytes | None) -> None:
        """Send the call, with its request unless that is a stream."""
        self.up(lambda: self._arrive(request))

    def up(self, deliver: Callable[[], None]) -> None:
        """Client to server."""
        ordered = request_is_stream(self.method)
        self.fabric.network.send(self.client.host, self.target, deliver, ordered=ordered)

    def down(self, deliver: Callable[[], None]) -> None:
        """Server to client."""
        ordered = request_is_stream(self.method)
        self.fabric.network.send(self.target, self.client.host, deliver, ordered=ordered)

    def _arrive(self, request: bytes | None) -> None:
        server = self.fabric.at(self._address)
        if server is None:
            self.down(lambda: self.end(REFUSED))
            return
        if self.ended and request_is_stream(self.method):
            return
        self.server = server.process
        if request is not None:
            self.fabric.wire.called(self.client, server.process, self.method, request)
        task = server.spawn(self, request)
        self.task = task

    def end(self, answer: Answer) -> None:
        """The client knows how it ended."""
        if not self.ended:
            self.ended = True
            self._forget()
            self.inbox.put(answer)

    def cancel(self) -> None:
        """The client has gone: tell the server."""
        if self.ended:
            return
        self.ended = True
        self._forget()
        self.inbox.put(Answer(StatusCode.CANCELLED, "cancelled by the client"))
        self.up(self._cancel_server)

    def broken(self) -> None:
        """The connection is gone."""
        self._cancel_server()
        self.end(RESET)

    def _cancel_server(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def _forget(self) -> None:
        self.fabric.network.calls.pop(self._number, None)
        self._channel.calls.pop(self._number, None)


def request_is_stream(method: str) -> bool:
    """Streams keep their order; all messages of one are in one connection."""
    return method.rpartition("/")[2] in {"FaultReport", "WatchStatus", "WatchEngine", "WatchInstances", "Watch"}


class Inbox:
    """What has arrived at one end, in order; the last item is an Answer, which stays."""

    def __init__(self) -> None:
        self._items: deque[bytes | Answer] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: bytes | Answer) -> None:
        """One more."""
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> bytes | Answer:
        """The next one."""
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        item = self._items[0]
        return item if isinstance(item, Answer) else self._items.popleft()


class SimChannel:
    """In place of ``grpc.aio.Channel``."""

    def __init__(self, fabric: Fabric, process: Process, address: str) -> None:
        self.fabric = fabric
        self.process = process
        self.address = address
        self.calls: dict[int, Call] = {}

    def unary_unary(self, method: str, request_serializer: Bytes, response_deserializer: Parse, **_: object) -> Any:
        """A method that takes one message and returns one."""

        async def invoke(request: Any, *, timeout: float | None = None, **_: object) -> Any:
            self._alive()
            call, body = Call(self, method), request_serializer(request)
            self.fabric.wire.sent(self.process, self.address, method, body)
            call.begin(body)
            try:
                async with asyncio.timeout(timeout):
                    answer = await call.inbox.get()
            except TimeoutError:
                call.cancel()
                raise Answer(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded").error() from None
            except BaseException:
                call.cancel()
                raise
            assert isinstance(answer, Answer)
            if answer.code is not StatusCode.OK:
                raise answer.error()
            self.fabric.wire.got(self.process, method, body)
            return response_deserializer(answer.body)

        return invoke

    def unary_stream(self, method: str, request_serializer: Bytes, response_deserializer: Parse, **_: object) -> Any:
        """A method that takes one message and returns many."""

        def invoke(request: Any, **_: object) -> SimStream:
            self._alive()
            call = Call(self, method)
            call.begin(request_serializer(request))
            return SimStream(call, request_serializer, response_deserializer)

        return invoke

    def stream_stream(self, method: str, request_serializer: Bytes, response_deserializer: Parse, **_: object) -> Any:
        """A method that takes and returns many messages."""

        def invoke(**_: object) -> SimStream:
            self._alive()
            call = Call(self, method)
            call.begin(None)
            return SimStream(call, request_serializer, response_deserializer)

        return invoke

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Always ready: a connection costs nothing here."""
        return grpc.ChannelConnectivity.READY

    async def wait_for_state_change(self, _: grpc.ChannelConnectivity) -> None:
        """Never."""
        await asyncio.get_running_loop().create_future()

    async def close(self, grace: float | None = None) -> None:
        """End what is under way."""
        for call in list(self.calls.values()):
            call.cancel()

    def _alive(self) -> None:
        if not self.process.alive:
            raise asyncio.CancelledError


class SimStream:
    """In place of the client's side of a stream."""

    def __init__(self, call: Call, serialize: Bytes, parse: Parse) -> None:
        self._call = call
        self._serialize = serialize
        self._parse = parse

    async def write(self, message: Any) -> None:
        """Send one message; raises AioRpcError when the stream is over."""
        call = self._call
        if not call.client.alive:
            raise asyncio.CancelledError
        if call.ended:
            answer = await call.inbox.get()
            while not isinstance(answer, Answer):
                answer = await call.inbox.get()
            raise answer.error()
        body = self._serialize(message)
        if call.server is not None:
            call.fabric.wire.said(call.client, call.server, call.method, body)
        call.up(lambda: call.requests.put(body))

    async def read(self) -> Any:
        """The next message, EOF after the last; raises AioRpcError."""
        item = await self._call.inbox.get()
        if not isinstance(item, Answer):
            return self._parse(item)
        if item.code is StatusCode.OK:
            return grpc.aio.EOF
        if item.code is StatusCode.CANCELLED:
            raise asyncio.CancelledError
        raise item.error()

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Messages to the end."""
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    def cancel(self) -> bool:
        """End it from here."""
        self._call.cancel()
        return True


class Context:
    """In place of the servicer's context."""

    def __init__(self, client: Process) -> None:
        self.answer = Answer()
        self._peer = client.name

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """None."""
        return ()

    def peer(self) -> str:
        """Name of the client."""
        return self._peer

    def code(self) -> StatusCode:
        """As it was set."""
        return self.answer.code

    async def abort(self, code: StatusCode, details: str = "", trailing_metadata: Trailer = ()) -> None:
        """End the call."""
        self.answer = Answer(code, details, tuple(trailing_metadata))
        raise grpc.aio.AbortError(details)


class SimServer:
    """In place of ``grpc.aio.Server``."""

    def __init__(self, fabric: Fabric, process: Process, interceptors: Sequence[Any]) -> None:
        self.fabric = fabric
        self.process = process
        (self._interceptor,) = interceptors
        self._handlers: dict[str, Any] = {}
        self._wrapped: dict[str, Any] = {}
        self._addresses: list[str] = []

    def add_generic_rpc_handlers(self, _: object) -> None:
        """Registered by name as well."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Methods of a service."""
        self._handlers |= {f"/{service}/{name}": handler for name, handler in handlers.items()}

    def add_insecure_port(self, address: str) -> int:
        """Listen from ``start`` on; RuntimeError when somebody does already."""
        if self.fabric.at(address) is not None:
            raise RuntimeError(f"{address} is in use")
        self._addresses.append(address)
        return 0 if address.startswith("unix:") else int(address.rpartition(":")[2])

    async def start(self) -> None:
        """Serve."""
        for address in self._addresses:
            self.fabric.servers[address] = self

    async def stop(self, grace: float | None) -> None:
        """Take nothing in any more, wait for what runs, then end it."""
        for address in self._addresses:
            if self.fabric.servers.get(address) is self:
                del self.fabric.servers[address]
        calls = [call for call in self.fabric.network.calls.values() if isinstance(call, Call)]
        mine = [call.task for call in calls if call.server is self.process and call.task and not call.task.done()]
        if mine:
            await asyncio.wait(mine, timeout=grace)
            for task in mine:
                task.cancel()

    def spawn(self, call: Call, request: bytes | None) -> asyncio.Task[None]:
        """Serve one call in a task of the server's process."""
        loop = self.fabric.network.loop
        return loop.create_task(self._serve(call, request), name=call.method, context=self.process.context.copy())

    async def _serve(self, call: Call, request: bytes | None) -> None:
        context = Context(call.client)
        try:
            answer = await self._answer(call, request, context)
        except grpc.aio.AbortError:
            answer = context.answer
        finally:
            call.task = None  # whoever keeps the call keeps no task that has ended
        if request is not None:
            self.fabric.wire.answered(call.client, self.process, call.method, request, answer)
        if self.process.alive:
            call.down(lambda: call.end(answer))

    async def _answer(self, call: Call, request: bytes | None, context: Context) -> Answer:
        handler = await self._handler(call.method)
        if handler is None:
            return Answer(StatusCode.UNIMPLEMENTED, "Method not found!")
        if not handler.response_streaming:
            return Answer(body=await handler.unary_unary(request, context))
        responses = (
            handler.stream_stream(_requests(call.requests), context)
            if handler.request_streaming
            else handler.unary_stream(request, context)
        )
        async for response in responses:
            self._send(call, handler.response_serializer(response))
        return Answer()

    def _send(self, call: Call, body: bytes) -> None:
        if self.process.alive:
            self.fabric.wire.said(self.process, call.client, call.method, body)
            call.down(lambda: None if call.ended else call.inbox.put(body))

    async def _handler(self, method: str) -> Any:
        async def find(_: object) -> Any:
            return self._handlers.get(method)

        if method not in self._wrapped:
            details = SimpleNamespace(method=method)
            self._wrapped[method] = await self._interceptor.intercept_service(find, details)
        return self._wrapped[method]


async def _requests(inbox: Inbox) -> AsyncIterator[bytes]:
    """Bytes: the interceptors parse them."""
    while not isinstance(item := await inbox.get(), Answer):
        yield item
