"""The group's side of one engine process."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import web

from tests.support.engine.handler import handle
from tests.support.engine.injections import InjectionError
from tests.support.engine.link import Message, pack_reply, unpack_request
from tests.support.engine.rank import Child, Rank

_OUTBOX = 1000


class EngineLink:
    """The processes of a rank, at the other end of a connection. Its end is the end of the rank."""

    def __init__(self, socket: web.WebSocketResponse, hello: Message) -> None:
        self.number = int(str(hello["rank"]))
        self.pid = int(str(hello["pid"]))
        self.incarnation = str(hello["incarnation"])
        self.rank: Rank | None = None
        self._socket = socket
        self._outbox: asyncio.Queue[Message] = asyncio.Queue(_OUTBOX)
        self._calls: dict[object, asyncio.Task[None]] = {}
        self._stopped = False

    async def run(self) -> None:
        """Exchange messages until the connection ends."""
        writer = asyncio.create_task(self._write(), name=f"link to rank {self.number}")
        try:
            async for message in self._socket:
                self._receive(message.json())
        finally:
            tasks = [writer, *self._calls.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def send(self, message: Message) -> None:
        self._outbox.put_nowait(message)

    async def _write(self) -> None:
        while True:
            await self._socket.send_json(await self._outbox.get())

    def _receive(self, message: Message) -> None:
        match message["type"]:
            case "call" if self.rank is not None:
                call = message["call"]
                task = asyncio.create_task(self._answer(self.rank, message), name=f"call {call}")
                self._calls[call] = task
                task.add_done_callback(lambda _: self._calls.pop(call, None))
            case "cancel":
                if (running := self._calls.get(message["call"])) is not None:
                    running.cancel()
            case "child" if self.rank is not None:
                self.rank.child_changed(message["child"], message["fate"])  # type: ignore[arg-type]
            case "child" if message["fate"] == "died":
                self.end_server()  # it will never be ready

    async def _answer(self, rank: Rank, message: Message) -> None:
        self.send(pack_reply(message["call"], await handle(rank, unpack_request(message))))

    def check_stopped(self) -> None:
        """A process under SIGSTOP takes no part in collectives; the kernel knows, nobody else tells."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return  # it is ending: the connection will tell
        if self.rank is not None and (state in "Tt") is not self._stopped:
            self._stopped = not self._stopped
            self.rank.child_changed("engine", "stopped" if self._stopped else "continued")

    # Host

    def end_server(self) -> None:
        self.send({"type": "exit"})

    def listen(self, up: bool) -> None:
        self.send({"type": "listen", "up": up})

    def kill(self, child: Child) -> None:
        self.send({"type": "kill", "child": child})

    def restart(self) -> None:
        raise InjectionError("this engine is a process: kill it, its supervisor starts it again")
