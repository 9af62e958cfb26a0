"""An HTTP server that answers with whatever bytes a test wants, or not at all."""

import asyncio
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Serve = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """One request and the connection to answer it on."""

    def __init__(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        self.request = request
        self._writer = writer

    @property
    def path(self) -> str:
        """Of the request line."""
        return self.request.split(b" ", 2)[1].decode()

    async def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self, status: int, body: bytes, *headers: str) -> None:
        """Write a complete answer."""
        head = [f"HTTP/1.1 {status} Any", f"Content-Length: {len(body)}", "Content-Type: application/json", *headers]
        await self.send("\r\n".join([*head, "", ""]).encode() + body)

    def close(self) -> None:
        """End the connection in order."""
        self._writer.close()

    def reset(self) -> None:
        """End the connection with a reset."""
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()


class RawServer:
    """Where it listens, and every request that it received in full, on whichever connection."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.requests: list[bytes] = []
        self.connections = 0
        self._arrived = asyncio.Event()

    def record(self, request: bytes) -> None:
        """Note a request."""
        self.requests.append(request)
        self._arrived.set()

    async def received(self, count: int) -> None:
        """Wait until that many requests have arrived."""
        while len(self.requests) < count:
            self._arrived.clear()
            await self._arrived.wait()


@asynccontextmanager
async def raw_server(serve: Serve) -> AsyncIterator[RawServer]:
    """Serve every request with ``serve`` until the context ends."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raw.connections += 1
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"Content-Length: (\d+)", head)
                raw.record(head + await reader.readexactly(int(length[1]) if length else 0))
                await serve(Exchange(raw.requests[-1], writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(connected(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    raw = RawServer(server.sockets[0].getsockname()[1])
    try:
        yield raw
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
