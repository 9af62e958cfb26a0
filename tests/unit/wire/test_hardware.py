"""Hardware faults cross the wire unchanged; what is malformed is refused with the path of its field."""

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from motor_ft.model.errors import FieldError
from motor_ft.model.hardware import FaultLevel, HardwareFault, SourceState
from motor_ft.v1 import fault_report_pb2
from motor_ft.wire import hardware

texts = st.text(max_size=20)
faults = st.builds(
    HardwareFault,
    node=st.text(min_size=1, max_size=20),
    npu_name=texts,
    fault_code=texts,
    level=st.sampled_from(FaultLevel),
    raw_level=texts,
    level_inferred=st.booleans(),
    fault_type=texts,
    unit=texts,
    port=texts,
    node_ip=texts,
    sources=st.lists(texts, max_size=3).map(tuple),
    stale=st.booleans(),
    detail=texts,
    first_seen=st.integers(0, 2**40).map(lambda milliseconds: milliseconds / 1000),
    occurrence=st.integers(0, 2**63 - 1),
    age_sec=st.integers(0, 10**9).map(lambda milliseconds: milliseconds / 1000),
)


@given(faults)
def test_a_fault_comes_back_equal_and_its_end_names_it(fault: HardwareFault) -> None:
    back = hardware.hardware_fault_from_pb(hardware.hardware_fault_to_pb(fault))
    assert (back, back.age_sec) == (fault, fault.age_sec)
    assert hardware.hardware_cleared_from_pb(hardware.hardware_cleared_to_pb(fault)) == fault.key


def test_the_state_of_a_source_comes_back_equal() -> None:
    state = SourceState("cm-device", "node-a", "CheckCode is wrong")
    assert hardware.source_from_pb(hardware.source_to_pb(state)) == state


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"key": fault_report_pb2.HardwareFaultKey()}, "f.key.node_name"),
        ({"level": fault_report_pb2.FAULT_LEVEL_UNSPECIFIED}, "f.level"),
        ({"age": Duration(seconds=-1)}, "f.age"),
        ({"age": Duration(nanos=10**9)}, "f.age"),
        ({"first_seen_time": Timestamp(seconds=-1)}, "f.first_seen_time"),
        ({"first_seen_time": Timestamp(seconds=2**62)}, "f.first_seen_time"),
        ({"first_seen_time": Timestamp(nanos=-1)}, "f.first_seen_time"),
    ],
)
def test_a_malformed_fault_is_refused_by_field(change: dict[str, object], path: str) -> None:
    valid: dict[str, object] = {
        "key": fault_report_pb2.HardwareFaultKey(node_name="node-a"),
        "level": fault_report_pb2.FAULT_LEVEL_L4,
    }
    message = fault_report_pb2.HardwareFault(**(valid | change))  # type: ignore[arg-type]
    with pytest.raises(FieldError) as refused:
        hardware.hardware_fault_from_pb(message, "f")
    assert list(refused.value.violations) == [path]


def test_an_end_of_no_node_and_a_source_without_a_name_are_refused() -> None:
    with pytest.raises(FieldError, match="node_name"):
        hardware.hardware_cleared_from_pb(fault_report_pb2.HardwareCleared())
    with pytest.raises(FieldError, match="source"):
        hardware.source_from_pb(fault_report_pb2.HardwareSource())
