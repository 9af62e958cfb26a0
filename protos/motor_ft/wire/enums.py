"""Enums of the vocabulary and their wire values."""

from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

from motor_ft.model import engine, topology
from motor_ft.model.errors import FieldError
from motor_ft.v1 import common_pb2

if TYPE_CHECKING:
    from google.protobuf.internal.enum_type_wrapper import _EnumTypeWrapper

M = TypeVar("M", bound=StrEnum)
V = TypeVar("V", bound=int)


class EnumMap(Generic[M, V]):
    """Both directions of one enum; members pair up by name, ``NONE`` with ``…_UNSPECIFIED``.

    Raises ValueError at import when the two sides do not have the same members.
    """

    def __init__(self, model: type[M], wire: "_EnumTypeWrapper[V]") -> None:
        prefix = wire.Name(wire.values()[0]).removesuffix("UNSPECIFIED")
        names = {member: prefix + member.name.replace("NONE", "UNSPECIFIED") for member in model}
        self._to_pb = {member: wire.Value(name) for member, name in names.items()}
        self._from_pb = {value: member for member, value in self._to_pb.items()}
        if missing := {value for value in wire.values() if value} - self._from_pb.keys():
            raise ValueError(f"{model.__name__} has no member for {sorted(map(wire.Name, missing))}")
        self._allowed = ", ".join(map(wire.Name, self._from_pb))

    def to_pb(self, value: M) -> V:
        """Return the wire value."""
        return self._to_pb[value]

    def from_pb(self, value: V, path: str) -> M:
        """Return the member; raises FieldError for a value that this side does not know."""
        try:
            return self._from_pb[value]
        except KeyError:
            raise FieldError({path: f"must be one of {self._allowed}, not {value}"}) from None


ENGINE_STATUS = EnumMap(engine.EngineStatus, common_pb2.EngineStatus)
FT_STATE = EnumMap(engine.FtState, common_pb2.FtState)
PROBLEM = EnumMap(engine.Problem, common_pb2.ObservationProblem)
INSTRUCTION = EnumMap(engine.Instruction, common_pb2.Instruction)
APPLY_OUTCOME = EnumMap(engine.ApplyOutcome, common_pb2.ApplyOutcome)
PROBE_OUTCOME = EnumMap(engine.ProbeOutcome, common_pb2.ProbeOutcome)
EVIDENCE_SOURCE = EnumMap(engine.EvidenceSource, common_pb2.EvidenceSource)
ROLE = EnumMap(topology.Role, common_pb2.Role)
ENDPOINT_STATUS = EnumMap(topology.EndpointStatus, common_pb2.EndpointStatus)
