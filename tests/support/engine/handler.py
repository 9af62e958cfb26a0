"""What one rank's HTTP server answers; no HTTP library here, so both ways to run share it."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from tests.support.engine import admin, apply_v0_33, apply_v1, sglang
from tests.support.engine.completions import Outcome
from tests.support.engine.config import Dialect
from tests.support.engine.journal import ApplyRecord
from tests.support.engine.rank import Rank
from tests.support.engine.states import Status
from tests.support.engine.validation import Command, error_body, parse_apply

_METHODS = {"/health": "GET", "/metrics": "GET", "/v1/models": "GET", "/v1/completions": "POST"}
_RUN = {Dialect.V1: apply_v1.run, Dialect.V0_33: apply_v0_33.run, Dialect.SGLANG: sglang.run}
_completion_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP reply; `reset` tears the connection down instead."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    location: str | None = None
    reset: bool = False


async def handle(rank: Rank, request: Request) -> Reply:
    """Answer as the API server of this rank would."""
    if request.path.startswith(admin.PREFIX):
        return _json(*await admin.handle(rank.group, rank, request.method, request.path, request.body))
    rank.group.journal.requests.add(f"{request.method} {request.path}")
    config = rank.group.config
    methods = dict(_METHODS)
    if config.fault_tolerance or config.dialect is Dialect.SGLANG:
        methods |= {f"{config.dialect.prefix}/status": "GET", f"{config.dialect.prefix}/apply": "POST"}
    if request.path not in methods:
        bare = request.path.rstrip("/")
        return Reply(307, location=bare) if bare in methods else _json(404, {"detail": "Not Found"})
    if methods[request.path] != request.method:
        return _json(405, {"detail": "Method Not Allowed"})
    if not _authorized(rank, request):
        return _json(401, {"error": "Unauthorized"})
    if (
        config.dialect is Dialect.SGLANG
        and not config.fault_tolerance
        and request.path.startswith(config.dialect.prefix)
    ):
        return _json(503, {"message": "fault tolerance is off"})
    return await _route(rank, request)


async def _route(rank: Rank, request: Request) -> Reply:
    match request.path.rsplit("/", 1)[1]:
        case "status":
            return _status(rank)
        case "apply":
            return await _apply(rank, request)
        case "completions":
            return await _complete(rank, request)
        case "models":
            model = {"id": rank.group.config.model, "object": "model", "owned_by": "vllm"}
            return _json(200, {"object": "list", "data": [model]})
        case "metrics":
            return _metrics(rank)
        case _:
            return Reply(503 if rank.core_gone else 200, content_type="text/plain")


def _authorized(rank: Rank, request: Request) -> bool:
    """Only what lies under /v1 is guarded by the API key."""
    if not request.path.startswith("/v1"):
        return True
    if rank.armed.take("unauthorized") is not None:
        return False
    key = rank.group.config.api_key
    return key is None or request.headers.get("authorization") == f"Bearer {key}"


def _status(rank: Rank) -> Reply:
    """The cache of the API server, never a probe of the engine."""
    if rank.armed.take("non_json") is not None:
        return Reply(200, b"<html>proxy error</html>", "text/html")
    group = rank.group
    answering = [group.ranks[number] for number in sorted(group.ranks)] if group.config.dialect.one_server else [rank]
    schema = (rank.armed.take("schema_version") or {}).get("value", 1)
    body = {"schema_version": schema, "total_engines": len(answering), "engines": [_entry(each) for each in answering]}
    return _json(200, body | group.receipt)


def _entry(rank: Rank) -> dict[str, object]:
    entry = rank.entry.view()
    if (other := rank.armed.take("wrong_id")) is not None:
        entry["id"] = other.get("id", rank.number + 1)
    if (unknown := rank.armed.take("unknown_status")) is not None:
        entry["status"] = unknown.get("value", "paused")
    return entry


async def _apply(rank: Rank, request: Request) -> Reply:
    command = _parse(rank, request)
    if isinstance(command, Reply):
        _record_apply(rank, request, command)
        return command
    reset = rank.armed.take("drop_before_reply")
    dropped = rank.armed.take("drop_after_202") is not None or (reset or {}).get("run") is False
    text = f"Request accepted; poll {rank.group.config.dialect.prefix}/status for updates."
    reply = _json(202, {"message": text, "request_id": command.request_id})
    _record_apply(rank, request, reply if reset is None else None)
    if not dropped:
        work = _RUN[rank.group.config.dialect](rank, command)
        rank.group.spawn(f"apply {command.request_id} on rank {rank.number}", work)
    return reply if reset is None else Reply(0, reset=True)


def _parse(rank: Rank, request: Request) -> Command | Reply:
    """The command to run, or what refuses it."""
    if (refused := rank.armed.take("apply_error")) is not None:
        code = int(str(refused.get("status", 503)))
        return _json(code, error_body(str(refused.get("message", "injected")), "InternalServerError", code))
    config = rank.group.config
    command = parse_apply(config.dialect, request.headers.get("content-type", ""), request.body)
    if isinstance(command, Command):
        refusal = sglang.check(rank.group, command) if config.dialect is Dialect.SGLANG else None
        if refusal is None:
            return command
        command = refusal
    status, body = command.reply(config)
    return Reply(status, body.encode(), "text/plain") if isinstance(body, str) else _json(status, body)


def _record_apply(rank: Rank, request: Request, reply: Reply | None) -> None:
    record = ApplyRecord(
        at=time.time(),
        generation=rank.group.generation,
        rank=rank.number,
        incarnation=rank.incarnation,
        body=_readable(request.body),
        status=reply.status if reply else None,
        reply=_readable(reply.body) if reply else None,
    )
    rank.group.journal.applies.append(record)
    rank.group.changes.notify()


async def _complete(rank: Rank, request: Request) -> Reply:
    try:
        body = json.loads(request.body)
    except ValueError:
        return _json(400, error_body("Invalid JSON format", "Bad Request", 400))
    if not isinstance(body, dict) or "prompt" not in body:
        return _json(400, error_body("'prompt' is required.", "BadRequestError", 400))
    if rank.armed.take("completions_fail") is not None:
        return _json(500, error_body("The server had an error", "InternalServerError", 500))
    if rank.group.config.dialect is Dialect.SGLANG:
        if sglang.paused(rank.group):
            return _json(503, {"message": "fault_tolerance_paused"})
        return _json(200, _completion(rank, "served by all ranks", "stop"))
    match await rank.completions.run():
        case Outcome.FAULTED:
            text = f"Engine {rank.number} is faulted and waits for recovery."
            return _json(503, error_body(text, "ServiceUnavailableError", 503))
        case Outcome.ENGINE_DEAD:
            text = "The server had an error while processing your request."
            return _json(500, error_body(text, "InternalServerError", 500))
        case Outcome.ABORTED:
            return _json(200, _completion(rank, "", "abort"))
        case Outcome.DONE:
            return _json(200, _completion(rank, f"served by rank {rank.number}", "stop"))


def _completion(rank: Rank, text: str, finish_reason: str) -> dict[str, object]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return {
        "id": f"cmpl-{rank.incarnation}-{next(_completion_ids)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": rank.group.config.model,
        "choices": [choice],
        "usage": {"prompt_tokens": 1, "completion_tokens": len(text.split()), "total_tokens": 1},
    }


def _metrics(rank: Rank) -> Reply:
    healthy = int(rank.status is Status.HEALTHY and not rank.core_gone)
    text = (
        "# HELP vllm:engine_healthy Whether the engine is healthy.\n# TYPE vllm:engine_healthy gauge\n"
        f'vllm:engine_healthy{{engine="{rank.number}"}} {healthy}\n'
    )
    return Reply(200, text.encode(), "text/plain")


def _readable(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


def _json(status: int, body: object) -> Reply:
    return Reply(status, msgspec.json.encode(body))
