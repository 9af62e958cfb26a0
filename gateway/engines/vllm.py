"""What both vLLM dialects have in common: one engine per server, and what its entry says."""

from typing import Generic, Literal, TypeVar

import msgspec

from gateway.engines.dialect import Reply
from gateway.engines.replies import clip, read_body, wrong_rank
from motor_ft.model.engine import EngineObservation, EngineStatus, FtState


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


def sole_entry(decoder: msgspec.json.Decoder[Status[EntryT]], rank: int, reply: Reply) -> EntryT:
    """The one entry of a status answer, which must be that of ``rank``; raises UnreadableError, also IDENTITY."""
    engines = read_body(decoder, reply).engines
    ids = [entry.id for entry in engines]
    if ids != [rank]:
        raise wrong_rank(rank, ids)
    return engines[0]


def observe(
    entry: Entry, status: str, ft_state: str | None = None, mask: list[Literal[0, 1]] | None = None
) -> EngineObservation:
    """The reading that an entry gives."""
    return EngineObservation(
        rank=entry.id,
        status=EngineStatus(status),
        ft_state=FtState(ft_state or ""),
        fault_info=clip(entry.fault_info),
        last_ft_request_id=clip(entry.last_ft_request_id),
        ft_error=clip(entry.ft_error),
        mask=tuple(mask or ()),
    )
