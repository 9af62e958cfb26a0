"""Faults of the switch: each code with chip and port, at the level that its whole text has."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mindcluster.core.observed import Observed, Reading
from gateway.mindcluster.core.switch import read_switch
from motor_ft.model.hardware import FaultLevel
from tests.support.mindcluster import NOW, OCCURRED, SWITCHED_OFF, WRITTEN, alarm, switch_data

NPU = "[0x00f1fef5,155914,npu,na]"
L2 = "[0x00f1fef5,155914,L2,na]"


def read(value: object) -> Reading:
    return read_switch(value, "node-a", NOW)


def brief(fault: Observed) -> tuple[str, str, str, str, bool]:
    return fault.code, fault.unit, fault.port, fault.level, fault.level_inferred


def test_the_level_belongs_to_the_whole_code_chip_and_port() -> None:
    levels = {
        f"{NPU}_1_2": {"fault_time": 1_744_168_468_259, "fault_level": "RestartRequest"},
        f"{L2}_1_4294967295": {"fault_time": 0, "fault_level": "NotHandle"},
    }
    reading = read(switch_data(alarm(NPU), alarm(L2, port=4294967295), levels=levels, level="RestartRequest"))
    assert [brief(fault) for fault in reading.faults] == [
        (NPU, "1", "2", "L2", False),
        (L2, "1", "4294967295", "L1", False),
    ]
    assert [fault.since for fault in reading.faults] == [1_744_168_468.259, OCCURRED]
    assert {(fault.npu_name, fault.fault_type) for fault in reading.faults} == {("", "Switch")}
    assert (reading.complete, reading.update_time, reading.problem) == (True, WRITTEN, "")


def test_a_code_that_the_map_lacks_has_the_level_of_the_node() -> None:
    (fault,) = read(switch_data(alarm(NPU), level="Separate")).faults
    assert brief(fault) == (NPU, "1", "2", "L6", True)


def test_a_code_that_only_the_map_has_is_kept() -> None:
    (fault,) = read(switch_data(levels={f"{NPU}_0_7": {"fault_level": "SubHealthFault"}})).faults
    assert brief(fault) == (NPU, "0", "7", "L1", False)


def test_a_plain_code_with_underscores_is_read_from_the_right() -> None:
    data = switch_data("0x2001_1_2", levels={"0x2001_1_2": {"fault_level": "Separate"}}, level="Separate")
    assert [brief(fault) for fault in read(data).faults] == [("0x2001", "1", "2", "L6", False)]
    assert [brief(fault) for fault in read(switch_data("0x2001")).faults] == [("0x2001", "", "", "unknown", True)]


def test_an_alarm_that_says_it_is_over_is_no_fault() -> None:
    levels = {f"{NPU}_1_2": {"fault_level": "RestartRequest"}}
    assert read(switch_data(alarm(NPU, assertion=0), levels=levels)).faults == ()


def test_a_node_that_is_worse_than_its_codes_is_a_fault_of_its_own() -> None:
    """All ports of a plane down: every single code needs no action."""
    levels = {f"{L2}_1_2": {"fault_level": "NotHandle"}}
    faults = read(switch_data(alarm(L2), levels=levels, level="Separate")).faults
    assert [brief(fault) for fault in faults] == [
        (L2, "1", "2", "L1", False),
        ("SwitchFaultLevel", "", "", "L6", False),
    ]


def test_a_switched_off_feature_says_nothing_and_clears_nothing() -> None:
    assert read(SWITCHED_OFF) == Reading()


@pytest.mark.parametrize("codes", [[], None])
def test_a_healthy_switch_clears(codes: object) -> None:
    value = {"FaultCode": codes, "FaultLevel": "", "UpdateTime": WRITTEN, "FaultTimeAndLevelMap": {}}
    assert read(value) == Reading(complete=True, update_time=WRITTEN)


@pytest.mark.parametrize(
    "text",
    [
        f'{{"FaultCode":[000001c1],"FaultLevel":"NotHandle","UpdateTime":{WRITTEN}}}',
        "",
        "[]",
        json.dumps({"FaultCode": "0x2001", "UpdateTime": WRITTEN}),
        json.dumps({"FaultTimeAndLevelMap": [1], "UpdateTime": WRITTEN}),
    ],
)
def test_what_is_not_json_or_of_another_shape_clears_nothing(text: str) -> None:
    """Old documents show numbers with leading zeros, which is no JSON."""
    reading = read(text)
    assert (reading.faults, reading.complete) == ((), False)
    assert reading.problem


@pytest.mark.parametrize("bad", ["{", '{"EventType":1}', 5])
def test_a_bad_alarm_is_a_problem_and_its_neighbour_stays(bad: object) -> None:
    reading = read(switch_data(bad, alarm(NPU), level="Separate"))
    assert [fault.code for fault in reading.faults] == [NPU]
    assert not reading.complete
    assert reading.problem


@given(st.dictionaries(st.text(max_size=12), st.none() | st.integers() | st.text(max_size=3), max_size=4))
def test_any_map_is_read(levels: dict[str, object]) -> None:
    assert read(switch_data(alarm(NPU), levels=levels)).faults[0].level is FaultLevel.UNKNOWN
