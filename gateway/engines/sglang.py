"""Dialect (c), SGLang pull request 40078: one server answers for all ranks of the instance and drives them itself.

Nothing is removed from such an instance by itself: the Controller's gate is closed (docs/adr/0005).
"""

from typing import Literal

import msgspec

from gateway.engines.dialect import Order, Reply, UnreadableError, Verdict
from gateway.engines.replies import clip, read_apply, read_body, wrong_rank
from motor_ft.model.engine import EngineObservation, EngineStatus, Instruction, Problem


class _Entry(msgspec.Struct, frozen=True):
    id: int
    status: Literal["healthy", "unhealthy", "dead"]


class _Status(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a status answer (engine-contract 1.4); id and error are those of the last order that has ended."""

    schema_version: Literal[1]
    total_engines: int
    engines: list[_Entry]
    last_ft_request_id: str | None = None
    ft_error: str | None = None


_STATUS = msgspec.json.Decoder(_Status)


class Sglang:
    """See gateway.engines.dialect.Dialect."""

    name = "sglang"
    instructions = frozenset({Instruction.RETRY, Instruction.SCALE_DOWN})
    one_server = True
    status_path = "/v1/fault_tolerance/status"
    apply_path = "/v1/fault_tolerance/apply"

    def read_status(self, rank: int, reply: Reply) -> EngineObservation:
        """The entry of ``rank`` among those of all ranks, each there once; what the last order left, all show."""
        status = read_body(_STATUS, reply)
        ids = [entry.id for entry in status.engines]
        if len(ids) != status.total_engines or set(ids) != set(range(len(ids))):
            raise UnreadableError(
                Problem.PROTOCOL, f"not one entry for each of {status.total_engines} ranks, but {clip(str(ids))}"
            )
        if rank not in ids:
            raise wrong_rank(rank, ids)
        return EngineObservation(
            rank=rank,
            status=EngineStatus(status.engines[ids.index(rank)].status),
            last_ft_request_id=clip(status.last_ft_request_id),
            ft_error=clip(status.ft_error),
        )

    def encode(self, order: Order) -> bytes:
        """Of the removed set only what is new; the server places the store itself."""
        params = {}
        if order.instruction is Instruction.SCALE_DOWN:
            params = {"removed_dp_ranks": [rank for rank in order.removed if rank not in order.retired]}
        return msgspec.json.encode({"instruction": order.instruction, "request_id": order.request_id, "params": params})

    def read_apply(self, order: Order, reply: Reply) -> Verdict:
        """Acceptance is a 202 that echoes our id; a 409 is a refusal, another order runs."""
        return read_apply(reply, echo=order.request_id)
