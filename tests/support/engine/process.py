"""One engine process: HTTP server and child processes of a rank whose state lives in the group process."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from dataclasses import dataclass
from itertools import count

import aiohttp

from tests.support.engine.children import Children
from tests.support.engine.config import Dialect
from tests.support.engine.handler import Reply, Request
from tests.support.engine.link import PATH, Message, pack_request, unpack_reply
from tests.support.engine.rank import Child, Fate
from tests.support.engine.web import RankServer


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Command line of one engine. `alone` answers before the whole group has registered."""

    group: str
    rank: int
    dp_size: int
    dialect: Dialect
    host: str
    port: int
    alone: bool


class EngineProcess:
    """Runs until SIGTERM, the group's order to exit, or the loss of the group."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self.incarnation = secrets.token_hex(4)
        self._server = RankServer(self._call, options.host, options.port)
        self._children = Children(options.rank, self._child_changed)
        self._outbox: asyncio.Queue[Message] = asyncio.Queue(1000)
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._call_ids = count(1)
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """The exit code: 0 after SIGTERM, 1 when the engine died, 2 when it could not start or go on."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end, 0)
        loop.add_signal_handler(signal.SIGINT, self._end, 0)
        loop.add_signal_handler(signal.SIGCHLD, self._children.on_sigchld)
        try:
            self._server.reserve()
        except OSError as error:
            return self._complain(f"cannot listen on {self._options.host}:{self._options.port}: {error}")
        async with aiohttp.ClientSession() as session:
            try:
                url = f"http://{self._options.group}{PATH}"
                socket = await session.ws_connect(url, timeout=aiohttp.ClientWSTimeout(ws_close=1.0), max_msg_size=0)
            except aiohttp.ClientError as error:
                await self._server.stop()
                return self._complain(f"no group at {self._options.group}: {error}")
            return await self._serve(socket)

    async def _serve(self, socket: aiohttp.ClientWebSocketResponse) -> int:
        self._children.start()
        self._outbox.put_nowait(self._hello())
        tasks = [
            asyncio.create_task(self._read(socket), name="from the group"),
            asyncio.create_task(self._write(socket), name="to the group"),
        ]
        try:
            return await self._ended
        finally:
            await self._server.stop()
            asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
            self._children.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await socket.close()

    def _hello(self) -> Message:
        return {
            "type": "hello",
            "rank": self._options.rank,
            "dp_size": self._options.dp_size,
            "dialect": self._options.dialect,
            "pid": os.getpid(),
            "incarnation": self.incarnation,
            "alone": self._options.alone,
        }

    async def _write(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            await socket.send_json(await self._outbox.get())

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            await self._obey(message.json())
        if not self._ended.done():
            self._end(self._complain(f"lost the group at {self._options.group}"))

    async def _obey(self, message: Message) -> None:
        match message["type"]:
            case "reply":
                if (waiting := self._replies.get(int(str(message["call"])))) is not None and not waiting.done():
                    waiting.set_result(unpack_reply(message))
            case "formed":
                await self._server.start()
                self._announce()
            case "listen":
                await (self._server.start() if message["up"] else self._server.stop())
            case "kill":
                self._children.kill("worker" if message["child"] == "worker" else "engine")
            case "exit":
                self._end(1)
            case "refused":
                self._end(self._complain(str(message["reason"])))

    async def _call(self, request: Request) -> Reply:
        """Let the group answer; a client that goes away cancels its request there too."""
        call = next(self._call_ids)
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._replies[call] = reply
        await self._outbox.put(pack_request(call, request))
        try:
            return await reply
        finally:
            del self._replies[call]
            if reply.cancelled() and not self._outbox.full():
                self._outbox.put_nowait({"type": "cancel", "call": call})

    def _child_changed(self, child: Child, fate: Fate) -> None:
        self._outbox.put_nowait({"type": "child", "child": child, "fate": fate})

    def _end(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)

    def _announce(self) -> None:
        text = f"READY rank={self._options.rank} url={self._server.url}"
        sys.stdout.write(f"{text} incarnation={self.incarnation} pid={os.getpid()}\n")
        sys.stdout.flush()

    def _complain(self, problem: str) -> int:
        sys.stderr.write(f"fake engine rank {self._options.rank}: {problem}\n")
        return 2
