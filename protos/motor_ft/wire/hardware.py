"""Hardware faults as messages and back; every ``*_from_pb`` raises FieldError with the field's path."""

from google.protobuf.timestamp_pb2 import Timestamp

from motor_ft.model.hardware import FaultKey, FaultLevel, HardwareFault, SourceState, fault_key
from motor_ft.v1 import fault_report_pb2
from motor_ft.wire.convert import demand, duration_from_pb, duration_to_pb
from motor_ft.wire.enums import EnumMap

FAULT_LEVEL = EnumMap(FaultLevel, fault_report_pb2.FaultLevel)

_LAST_SECOND = 253_402_300_799  # of the year 9999, where the well-known type ends


def hardware_fault_to_pb(fault: HardwareFault) -> fault_report_pb2.HardwareFault:
    """Return the message of one fault."""
    first_seen = Timestamp()
    first_seen.FromMicroseconds(round(fault.first_seen * 1_000_000))
    return fault_report_pb2.HardwareFault(
        key=_key_to_pb(fault),
        level=FAULT_LEVEL.to_pb(fault.level),
        raw_level=fault.raw_level,
        level_inferred=fault.level_inferred,
        fault_type=fault.fault_type,
        node_ip=fault.node_ip,
        sources=fault.sources,
        stale=fault.stale,
        detail=fault.detail,
        first_seen_time=first_seen,
        age=duration_to_pb(fault.age_sec),
        occurrence=fault.occurrence,
    )


def hardware_fault_from_pb(message: fault_report_pb2.HardwareFault, path: str = "hardware_fault") -> HardwareFault:
    """Read one fault."""
    key, first_seen = message.key, message.first_seen_time
    demand(bool(key.node_name), f"{path}.key.node_name", "must be present")
    seconds, nanos = first_seen.seconds, first_seen.nanos
    valid_time = 0 <= seconds <= _LAST_SECOND and 0 <= nanos < 1_000_000_000
    demand(valid_time, f"{path}.first_seen_time", f"{seconds} s and {nanos} ns are no time since 1970")
    age = duration_from_pb(message.age, f"{path}.age")
    demand(age >= 0, f"{path}.age", f"must not be negative, not {age:g} s")
    return HardwareFault(
        node=key.node_name,
        npu_name=key.npu_name,
        fault_code=key.fault_code,
        level=FAULT_LEVEL.from_pb(message.level, f"{path}.level"),
        raw_level=message.raw_level,
        level_inferred=message.level_inferred,
        fault_type=message.fault_type,
        unit=key.unit,
        port=key.port,
        node_ip=message.node_ip,
        sources=tuple(message.sources),
        stale=message.stale,
        detail=message.detail,
        first_seen=first_seen.ToMicroseconds() / 1_000_000,
        occurrence=message.occurrence,
        age_sec=age,
    )


def hardware_cleared_to_pb(fault: HardwareFault) -> fault_report_pb2.HardwareCleared:
    """Return the message that ``fault`` has ended."""
    return fault_report_pb2.HardwareCleared(key=_key_to_pb(fault))


def hardware_cleared_from_pb(message: fault_report_pb2.HardwareCleared, path: str = "hardware_cleared") -> FaultKey:
    """Read which fault has ended."""
    key = message.key
    demand(bool(key.node_name), f"{path}.key.node_name", "must be present")
    return fault_key(key.node_name, key.npu_name, key.fault_code, key.unit, key.port)


def source_to_pb(state: SourceState) -> fault_report_pb2.HardwareSource:
    """Return the message of one source's state."""
    return fault_report_pb2.HardwareSource(source=state.source, node_name=state.node, problem=state.problem)


def source_from_pb(message: fault_report_pb2.HardwareSource, path: str = "hardware_source") -> SourceState:
    """Read one source's state."""
    demand(bool(message.source), f"{path}.source", "must be present")
    return SourceState(message.source, message.node_name, message.problem)


def _key_to_pb(fault: HardwareFault) -> fault_report_pb2.HardwareFaultKey:
    return fault_report_pb2.HardwareFaultKey(
        node_name=fault.node,
        npu_name=fault.npu_name,
        fault_code=fault.fault_code,
        unit=fault.unit,
        port=fault.port,
    )
