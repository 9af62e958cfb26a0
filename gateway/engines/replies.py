"""What all dialects have in common: how an answer is read, and how an engine accepts and refuses."""

from typing import TypeVar

import msgspec

from gateway.engines.dialect import MAX_BODY, Reply, UnreadableError, Verdict
from motor_ft.model.engine import ApplyOutcome, Problem
from motor_ft.wire.decoding import NOT_JSON

_MAX_TEXT = 1000  # characters of an engine's text that are passed on
_MAX_RAW = 120  # characters of a raw answer that a message shows

# An answer of an intermediary says nothing about what the engine received.
_AMBIGUOUS = {502, 504}

StatusT = TypeVar("StatusT")


class _Accepted(msgspec.Struct, frozen=True):
    """Body of a 202 (engine-contract 1.3)."""

    message: str
    request_id: str


class _ErrorText(msgspec.Struct, frozen=True):
    message: str


class _Refusal(msgspec.Struct, frozen=True):
    """Every envelope of engine-contract 1.1 and 1.2: vLLM's full server, its key guard, a bare router, SGLang."""

    error: _ErrorText | str | None = None
    detail: str | list[str] | None = None
    message: str | None = None


_ACCEPTED = msgspec.json.Decoder(_Accepted)
_REFUSAL = msgspec.json.Decoder(_Refusal)


def read_body(decoder: msgspec.json.Decoder[StatusT], reply: Reply) -> StatusT:
    """The body of a status answer; raises UnreadableError: HTTP_STATUS, or PROTOCOL with the raw answer shortened."""
    if reply.status != 200:
        raise UnreadableError(Problem.HTTP_STATUS, refusal_text(reply))
    if len(reply.body) > MAX_BODY:
        raise UnreadableError(Problem.PROTOCOL, f"the status is longer than {MAX_BODY} bytes")
    try:
        return decoder.decode(reply.body)
    except NOT_JSON as error:
        raise UnreadableError(Problem.PROTOCOL, _misread(error, reply)) from error


def wrong_rank(rank: int, ids: list[int]) -> UnreadableError:
    """The answer is about others."""
    return UnreadableError(Problem.IDENTITY, f"asked rank {rank}, the answer is about {_raw(str(ids).encode())}")


def read_apply(reply: Reply, echo: str | None) -> Verdict:
    """Judge the answer to an order; with ``echo``, only a 202 that names this id is acceptance.

    A success that is not understood stays UNKNOWN: something may run.
    """
    if reply.status in _AMBIGUOUS or (200 <= reply.status < 300 and reply.status != 202):
        return Verdict(ApplyOutcome.UNKNOWN, refusal_text(reply))
    if reply.status != 202:
        return Verdict(ApplyOutcome.REFUSED, refusal_text(reply))
    try:
        accepted = _ACCEPTED.decode(reply.body)
    except NOT_JSON as error:
        return Verdict(ApplyOutcome.UNKNOWN, f"HTTP 202 that is not understood: {_misread(error, reply)}")
    their_id = clip(accepted.request_id)  # as a later reading shows it
    if echo is not None and accepted.request_id != echo:
        return Verdict(ApplyOutcome.UNKNOWN, f"HTTP 202 for request id {their_id!r}, sent {echo!r}", their_id)
    return Verdict(ApplyOutcome.ACCEPTED, "", their_id)


def refusal_text(reply: Reply) -> str:
    """``HTTP 400: `` and the engine's own message, in whichever envelope it came."""
    return f"HTTP {reply.status}: {_message(reply.body)}"


def clip(text: str | None) -> str:
    """An engine's text, as long as it is passed on."""
    return _clip(text or "", _MAX_TEXT)


def _message(body: bytes) -> str:
    try:
        refusal = _REFUSAL.decode(body)
    except NOT_JSON:
        return _raw(body)
    match refusal.error or refusal.detail or refusal.message:
        case _ErrorText(message=text) | str(text):
            return clip(text)
        case [*texts]:
            return clip("; ".join(texts))
        case _:
            return _raw(body)


def _misread(error: Exception, reply: Reply) -> str:
    # The decoder's text may quote a value of any length.
    return f"{clip(str(error))}; received {_raw(reply.body)}"


def _raw(body: bytes) -> str:
    return _clip(body[: 4 * _MAX_RAW].decode(errors="replace"), _MAX_RAW) or "an empty body"


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}…"
