"""JSON messages between an engine process and its group process, over one WebSocket.

up:   hello, call, cancel, child            down: refused, formed, reply, exit, listen, kill
"""

from __future__ import annotations

import base64
from dataclasses import asdict

from tests.support.engine.handler import Reply, Request

Message = dict[str, object]
PATH = "/_fake/link"


def pack_request(call: int, request: Request) -> Message:
    return {"type": "call", "call": call} | _pack(asdict(request))


def unpack_request(message: Message) -> Request:
    headers = message["headers"]
    assert isinstance(headers, dict)
    return Request(str(message["method"]), str(message["path"]), headers, _body(message))


def pack_reply(call: object, reply: Reply) -> Message:
    return {"type": "reply", "call": call} | _pack(asdict(reply))


def unpack_reply(message: Message) -> Reply:
    status, location = message["status"], message["location"]
    assert isinstance(status, int)
    return Reply(
        status,
        _body(message),
        str(message["content_type"]),
        None if location is None else str(location),
        bool(message["reset"]),
    )


def _pack(fields: Message) -> Message:
    body = fields["body"]
    assert isinstance(body, bytes)
    return fields | {"body": base64.b64encode(body).decode()}


def _body(message: Message) -> bytes:
    return base64.b64decode(str(message["body"]))
