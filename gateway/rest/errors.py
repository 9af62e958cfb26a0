"""Refusals as JSON: ``{"error": {"reason", "message"}}`` with the status that the catalog names."""

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from motor_ft.model.errors import CATALOG, FtError, Reason
from motor_ft.wire.log import get_logger

_log = get_logger(__name__)


def answer(body: object, status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


def refusal(reason: Reason, message: str, status: int | None = None) -> web.Response:
    """The answer of a refusal; ``status`` where it is not the catalog's."""
    body = {"error": {"reason": reason, "message": message}}
    return answer(body, CATALOG[reason].rest_status if status is None else status)


@web.middleware
async def errors_to_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a route raises into an answer; what is not meant for users stays in the log."""
    try:
        return await handler(request)
    except FtError as error:
        return refusal(error.reason, error.message)
    except web.HTTPException as error:  # no such route or method, body too large
        hint = "; GET /openapi.json says what there is" if error.status in {404, 405} else ""
        text = f"{request.method} {request.path}: {error.reason}{hint}"
        response = refusal(Reason.INVALID_REQUEST, text, error.status)
        if isinstance(error, web.HTTPMethodNotAllowed):
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except Exception as error:  # noqa: BLE001 - the boundary of a request; one failure may not end the server
        _log.error("request failed", method=request.method, path=request.path, exc_info=error)
        return refusal(Reason.INTERNAL, "something went wrong here; the log of this process says what")
