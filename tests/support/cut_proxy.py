"""A TCP proxy that can cut, delay or reset each direction on its own."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, Self

Mode = Literal["pass", "blackhole", "reset"]
Direction = Literal["up", "down"]
"""Up: from the client to the target."""
BOTH: tuple[Direction, ...] = ("up", "down")
_CHUNK = 64 * 1024
_IN_FLIGHT = 64


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to one direction; `delay` in seconds.

    A blackhole holds what it gets, as TCP would retransmit it after the cut. A reset ends every connection
    that has one, at once, and each new one.
    """

    mode: Mode = "pass"
    delay: float = 0.0


class CutProxy:
    """Listens on `port` (0: any) and forwards to the target.

    async with CutProxy("127.0.0.1", 9000) as proxy:
        proxy.cut(["down"])
    """

    def __init__(self, target_host: str, target_port: int, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.target = (target_host, target_port)
        self.host = host
        self.port = port
        self.accepted = 0
        """Connections accepted so far."""
        self._rules: dict[Direction, Rule] = {"up": Rule(), "down": Rule()}
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for _ in range(3):
            await asyncio.sleep(0)  # what was accepted last begins
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def cut(self, directions: Iterable[Direction] = BOTH, mode: Mode = "blackhole") -> None:
        """Cut the given directions: `blackhole` keeps connections and says nothing, `reset` ends them."""
        for direction in directions:
            self._rules[direction] = replace(self._rules[direction], mode=mode)
        self._apply()

    def delay(self, seconds: float, directions: Iterable[Direction] = BOTH) -> None:
        """Deliver later; order and throughput stay."""
        for direction in directions:
            self._rules[direction] = replace(self._rules[direction], delay=seconds)
        self._apply()

    def heal(self) -> None:
        """Pass again in both directions, without delay; what a blackhole held is delivered."""
        self._rules = {"up": Rule(), "down": Rule()}
        self._apply()

    def _apply(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if self._resets:
            for task in self._connections:
                task.cancel()

    @property
    def _resets(self) -> bool:
        return any(rule.mode == "reset" for rule in self._rules.values())

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        writers = self._connections[task] = [writer]
        close: Callable[[asyncio.StreamWriter], None] = _reset
        try:
            if not self._resets:
                await self._passing("up")
                target_reader, target_writer = await asyncio.open_connection(*self.target)
                writers.append(target_writer)
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(self._pump("up", reader, target_writer))
                    pumps.create_task(self._pump("down", target_reader, writer))
                close = asyncio.StreamWriter.close
        except* (OSError, asyncio.CancelledError):
            pass  # one side is gone, a reset, or the end of the proxy: both sides are torn down below
        finally:
            for side in writers:
                close(side)
            try:
                await asyncio.gather(*(side.wait_closed() for side in writers), return_exceptions=True)
            finally:
                del self._connections[task]

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one direction to its end; an end of stream travels like data."""
        loop = asyncio.get_running_loop()
        in_flight: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_IN_FLIGHT)

        async def receive() -> None:
            data = b"."
            while data:
                data = await reader.read(_CHUNK)
                await in_flight.put((loop.time(), data))

        async with asyncio.TaskGroup() as group:
            group.create_task(receive())
            while True:
                arrived, data = await in_flight.get()
                await asyncio.sleep(arrived + self._rules[direction].delay - loop.time())
                await self._passing(direction)
                if not data:
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()

    async def _passing(self, direction: Direction) -> None:
        while self._rules[direction].mode == "blackhole":
            await self._changed.wait()


def _reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw.fileno() >= 0:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
