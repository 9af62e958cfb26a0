"""One fault as one source shows it, and one complete reading of a source."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from motor_ft.model.hardware import FaultKey, FaultLevel, fault_key

MAX_LENGTH = 2000


class Source(StrEnum):
    """Where a fault was read, the most trusted first."""

    CM_DEVICE = "cm-device"
    CM_SWITCH = "cm-switch"
    CM_NODE = "cm-node"
    NODE_READY = "node-ready"
    CM_CLUSTER = "cm-cluster"
    CM_MANUAL = "cm-manual"
    CLUSTERD_QUERY = "clusterd-query"
    CLUSTERD_STREAM = "clusterd-stream"


@dataclass(frozen=True, slots=True)
class Observed:
    """One fault. ``npu_name`` is empty for the whole node; ``since`` in seconds since the epoch, None when not told.

    The other fields are those of ``HardwareFault``.
    """

    node: str
    npu_name: str
    code: str
    level: FaultLevel
    raw_level: str
    fault_type: str = ""
    unit: str = ""
    port: str = ""
    node_ip: str = ""
    since: float | None = None
    level_inferred: bool = False
    detail: str = ""

    @property
    def length(self) -> int:
        """Characters of all its texts."""
        names = (self.node, self.npu_name, self.code, self.unit, self.port, self.node_ip)
        return sum(map(len, (*names, self.raw_level, self.fault_type, self.detail)))

    @property
    def key(self) -> FaultKey:
        """Identity across sources."""
        return fault_key(self.node, self.npu_name, self.code, self.unit, self.port)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a source says of its place now.

    Only in a ``complete`` reading what is absent has cleared, and even then not on the cards in ``held``. ``problem``
    is why it is not complete, or what was skipped; a reading can be incomplete without a problem.
    """

    faults: tuple[Observed, ...] = ()
    complete: bool = False
    held: frozenset[int] = frozenset()
    update_time: float | None = None
    problem: str = ""


def plausible(reading: Reading) -> Reading:
    """Return it without faults that no cluster has: such a one would keep all others from being told."""
    good = tuple(fault for fault in reading.faults if fault.node and fault.length <= MAX_LENGTH)
    if left_out := len(reading.faults) - len(good):
        why = f"left out: {left_out} faults that name no node, or are longer than {MAX_LENGTH} characters"
        return replace(reading, faults=good, complete=False, problem=problems([reading.problem, why]))
    return reading


def problems(texts: Iterable[str]) -> str:
    """Return one text, not too long for a message."""
    return "; ".join(filter(None, texts))[:500]
