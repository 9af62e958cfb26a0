"""The fake Coordinator's HTTP side: refresh, readiness, routed completions, and `/_fake/` for tests."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import deque
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

from aiohttp import ClientError, ClientSession, ClientTimeout, web

from tests.support.coordinator.view import RefreshError, View

_LIMIT = 20_000


@dataclass(frozen=True, slots=True)
class ViewRecord:
    """One refresh that arrived and how it was answered; `at` is wall-clock seconds."""

    at: float
    event: object
    instances: object
    status: int


@dataclass(frozen=True, slots=True)
class CompletionRecord:
    """One routed completion; without instance and endpoint if nothing was routable, `latency` in seconds."""

    at: float
    instance: int | None
    endpoint: int | None
    status: int
    finish_reason: str | None
    latency: float


class FakeCoordinator:
    """Routes completions round robin over its current view.

    async with FakeCoordinator() as coordinator:
        coordinator.url, coordinator.views, coordinator.serving()
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        admin_port: int = 0,
        *,
        engine_timeout: float = 30.0,
        api_key: str | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.admin_port = admin_port
        self.views: deque[ViewRecord] = deque(maxlen=_LIMIT)
        self.completions: deque[CompletionRecord] = deque(maxlen=_LIMIT)
        self.view = View()
        self._engine_timeout = ClientTimeout(total=engine_timeout)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._turn = itertools.count()
        self._faults: dict[str, dict[str, object]] = {}
        self._business: web.AppRunner | None = None
        self._admin: web.AppRunner | None = None
        self._session: ClientSession | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://{self.host}:{self.admin_port}"

    def serving(self) -> dict[int, list[int]]:
        """Endpoint ids per instance in the current view."""
        return {n: sorted(e.number for e in i.endpoints) for n, i in self.view.instances.items()}

    async def start(self) -> None:
        """Listen on both ports; raises OSError when one is taken."""
        self._session = ClientSession(timeout=self._engine_timeout, headers=self._headers)
        admin = web.Application()
        admin.add_routes(
            [
                web.get("/_fake/views", self._serve_views),
                web.get("/_fake/completions", self._serve_completions),
                web.get("/_fake/view", self._serve_view),
                web.post("/_fake/inject", self._serve_inject),
            ]
        )
        try:
            self._admin, self.admin_port = await _listen(admin, self.host, self.admin_port)
            await self._up()
        except OSError:
            await self.stop()
            raise

    async def stop(self) -> None:
        await self._down()
        if self._admin is not None:
            await self._admin.cleanup()
        if self._session is not None:
            await self._session.close()

    async def inject(self, name: str, **params: object) -> None:
        """One injection, in effect on return.

        `down` / `up`: refuse connections, or accept again · `forget`: an empty view, as after a restart ·
        `slow` (`seconds`, `route`="refresh") · `error` (`status`=500, `route`="refresh", `times`) ·
        `clear`: no `slow` and no `error` any more. Routes: refresh, readiness, completions. A slow refresh
        is applied before the wait, so that a client that gives up cannot know.

        Raises:
            ValueError: unknown name.
        """
        match name:
            case "down":
                await self._down()
            case "up":
                await self._up()
            case "forget":
                self.view.forget()
            case "slow" | "error":
                self._faults[f"{name} {params.pop('route', 'refresh')}"] = params
            case "clear":
                self._faults.clear()
            case _:
                raise ValueError(f"no injection {name!r}")

    async def _up(self) -> None:
        if self._business is None:
            app = web.Application()
            app.add_routes(
                [
                    web.post("/instances/refresh", self._refresh),
                    web.get("/readiness", self._readiness),
                    web.post("/v1/completions", self._complete),
                ]
            )
            self._business, self.port = await _listen(app, self.host, self.port)

    async def _down(self) -> None:
        business, self._business = self._business, None
        if business is not None:
            await business.cleanup()

    # Business routes

    async def _refresh(self, request: web.Request) -> web.Response:
        try:
            body = json.loads(await request.read())
        except ValueError:
            body = None
        status, message = self._error("refresh"), "injected"
        if status is None:
            status, message = self._apply(body)
        fields = body if isinstance(body, dict) else {}
        self.views.append(ViewRecord(time.time(), fields.get("event"), fields.get("instances"), status))
        await self._slow("refresh")
        return web.json_response({"status": "success" if status == 200 else "error", "message": message}, status=status)

    def _apply(self, body: object) -> tuple[int, str]:
        try:
            self.view.refresh(body)
        except RefreshError as error:
            return error.status, str(error)
        return 200, "instances refreshed"

    async def _readiness(self, _: web.Request) -> web.Response:
        await self._slow("readiness")
        if (status := self._error("readiness")) is not None:
            return web.json_response({"message": "injected"}, status=status)
        return web.json_response({"ready": bool(self.view.routable())})

    async def _complete(self, request: web.Request) -> web.Response:
        await self._slow("completions")
        if (status := self._error("completions")) is not None:
            return web.json_response({"error": {"message": "injected", "code": status}}, status=status)
        started, routable = time.monotonic(), self.view.routable()
        if not routable:
            self._log(None, None, 503, b"", started)
            return web.json_response({"error": {"message": "no instance serves", "code": 503}}, status=503)
        instance, endpoint = routable[next(self._turn) % len(routable)]
        url = f"http://{endpoint.ip}:{endpoint.business_port}/v1/completions"
        status, reply = await self._forward(url, await request.read())
        self._log(instance.number, endpoint.number, status, reply, started)
        return web.Response(status=status, body=reply, content_type="application/json")

    async def _forward(self, url: str, body: bytes) -> tuple[int, bytes]:
        assert self._session is not None
        try:
            headers = {"Content-Type": "application/json"}
            async with self._session.post(url, data=body, headers=headers) as response:
                return response.status, await response.read()
        except (ClientError, TimeoutError) as error:
            return 502, json.dumps({"error": {"message": f"{url}: {error!r}", "code": 502}}).encode()

    def _log(self, instance: int | None, endpoint: int | None, status: int, reply: bytes, began: float) -> None:
        reason: str | None = None
        if status == 200:
            reason = json.loads(reply)["choices"][0]["finish_reason"]
        latency = time.monotonic() - began
        self.completions.append(CompletionRecord(time.time(), instance, endpoint, status, reason, latency))

    def _error(self, route: str) -> int | None:
        """The status of an armed error; the last of its `times` disarms it."""
        params = self._faults.get(f"error {route}")
        if params is None:
            return None
        if isinstance(times := params.get("times"), int):
            params["times"] = times - 1
            if times <= 1:
                del self._faults[f"error {route}"]
        return int(str(params.get("status", 500)))

    async def _slow(self, route: str) -> None:
        if (params := self._faults.get(f"slow {route}")) is not None:
            await asyncio.sleep(float(str(params["seconds"])))

    # Routes for tests

    async def _serve_views(self, request: web.Request) -> web.Response:
        after = float(request.query.get("after", 0))
        return web.json_response([asdict(record) for record in self.views if record.at > after])

    async def _serve_completions(self, _: web.Request) -> web.Response:
        return web.json_response([asdict(record) for record in self.completions])

    async def _serve_view(self, _: web.Request) -> web.Response:
        return web.json_response({str(number): ranks for number, ranks in self.serving().items()})

    async def _serve_inject(self, request: web.Request) -> web.Response:
        params = await request.json()
        try:
            await self.inject(params.pop("name"), **params)
        except (KeyError, ValueError) as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response({})


async def _listen(app: web.Application, host: str, port: int) -> tuple[web.AppRunner, int]:
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, runner.addresses[0][1]
