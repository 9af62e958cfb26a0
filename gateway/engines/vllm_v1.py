"""Dialect (b), vLLM pull request 46370: paths under /v1, the client's request ids, ``scale_down`` and ``retry``."""

from typing import Literal

import msgspec

from gateway.engines.dialect import Order, Reply, Verdict
from gateway.engines.replies import read_apply
from gateway.engines.vllm import Entry, Status, observe, sole_entry
from motor_ft.model.engine import EngineObservation, Instruction


class _Entry(Entry, frozen=True, kw_only=True):
    status: Literal["healthy", "unhealthy", "dead", "diagnosing"]
    ft_state: Literal["recovering", "failed"] | None = None
    mask: list[Literal[0, 1]] | None = None


_STATUS = msgspec.json.Decoder(Status[_Entry])


class VllmV1:
    """See gateway.engines.dialect.Dialect."""

    name = "vllm_v1"
    instructions = frozenset({Instruction.RETRY, Instruction.SCALE_DOWN})
    one_server = False
    status_path = "/v1/fault_tolerance/status"
    apply_path = "/v1/fault_tolerance/apply"

    def read_status(self, rank: int, reply: Reply) -> EngineObservation:
        """One entry, with ``diagnosing``, command state and mask."""
        entry = sole_entry(_STATUS, rank, reply)
        return observe(entry, entry.status, entry.ft_state, entry.mask)

    def encode(self, order: Order) -> bytes:
        """The id that the engine must echo; the removed set is cumulative and the store address always there."""
        params = {}
        if order.instruction is Instruction.SCALE_DOWN:
            params = {
                "removed_dp_ranks": order.removed,
                "dp_master_ip": order.dp_master_ip,
                "dp_store_port": order.dp_store_port,
            }
        return msgspec.json.encode({"instruction": order.instruction, "request_id": order.request_id, "params": params})

    def read_apply(self, order: Order, reply: Reply) -> Verdict:
        """Acceptance is a 202 that echoes our id."""
        return read_apply(reply, echo=order.request_id)
