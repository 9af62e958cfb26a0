"""The HTTP edge of one rank: aiohttp in front of a function from Request to Reply."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

from aiohttp import web

from tests.support.engine.handler import Reply, Request

_LINGER = 0.2
"""Seconds that requests in progress get when the server ends."""


class RankServer:
    """One listening port. It can be started again on the port it had."""

    def __init__(self, serve: Callable[[Request], Awaitable[Reply]], host: str, port: int = 0) -> None:
        self._serve = serve
        self.host = host
        self.port = port
        self._socket: socket.socket | None = None
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def reserve(self) -> None:
        """Bind without listening, as an API server does before its engine is up; OSError if taken."""
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((self.host, self.port))
        except OSError:
            bound.close()
            raise
        self._socket = bound
        self.port = bound.getsockname()[1]

    async def start(self) -> None:
        """Listen; raises OSError when the port is taken. Nothing happens if it listens already."""
        if self._runner is not None:
            return
        if self._socket is None:
            self.reserve()
        assert self._socket is not None
        app = web.Application(client_max_size=16 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=_LINGER)
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket).start()

    async def stop(self) -> None:
        """Refuse connections from now on."""
        runner, self._runner = self._runner, None
        bound, self._socket = self._socket, None
        if runner is not None:
            await runner.cleanup()
        if bound is not None:
            bound.close()

    async def _handle(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        reply = await self._serve(Request(request.method, request.path, headers, await request.read()))
        if reply.reset:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=500)
        response = web.Response(status=reply.status, body=reply.body, content_type=reply.content_type)
        if reply.location is not None:
            response.headers["Location"] = reply.location
        return response
