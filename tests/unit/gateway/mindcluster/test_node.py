"""What is wrong with a node apart from its cards."""

import json
from typing import Any

import pytest

from gateway.mindcluster.core.node import Condition, deleted_node, read_node, read_node_info
from gateway.mindcluster.core.observed import Observed, Reading
from motor_ft.model.hardware import FaultLevel
from tests.support.mindcluster import NOW

CPU = {"DeviceType": "CPU", "DeviceId": 1, "FaultCode": ["00000011", "0300000D"], "FaultLevel": "SeparateFault"}
BMC_NPU = {"DeviceType": "NPU", "DeviceId": 4, "FaultCode": ["28000053"], "FaultLevel": "PreSeparateFault"}


def read(devices: object, status: str = "UnHealthy", **data: str) -> Reading:
    info = {"NodeInfo": {"FaultDevList": devices, "NodeStatus": status}, "CheckCode": "of another text"}
    return read_node_info({"NodeInfo": json.dumps(info)} | data, "node-a", NOW)


def brief(fault: Observed) -> tuple[str, str, str, str, str]:
    return fault.npu_name, fault.code, fault.fault_type, fault.unit, fault.level


def test_every_code_of_every_device_is_a_fault_of_the_node_and_never_of_a_card() -> None:
    """The management controller numbers devices its own way, those it calls NPU too."""
    reading = read([CPU, BMC_NPU])
    assert [brief(fault) for fault in reading.faults] == [
        ("", "00000011", "CPU", "1", "L6"),
        ("", "0300000D", "CPU", "1", "L6"),
        ("", "28000053", "NPU", "4", "L6"),
    ]
    assert (reading.complete, reading.problem) == (True, "")
    assert {fault.since for fault in reading.faults} == {None}


def test_newer_versions_tell_the_time() -> None:
    assert {fault.since for fault in read([CPU], updateTime="2025-04-09T07:02:24+00:00").faults} == {1744182144.0}
    assert {fault.since for fault in read([CPU], updateTime="2025-04-09T07:02:24").faults} == {None}


def test_a_status_without_a_device_is_shown_and_isolates_nothing() -> None:
    """It is known to stay for days after the device has recovered."""
    assert [brief(fault) for fault in read([], "PreSeparate").faults] == [("", "NodeStatus", "Node", "", "L1")]
    assert read([], "Healthy").faults == read(None, "").faults == ()
    assert read([], "Healthy").complete


@pytest.mark.parametrize("bad", [5, None, {"FaultCode": {}}])
def test_a_bad_device_is_a_problem_and_its_neighbour_stays(bad: object) -> None:
    reading = read([bad, BMC_NPU])
    assert [fault.code for fault in reading.faults] == ["28000053"]
    assert not reading.complete


@pytest.mark.parametrize("text", ["", "{", "{}", '{"NodeInfo":[]}', '{"NodeInfo":{"FaultDevList":5}}'])
def test_what_is_no_node_info_clears_nothing(text: str) -> None:
    reading = read_node_info({"NodeInfo": text}, "node-a", NOW)
    assert (reading.faults, reading.complete) == ((), False)
    assert reading.problem


def node(**statuses: str) -> dict[str, Any]:
    """A Node object with these conditions."""
    return {
        "status": {
            "addresses": [{"type": "Hostname", "address": "h"}, {"type": "InternalIP", "address": "192.0.2.1"}],
            "conditions": [
                {"type": kind, "status": status, "lastTransitionTime": "2025-04-09T07:02:24Z", "reason": "because"}
                for kind, status in statuses.items()
            ],
        },
    }


def test_a_ready_node_has_no_fault_and_says_since_when() -> None:
    ready = read_node("node-a", node(Ready="True"))
    assert (ready.reading, ready.address, ready.ready_since) == (Reading(complete=True), "192.0.2.1", 1744182144.0)


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_node_that_is_not_ready_is_a_fault_of_the_gravest_level(status: str) -> None:
    found = read_node("node-a", node(Ready=status))
    (fault,) = found.reading.faults
    assert brief(fault) == ("", "0x0000001", "Node", "", "L6")
    assert (fault.raw_level, fault.since) == ("NotReady", 1744182144.0)
    assert found.ready_since is None


@pytest.mark.parametrize("status", [None, 5, {}, {"conditions": None}, {"conditions": [5], "addresses": "x"}])
def test_a_node_without_the_condition_is_not_ready(status: object) -> None:
    found = read_node("node-a", {"status": status})
    assert [fault.code for fault in found.reading.faults] == ["0x0000001"]


def test_a_node_that_the_cluster_has_no_more_is_not_ready() -> None:
    assert deleted_node("node-a").reading.faults[0].raw_level == "NotReady"


def test_other_conditions_count_as_configured() -> None:
    lost = Condition("NT_NPU_CARD_LOSE", "True", FaultLevel.L5)
    (fault,) = read_node("node-a", node(Ready="True", NT_NPU_CARD_LOSE="True"), [lost]).reading.faults
    assert (fault.code, fault.level, fault.detail) == ("NT_NPU_CARD_LOSE", "L5", "because")
    assert read_node("node-a", node(Ready="True", NT_NPU_CARD_LOSE="False"), [lost]).reading.faults == ()
    assert read_node("node-a", node(Ready="True"), [lost]).reading.faults == ()


def test_a_time_that_was_never_set_is_not_told() -> None:
    """Go writes the year 1; no report could carry that."""
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": "0001-01-01T00:00:00Z"}
    (fault,) = read_node("node-a", {"status": {"conditions": [condition]}}).reading.faults
    assert fault.since is None
