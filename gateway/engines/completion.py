"""Asking an engine for one token: the proof that it serves (engine-contract section 5, guard 37)."""

import msgspec

from gateway.engines.client import EngineHttp, NotSentError, UnansweredError
from gateway.engines.dialect import Reply, UnreadableError
from gateway.engines.replies import clip, refusal_text
from motor_ft.model.engine import ProbeOutcome, Problem
from motor_ft.wire.decoding import NOT_JSON

_NO_ROUTE = {404, 405, 501}
_SERVED = {"stop", "length"}


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


class _Choice(msgspec.Struct, frozen=True):
    text: str
    finish_reason: str | None = None


class _Completion(msgspec.Struct, frozen=True):
    choices: list[_Choice]


async def probe(http: EngineHttp, url: str, timeout: float) -> tuple[ProbeOutcome, str]:
    """Ask the engine at ``url`` for its model and one token of it, ``timeout`` seconds each; returns a text too."""
    try:
        models = await http.get(f"{url}/v1/models", timeout)
        if models.status in _NO_ROUTE:
            return ProbeOutcome.NOT_SERVED_HERE, refusal_text(models)
        request = {"model": _model(models), "prompt": "1", "max_tokens": 1, "temperature": 0}
        return judge(await http.post(f"{url}/v1/completions", msgspec.json.encode(request), timeout))
    except (UnreadableError, NotSentError, UnansweredError) as error:
        return ProbeOutcome.FAILED, str(error)


def judge(reply: Reply) -> tuple[ProbeOutcome, str]:
    """What the answer to a completion request shows. One that ended otherwise than it should, as aborted, is none."""
    if reply.status in _NO_ROUTE:
        return ProbeOutcome.NOT_SERVED_HERE, refusal_text(reply)
    if reply.status != 200:
        return ProbeOutcome.FAILED, refusal_text(reply)
    try:
        reasons = [choice.finish_reason for choice in msgspec.json.decode(reply.body, type=_Completion).choices]
    except NOT_JSON as error:
        return ProbeOutcome.FAILED, f"no completion: {error}"
    if not reasons or not _SERVED.issuperset(reasons):
        return ProbeOutcome.FAILED, f"no completion came back, or none that was finished: {clip(str(reasons))}"
    return ProbeOutcome.SERVED, ""


def _model(reply: Reply) -> str:
    try:
        return msgspec.json.decode(reply.body, type=_Models).data[0].id
    except (*NOT_JSON, IndexError) as error:
        raise UnreadableError(Problem.PROTOCOL, f"/v1/models names no model: {refusal_text(reply)}") from error
