"""The device plugin's ConfigMap: every fault at its own level, and no good record lost to a bad neighbour."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mindcluster.core.device import CheckCode, read_device
from gateway.mindcluster.core.fault_list import MAX_FAULTS
from gateway.mindcluster.core.observed import Reading
from motor_ft.model.hardware import FaultLevel
from tests.support.mindcluster import (
    ISOLATED,
    LINK_DOWN,
    MIXED,
    NOW,
    OCCURRED,
    WRITTEN,
    device_data,
    device_list,
    entry,
)

NO_DEVICES = '{"DeviceInfo":{"DeviceList":{},"UpdateTime":1744182150},"CheckCode":"CODE"}'
NO_DEVICES_CODE = "d1d9cd17f01410b88183eae55da9ca4a5f2ee6f952bd12c6014ca3ed6b8015db"


def read(data: dict[str, str], check: CheckCode = CheckCode.WARN) -> Reading:
    return read_device(data, "node-a", NOW, check)


def levels(reading: Reading) -> dict[tuple[str, str], str]:
    """Level by card and code."""
    return {(fault.npu_name, fault.code): fault.level for fault in reading.faults}


def test_every_code_has_its_own_level_and_time() -> None:
    reading = read(device_data(device_list(LINK_DOWN, MIXED)))
    assert levels(reading) == {
        ("Ascend910-0", "81078603"): "L6",
        ("Ascend910-4", "A8028801"): "L6",
        ("Ascend910-4", "A4028801"): "L1",
        ("Ascend910-4", "80E18402"): "L6",
        ("Ascend910-4", "80E18401"): "L1",
    }
    assert {fault.since for fault in reading.faults} == {OCCURRED}
    assert {fault.fault_type for fault in reading.faults} == {"CardNetworkUnhealthy", "CardUnhealthy"}
    assert (reading.complete, reading.update_time, reading.problem) == (True, WRITTEN, "")


def test_a_healthy_node_with_fields_of_other_versions_is_complete_and_empty() -> None:
    """RackID, TopoCheck, a sunset notice, names of free cards: nothing is inferred from any of them."""
    reading = read(device_data(device_list()))
    assert (reading.faults, reading.complete, reading.problem) == ((), True, "")


def test_lists_of_unhealthy_names_are_no_faults() -> None:
    reading = read(device_data(device_list(Unhealthy="Ascend910-3", NetworkUnhealthy="Ascend910-0")))
    assert reading.faults == ()


@pytest.mark.parametrize("resource", ["huawei.com/Ascend910", "huawei.com/Ascend310P", "huawei.com/npu", "my.org/chip"])
def test_keys_are_found_by_their_suffix(resource: str) -> None:
    reading = read(device_data(device_list(entry("npu-5", "RestartNPU", "80E18005"), resource=resource)))
    assert levels(reading) == {("npu-5", "80E18005"): "L5"}


def test_all_resources_of_a_node_count() -> None:
    both = device_list(LINK_DOWN) | device_list(MIXED, resource="huawei.com/npu")
    assert len(read(device_data(both)).faults) == 5


def test_a_native_array_counts_like_text_and_an_unknown_level_is_kept() -> None:
    """Simulators write no text inside text, 0x before codes, null for a level, UpdateTime at another depth."""
    faults = [
        {
            "fault_type": "CardUnhealthy",
            "npu_name": "Ascend910-0",
            "fault_level": "RestartBusiness",
            "fault_code": "0x1",
        },
        {"fault_type": "What", "npu_name": "Ascend910-2", "fault_level": None, "fault_code": "no_hex"},
    ]
    config = {"DeviceInfo": {"DeviceList": {"huawei.com/Ascend910-Fault": faults}}, "UpdateTime": WRITTEN}
    reading = read({"DeviceInfoCfg": json.dumps(config)}, CheckCode.IGNORE)
    assert levels(reading) == {("Ascend910-0", "0x1"): "L3", ("Ascend910-2", "no_hex"): FaultLevel.UNKNOWN}
    assert (reading.complete, reading.update_time) == (True, WRITTEN)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"fault_time_and_level_map": None}, {"A": ("L5", None), "B": ("L5", None)}),
        (
            {"fault_time_and_level_map": {"A": {"fault_level": "NotHandleFault"}}},
            {"A": ("L1", None), "B": ("L5", None)},
        ),
        ({"fault_time_and_level_map": {"0a": {"fault_level": "SeparateNPU"}}}, {"A": ("L6", None), "B": ("L5", None)}),
        (
            {"fault_time_and_level_map": {"C": {"fault_time": 0, "fault_level": "SeparateNPU"}}},
            {"A": ("L5", None), "B": ("L5", None), "C": ("L6", None)},
        ),
        (
            {"fault_time_and_level_map": {}, "fault_time_map": {"A": 1_744_182_144_000}},
            {"A": ("L5", 1_744_182_144.0), "B": ("L5", None)},
        ),
        (
            {"fault_time_and_level_map": {"A": {"fault_time": 1_744_182_144, "fault_level": None}}},
            {"A": ("L5", 1_744_182_144.0), "B": ("L5", None)},
        ),
        ({"fault_time_and_level_map": {"A": {"fault_level": "NormalNPU"}}}, {"B": ("L5", None)}),
        ({"fault_handling": "", "fault_time_and_level_map": {}}, {"A": ("L5", None), "B": ("L5", None)}),
    ],
)
def test_what_the_map_does_not_say_the_entry_does(
    change: dict[str, Any], expected: dict[str, tuple[str, float | None]]
) -> None:
    """No map before 6.0, times only in 6.0.RC3, codes that were raised only in the map."""
    reading = read(device_data(device_list(entry("npu-0", "RestartNPU", "A,B", **change))))
    assert {fault.code: (fault.level, fault.since) for fault in reading.faults} == expected


def test_an_isolation_by_hand_has_the_code_of_its_level() -> None:
    reading = read(device_data(device_list(ISOLATED, entry("Ascend910-6", "NormalNPU", ""))))
    assert levels(reading) == {("Ascend910-5", "ManuallySeparateNPU"): "L6"}


def test_a_card_stays_isolated_while_it_is_listed_although_it_has_no_fault() -> None:
    """Whatever prefix the list uses."""
    reading = read(device_data(device_list(), manual="Ascend910-5, npu-2"))
    assert levels(reading) == {
        ("Ascend910-5", "ManuallySeparateNPU"): "L6",
        ("npu-2", "ManuallySeparateNPU"): "L6",
    }
    assert (reading.complete, reading.held) == (True, frozenset({5, 2}))


def test_cards_in_a_hot_reset_keep_their_faults() -> None:
    reading = read(device_data(device_list(Recovering="Ascend910-0,Ascend910-1")))
    assert (reading.complete, reading.held) == (True, frozenset({0, 1}))


def test_an_entry_for_two_cards_is_two_faults() -> None:
    reading = read(device_data(device_list(entry("Ascend910-0, Ascend910-2", "SeparateNPU", "80E18402"))))
    assert set(levels(reading)) == {("Ascend910-0", "80E18402"), ("Ascend910-2", "80E18402")}


@pytest.mark.parametrize(
    "bad",
    [
        "text",
        None,
        {},
        {"npu_name": 5.5, "fault_code": {}},
        {"npu_name": []},
        entry("npu-9", "SeparateNPU", "80E18402", fault_time_and_level_map=[1]),
    ],
)
def test_a_bad_entry_is_a_problem_and_its_neighbours_stay(bad: object) -> None:
    """And nothing clears: what is absent may be what could not be read."""
    reading = read(device_data(device_list(LINK_DOWN, bad, MIXED)))
    assert len([fault for fault in reading.faults if fault.npu_name != "npu-9"]) == 5
    assert not reading.complete
    assert reading.problem


def test_one_broken_list_does_not_lose_the_other() -> None:
    both = device_list(LINK_DOWN) | {"huawei.com/npu-Fault": "[{", "huawei.com/npu-Recovering": "npu-x"}
    reading = read(device_data(both))
    assert set(levels(reading)) == {("Ascend910-0", "81078603")}
    assert not reading.complete
    assert "npu-Fault is not JSON" in reading.problem
    assert "unknown card name 'npu-x'" in reading.problem


def test_a_start_of_the_plugin_is_no_all_clear() -> None:
    """Some versions write an empty list with a right CheckCode and a fresh time."""
    reading = read({"DeviceInfoCfg": NO_DEVICES.replace("CODE", NO_DEVICES_CODE)})
    assert (reading.faults, reading.complete) == ((), False)
    assert "list of faults" in reading.problem
    assert "CheckCode" not in reading.problem


def test_a_simulator_without_a_fault_key_is_no_all_clear() -> None:
    names = {"huawei.com/Ascend910": "Ascend910-0,Ascend910-15", "huawei.com/Ascend910-NetworkUnhealthy": ""}
    assert not read(device_data(names)).complete


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"DeviceInfo":[]}', '{"DeviceInfo":{"UpdateTime":1}}', "null"])
def test_what_is_no_device_info_is_a_problem_and_the_list_of_isolated_cards_still_counts(text: str) -> None:
    reading = read({"DeviceInfoCfg": text, "ManuallySeparateNPU": "Ascend910-1"})
    assert levels(reading) == {("Ascend910-1", "ManuallySeparateNPU"): "L6"}
    assert (reading.complete, reading.held) == (False, frozenset({1}))
    assert reading.problem


def test_missing_device_info_is_a_problem() -> None:
    reading = read({"UpgradeFaultReason": "{}"})
    assert (reading.faults, reading.complete, reading.problem) == ((), False, "DeviceInfoCfg is missing")


REASONS = json.dumps(
    {
        "Ascend910-1": [
            {"upgrade_time": 1_770_433_127_279, "fault_code": "AutofillFaultCode", "upgrade_type": "FaultAutofill"},
            {"upgrade_time": 1_770_433_162_519, "fault_code": "81978008", "upgrade_type": "FaultFrequency"},
        ],
        "nonsense": [{}],
    }
)


def test_why_a_level_was_raised_is_told() -> None:
    faults = device_list(entry("Ascend910-1", "ManuallySeparateNPU", "81978008"))
    reading = read(device_data(faults, manual="Ascend910-1", UpgradeFaultReason=REASONS))
    by_code = {fault.code: fault for fault in reading.faults}
    assert by_code["81978008"].detail == "level raised: FaultFrequency"
    manual = by_code["ManuallySeparateNPU"]
    assert manual.since == 1_770_433_127.279
    assert "81978008: FaultFrequency" in manual.detail
    assert reading.complete


@pytest.mark.parametrize("reasons", ["{", '{"Ascend910-1": {}}', '{"Ascend910-1": [1]}'])
def test_unreadable_reasons_lose_no_fault(reasons: str) -> None:
    reading = read(device_data(device_list(LINK_DOWN), manual="npu-1", UpgradeFaultReason=reasons))
    assert len(reading.faults) == 2
    assert "UpgradeFaultReason" in reading.problem


@pytest.mark.parametrize("name", ["<a&b>", "Kärtchen", "\u2028"])
def test_the_checksum_is_the_one_that_go_computes(name: str) -> None:
    devices = device_list() | {name: name}
    assert read(device_data(devices)).complete


@pytest.mark.parametrize("check_code", ["", "0" * 64])
def test_a_wrong_checksum_adds_but_clears_nothing_or_rejects_or_is_ignored(check_code: str) -> None:
    data = device_data(device_list(LINK_DOWN), check_code=check_code)
    warned, rejected, ignored = (read(data, check) for check in (CheckCode.WARN, CheckCode.REJECT, CheckCode.IGNORE))
    assert (len(warned.faults), warned.complete) == (1, False)
    assert (rejected.faults, rejected.complete) == ((), False)
    assert warned.problem == rejected.problem == "CheckCode is wrong"
    assert (len(ignored.faults), ignored.complete, ignored.problem) == (1, True, "")


@pytest.mark.parametrize("where", ["list", "entry", "name", "code"])
def test_what_is_nested_deeper_than_a_plugin_writes_costs_only_itself(where: str) -> None:
    """And the CheckCode, which cannot be counted over it: nothing is cleared."""
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    change = {"list": {}, "entry": {}, "name": {"npu_name": deep}, "code": {"fault_code": deep}}[where]
    entries = [LINK_DOWN, deep if where == "entry" else entry("npu-9", "SeparateNPU", "1") | change]
    devices = {"huawei.com/Ascend910-Fault": entries, "more": deep if where == "list" else ""}
    info = {"DeviceInfo": {"DeviceList": devices, "UpdateTime": WRITTEN}, "CheckCode": "0" * 64}
    reading = read({"DeviceInfoCfg": json.dumps(info)})
    assert levels(reading)["Ascend910-0", "81078603"] == "L6"
    assert not reading.complete


def test_of_a_node_no_more_faults_are_read_than_it_can_have() -> None:
    """A few kilobytes can name millions: every card with every code."""
    cards = ",".join(f"npu-{number}" for number in range(200))
    codes = ",".join(f"{number:X}A" for number in range(200))
    reading = read(device_data(device_list(LINK_DOWN, entry(cards, "RestartNPU", codes), entry("npu-1", "L", "X"))))
    assert len(reading.faults) == MAX_FAULTS
    assert levels(reading)["Ascend910-0", "81078603"] == "L6"
    assert not reading.complete
    assert "more than 1024 faults" in reading.problem


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@given(json_values, json_values, json_values)
def test_whatever_stands_there_the_good_record_is_read(extra: object, field: object, junk: object) -> None:
    bad = entry("npu-9", "SeparateNPU", "1", fault_code=field, fault_time_and_level_map=junk)
    devices = device_list(LINK_DOWN, extra, bad) | {"x-Recovering": junk, "y-Fault": junk}
    data = device_data(devices, UpgradeFaultReason=json.dumps(junk), manual="Ascend910-7")
    found = levels(read(data))
    assert found["Ascend910-0", "81078603"] == "L6"
    assert found["Ascend910-7", "ManuallySeparateNPU"] == "L6"
