"""Dialect (a), vLLM 0.33.0 as released: no /v1, the engine makes the ids, and only ``retry``."""

from typing import Literal

import msgspec

from gateway.engines.dialect import Order, Reply, Verdict
from gateway.engines.replies import read_apply
from gateway.engines.vllm import Entry, Status, observe, sole_entry
from motor_ft.model.engine import EngineObservation, Instruction


class _Entry(Entry, frozen=True, kw_only=True):
    status: Literal["healthy", "unhealthy", "dead"]


_STATUS = msgspec.json.Decoder(Status[_Entry])


class Vllm033:
    """See gateway.engines.dialect.Dialect."""

    name = "vllm_0_33"
    instructions = frozenset({Instruction.RETRY})
    one_server = False
    status_path = "/fault_tolerance/status"
    apply_path = "/fault_tolerance/apply"

    def read_status(self, rank: int, reply: Reply) -> EngineObservation:
        """One entry; the engine shows neither a command state nor a mask."""
        entry = sole_entry(_STATUS, rank, reply)
        return observe(entry, entry.status)

    def encode(self, order: Order) -> bytes:
        """Without our id, which the engine would ignore."""
        return msgspec.json.encode({"instruction": order.instruction, "params": {}})

    def read_apply(self, order: Order, reply: Reply) -> Verdict:
        """Acceptance is a 202; it names the id under which the engine runs the order."""
        return read_apply(reply, echo=None)
