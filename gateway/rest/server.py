"""The HTTP server of the REST routes."""

from collections.abc import Iterable
from importlib.resources import files

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.metrics import RestMetrics
from gateway.rest.errors import errors_to_json
from motor_ft.wire.listen import cannot_listen, split_address

_MAX_BODY = 64 * 1024  # bytes
_GRACE_SEC = 2.0


class RestServer:
    """Serves ``routes``, and at ``/openapi.json`` the document that describes them.

    ``listen`` is ``host:port``, with port 0 for any free one.
    """

    def __init__(self, listen: str, routes: Iterable[web.RouteDef], metrics: RestMetrics) -> None:
        self._listen = listen
        app = web.Application(middlewares=[_counted(metrics), errors_to_json], client_max_size=_MAX_BODY)
        app.add_routes([*routes, web.get("/openapi.json", _document)])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_GRACE_SEC)

    async def start(self) -> int:
        """Listen; returns the bound port. Raises FtError PORT_UNAVAILABLE."""
        host, port = split_address(self._listen)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise cannot_listen(self._listen) from error
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Close the port and let requests finish; a peer that is slower than the grace does not keep us."""
        await self._runner.cleanup()


def _counted(metrics: RestMetrics) -> Middleware:
    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        resource = request.match_info.route.resource
        # A caller must not be able to make up series: without a route neither its path nor its method is named.
        method, route = (request.method, resource.canonical) if resource else ("", "")
        metrics.requests.labels(method, route, response.status).inc()
        return response

    return count


def document() -> bytes:
    """The OpenAPI document."""
    return (files("gateway.rest") / "openapi.json").read_bytes()


async def _document(_request: web.Request) -> web.Response:
    return web.Response(body=document(), content_type="application/json")
