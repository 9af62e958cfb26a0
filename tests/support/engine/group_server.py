"""The group process: it holds the state that engine processes share.

python -m tests.support.engine.group_server --port 0 --dp-size 4
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from dataclasses import fields

from aiohttp import web

from tests.support.engine import admin, link
from tests.support.engine.config import Dialect, GroupConfig, Timings
from tests.support.engine.group import Group
from tests.support.engine.journal import Journal
from tests.support.engine.remote import EngineLink

_STOPPED_POLL = 0.1


class GroupServer:
    """Forms a new group generation whenever all ranks have registered since the last one formed."""

    def __init__(self, config: GroupConfig, host: str = "127.0.0.1", port: int = 0) -> None:
        self.config = config
        self.journal = Journal()
        self.host = host
        self.port = port
        self._groups: list[Group] = []
        self._formed: Group | None = None
        self._links: set[EngineLink] = set()
        self._waiting: dict[int, EngineLink] = {}
        self._runner: web.AppRunner | None = None
        self._poll: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; raises OSError when the port is taken."""
        app = web.Application()
        app.router.add_get(link.PATH, self._serve_engine)
        app.router.add_route("*", admin.PREFIX + "{verb}", self._serve_admin)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, self.port).start()
        self.port = self._runner.addresses[0][1]
        self._poll = asyncio.create_task(self._watch_stopped(), name="stopped engines")

    async def stop(self) -> None:
        """End every connection and all background work."""
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.gather(self._poll, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()
        for group in self._groups:
            await group.close()

    async def _serve_admin(self, request: web.Request) -> web.Response:
        if request.path == f"{admin.PREFIX}log":
            return web.json_response(self.journal.as_json())
        if self._formed is None:
            missing = sorted(set(range(self.config.dp_size)) - self._waiting.keys())
            return web.json_response({"error": f"no group yet; ranks {missing} are missing"}, status=503)
        body = await request.read()
        status, reply = await admin.handle(self._formed, None, request.method, request.path, body)
        return web.json_response(reply, status=status)

    async def _serve_engine(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        hello = await socket.receive_json()
        if problem := self._mismatch(hello):
            await socket.send_json({"type": "refused", "reason": problem})
            await socket.close()
            return socket
        engine = EngineLink(socket, hello)
        self._links.add(engine)
        self._register(engine, alone=bool(hello["alone"]))
        try:
            await engine.run()
        finally:
            self._unregister(engine)
        return socket

    def _mismatch(self, hello: link.Message) -> str | None:
        """Why this engine cannot be a rank of this group."""
        for name, ours in (("dp_size", self.config.dp_size), ("dialect", self.config.dialect)):
            if hello[name] != ours:
                return f"the group has {name} {ours}, the engine {hello[name]}"
        if hello["rank"] not in range(self.config.dp_size):
            return f"the group has ranks 0 to {self.config.dp_size - 1}, the engine is rank {hello['rank']}"
        return None

    def _register(self, engine: EngineLink, alone: bool) -> None:
        if (earlier := self._waiting.get(engine.number)) is not None:
            earlier.end_server()
        self._waiting[engine.number] = engine
        if len(self._waiting) == self.config.dp_size:
            members, self._waiting = self._waiting, {}
            self._formed = self._form(members)
        elif alone:
            self._form({engine.number: engine})

    def _form(self, members: dict[int, EngineLink]) -> Group:
        """A new generation; engines of an older one that still run are told to exit."""
        group = Group(self.config, self.journal, len(self._groups) + 1)
        self._groups.append(group)
        for number, engine in sorted(members.items()):
            if engine.rank is not None:
                engine.rank.vanish()
            engine.rank = group.add(number, engine.incarnation, engine)
            engine.send({"type": "formed", "generation": group.generation})
        return group

    def _unregister(self, engine: EngineLink) -> None:
        self._links.discard(engine)
        if self._waiting.get(engine.number) is engine:
            del self._waiting[engine.number]
        if engine.rank is not None:
            engine.rank.vanish()

    async def _watch_stopped(self) -> None:
        while True:
            await asyncio.sleep(_STOPPED_POLL)
            for engine in self._links:
                engine.check_stopped()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.support.engine.group_server")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--dp-size", type=int, required=True)
    parser.add_argument("--tp-size", type=int, default=1)
    parser.add_argument(
        "--dialect", choices=[each for each in Dialect if not each.one_server], default=Dialect.V1, type=Dialect
    )
    parser.add_argument("--api-key", default=None)
    parser.add_argument("--no-fault-tolerance", dest="fault_tolerance", action="store_false")
    parser.add_argument("--bare-router", action="store_true")
    timings = parser.add_argument_group("timings, in seconds")
    for field in fields(Timings):
        timings.add_argument(f"--{field.name.replace('_', '-')}", type=float, default=field.default)
    return parser.parse_args(arguments)


async def _run(options: argparse.Namespace) -> int:
    timings = Timings(**{field.name: getattr(options, field.name) for field in fields(Timings)})
    config = GroupConfig(
        dp_size=options.dp_size,
        dialect=options.dialect,
        tp_size=options.tp_size,
        timings=timings,
        api_key=options.api_key,
        fault_tolerance=options.fault_tolerance,
        bare_router=options.bare_router,
    )
    server = GroupServer(config, options.host, options.port)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    try:
        await server.start()
    except OSError as error:
        sys.stderr.write(f"fake engine group: cannot listen on {options.host}:{options.port}: {error}\n")
        await server.stop()
        return 2
    sys.stdout.write(f"READY group=http://{server.host}:{server.port}\n")
    sys.stdout.flush()
    await ended.wait()
    await server.stop()
    return 0


def main(arguments: list[str] | None = None) -> int:
    return asyncio.run(_run(_parse(arguments)))


if __name__ == "__main__":
    sys.exit(main())
