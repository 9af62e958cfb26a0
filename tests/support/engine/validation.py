"""What `POST apply` checks before its 202 (engine-contract.md section 1.2): pure."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass

from tests.support.engine.config import Dialect, GroupConfig

_PATH = re.compile(r"(?<!\w)/[\w.\-/]+")
_MSGPACK_MIN, _MSGPACK_MAX = -(2**63), 2**64 - 1


@dataclass(frozen=True, slots=True)
class Command:
    """An accepted instruction. `lost` marks one that the server cannot serialise: 202, then only logged."""

    instruction: str
    params: dict[str, object]
    request_id: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """A 400 of the full server; a bare router answers `bare_status` with `detail` instead.

    Dialect (c) answers `status` with the message alone.
    """

    message: str
    kind: str = "Bad Request"
    bare_status: int = 400
    status: int = 400

    def reply(self, config: GroupConfig) -> tuple[int, object]:
        """Status code and JSON body, or plain text where the bare router crashes."""
        if config.dialect is Dialect.SGLANG:
            return self.status, {"message": self.message}
        if not config.bare_router:
            return 400, error_body(self.message, self.kind, 400)
        if self.bare_status == 422:
            return 422, {"detail": [self.message.removeprefix("1 validation error:\n  ")]}
        if self.bare_status == 500:
            return 500, "Internal Server Error"
        return 400, {"detail": self.message}


def error_body(message: str, kind: str, code: int) -> dict[str, object]:
    """vLLM's error envelope; anything that looks like a file path is scrubbed."""
    return {"error": {"message": _PATH.sub("<path>", message), "type": kind, "param": None, "code": code}}


def parse_apply(dialect: Dialect, content_type: str, body: bytes) -> Command | Refusal:
    """Validate in vLLM's order: media type, JSON, object, instruction, params, request_id; (c) takes any media type."""
    if dialect is not Dialect.SGLANG and content_type.split(";", 1)[0].strip().lower() != "application/json":
        text = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        return Refusal(text, bare_status=422)
    try:
        data = json.loads(body)
    except UnicodeDecodeError as error:
        return Refusal(str(error), "BadRequestError", bare_status=500)
    except ValueError:
        return Refusal("Invalid JSON format")
    if not isinstance(data, dict):
        return Refusal("Request body must be a JSON object.")
    return _parse_fields(dialect, data)


def _parse_fields(dialect: Dialect, data: dict[str, object]) -> Command | Refusal:
    instruction = data.get("instruction")
    if not instruction:
        return Refusal("'instruction' is required.")
    if dialect is not Dialect.SGLANG and isinstance(instruction, list | dict):
        text = f"unhashable type: '{type(instruction).__name__}'"
        return Refusal(text, "BadRequestError", bare_status=500)
    if not isinstance(instruction, str) or instruction not in dialect.instructions:
        return Refusal(f"Invalid instruction: '{instruction}'.")
    params = data.get("params", {})
    if not isinstance(params, dict):
        return Refusal("'params' must be an object.")
    if dialect is Dialect.V0_33:
        return Command(instruction, params, str(uuid.uuid4()), lost=_overflows(params))
    request_id, optional = data.get("request_id", ""), dialect is Dialect.SGLANG
    if not isinstance(request_id, str) or not (optional or request_id.strip()):
        return Refusal(f"'request_id' must be a {'' if optional else 'non-empty '}string.")
    return Command(instruction, params, request_id)


def _overflows(value: object) -> bool:
    """Whether msgpack cannot carry the value: an integer past 64 bits."""
    if isinstance(value, int):
        return not _MSGPACK_MIN <= value <= _MSGPACK_MAX
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_overflows(child) for child in children)
