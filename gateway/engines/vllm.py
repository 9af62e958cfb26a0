"""What both vLLM dialects have in common: one engine per server, and how it accepts and refuses."""

from typing import Generic, Literal, TypeVar

import msgspec

from gateway.engines.dialect import MAX_BODY, Reply, UnreadableError, Verdict
from motor_ft.model.engine import ApplyOutcome, EngineObservation, EngineStatus, FtState, Problem
from motor_ft.wire.decoding import NOT_JSON

_MAX_TEXT = 1000  # characters of an engine's text that are passed on
_MAX_RAW = 120  # characters of a raw answer that a message shows

# An answer of an intermediary says nothing about what the engine received.
_AMBIGUOUS = {502, 504}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of ``engines[]`` that both dialects have. Unknown fields are ignored, wrong types are not."""

    id: int
    fault_info: str | None = None
    last_ft_request_id: str | None = None
    ft_error: str | None = None


EntryT = TypeVar("EntryT", bound=Entry)


class Status(msgspec.Struct, Generic[EntryT], frozen=True, kw_only=True):
    """Body of a status answer (engine-contract 1.4)."""

    schema_version: Literal[1]
    engines: list[EntryT]
    total_engines: int = 1


class _Accepted(msgspec.Struct, frozen=True):
    """Body of a 202 (engine-contract 1.3)."""

    message: str
    request_id: str


class _ErrorText(msgspec.Struct, frozen=True):
    message: str


class _Refusal(msgspec.Struct, frozen=True):
    """Every envelope of engine-contract 1.1 and 1.2: of the full server, of its key guard, of a bare router."""

    error: _ErrorText | str | None = None
    detail: str | list[str] | None = None


_ACCEPTED = msgspec.json.Decoder(_Accepted)
_REFUSAL = msgspec.json.Decoder(_Refusal)


def sole_entry(decoder: msgspec.json.Decoder[Status[EntryT]], rank: int, reply: Reply) -> EntryT:
    """The one entry of a status answer, which must be that of ``rank``.

    Raises UnreadableError: HTTP_STATUS, PROTOCOL with the raw answer shortened, or IDENTITY.
    """
    if reply.status != 200:
        raise UnreadableError(Problem.HTTP_STATUS, refusal_text(reply))
    if len(reply.body) > MAX_BODY:
        raise UnreadableError(Problem.PROTOCOL, f"the status is longer than {MAX_BODY} bytes")
    try:
        engines = decoder.decode(reply.body).engines
    except NOT_JSON as error:
        raise UnreadableError(Problem.PROTOCOL, f"{error}; received {_raw(reply.body)}") from error
    ids = [entry.id for entry in engines]
    if ids != [rank]:
        raise UnreadableError(Problem.IDENTITY, f"asked rank {rank}, the answer is about {_raw(str(ids).encode())}")
    return engines[0]


def observe(
    entry: Entry, status: str, ft_state: str | None = None, mask: list[Literal[0, 1]] | None = None
) -> EngineObservation:
    """The reading that an entry gives."""
    return EngineObservation(
        rank=entry.id,
        status=EngineStatus(status),
        ft_state=FtState(ft_state or ""),
        fault_info=_clip(entry.fault_info or "", _MAX_TEXT),
        last_ft_request_id=_clip(entry.last_ft_request_id or "", _MAX_TEXT),
        ft_error=_clip(entry.ft_error or "", _MAX_TEXT),
        mask=tuple(mask or ()),
    )


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
        return Verdict(ApplyOutcome.UNKNOWN, f"HTTP 202 that is not understood: {error}; received {_raw(reply.body)}")
    their_id = _clip(accepted.request_id, _MAX_TEXT)  # as a later reading shows it
    if echo is not None and accepted.request_id != echo:
        return Verdict(ApplyOutcome.UNKNOWN, f"HTTP 202 for request id {their_id!r}, sent {echo!r}", their_id)
    return Verdict(ApplyOutcome.ACCEPTED, "", their_id)


def refusal_text(reply: Reply) -> str:
    """``HTTP 400: `` and the engine's own message, in whichever envelope it came."""
    return f"HTTP {reply.status}: {_message(reply.body)}"


def _message(body: bytes) -> str:
    try:
        refusal = _REFUSAL.decode(body)
    except NOT_JSON:
        return _raw(body)
    match refusal.error, refusal.detail:
        case _ErrorText(message=text), _:
            return _clip(text, _MAX_TEXT)
        case str(text), _:
            return _clip(text, _MAX_TEXT)
        case _, str(text):
            return _clip(text, _MAX_TEXT)
        case _, [*texts]:
            return _clip("; ".join(texts), _MAX_TEXT)
        case _:
            return _raw(body)


def _raw(body: bytes) -> str:
    return _clip(body[: 4 * _MAX_RAW].decode(errors="replace"), _MAX_RAW) or "an empty body"


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}…"
