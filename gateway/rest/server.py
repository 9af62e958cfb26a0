"""The HTTP server of the REST routes."""

from collections.abc import Iterable
from importlib.resources import files

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.metrics import RestMetrics
from gateway.rest.errors import errors_to_json
from motor_ft.wire.http import HttpServer

_MAX_BODY = 64 * 1024  # bytes


class RestServer(HttpServer):
    """Serves ``routes``, and at ``/openapi.json`` the document that describes them."""

    def __init__(self, listen: str, routes: Iterable[web.RouteDef], metrics: RestMetrics) -> None:
        app = web.Application(middlewares=[_counted(metrics), errors_to_json], client_max_size=_MAX_BODY)
        app.add_routes([*routes, web.get("/openapi.json", _document)])
        super().__init__(listen, app)


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
