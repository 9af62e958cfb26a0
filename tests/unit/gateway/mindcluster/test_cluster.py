"""ClusterD's gathered ConfigMaps: the node is the one that CmName tells, and one bad node loses no other."""

import json

import pytest

from gateway.mindcluster.core.cluster import NodePart, read_cluster_info, read_manual_info
from tests.support.mindcluster import LINK_DOWN, NOW, WRITTEN, alarm, device_list, entry, switch_data


def read(name: str, value: object) -> list[NodePart]:
    text = value if isinstance(value, str) else json.dumps(value)
    return list(read_cluster_info(name, {name: text}, NOW))


def device(node: str, *faults: object) -> dict[str, object]:
    return {"DeviceList": device_list(*faults), "UpdateTime": WRITTEN, "CmName": f"mindx-dl-deviceinfo-{node}"}


def test_each_node_of_a_shard_is_read_and_public_faults_have_seconds() -> None:
    public = {"110000002": {"fault_time": WRITTEN, "fault_level": "SubHealthFault"}}
    fault = entry(
        "Ascend910-1", "SubHealthFault", "110000002", fault_type="PublicFault", fault_time_and_level_map=public
    )
    shard = {f"mindx-dl-deviceinfo-{node}": device(node, LINK_DOWN, fault) for node in ("node-a", "node-b")}
    parts = read("cluster-info-device-0", shard)
    assert [(part.node, part.part) for part in parts] == [("node-a", "device"), ("node-b", "device")]
    for part in parts:
        assert [fault.code for fault in part.reading.faults] == ["81078603", "110000002"]
        assert part.reading.faults[1].since == WRITTEN
        assert part.reading.complete


def test_the_node_is_told_by_cm_name_whatever_the_key_says_and_spaces_stray_in() -> None:
    psu = {"DeviceType": "PSU", "DeviceId": 4, "FaultCode": ["0300000D"], "FaultLevel": "NotHandleFault"}
    healthy = {"FaultDevList": [], "NodeStatus": "Healthy"}
    parts = read(
        "cluster-info-node-cm",
        {
            "mindx-dl-nodeinfo- node-a": {
                "FaultDevList": [psu], "NodeStatus": "Healthy", "CmName": "mindx-dl-nodeinfo-node-a "
            },
            "mindx-dl-deviceinfo-node-b": healthy | {"CmName": "mindx-dl-nodeinfo-node-b"},
            "mindx-dl-nodeinfo- node-c": healthy,
        },
    )  # fmt: skip
    assert [(part.node, part.part, part.reading.complete) for part in parts] == [
        (node, "node", True) for node in ("node-a", "node-b", "node-c")
    ]
    assert [(fault.code, fault.level) for fault in parts[0].reading.faults] == [("0300000D", "L1")]


def test_switches_are_read() -> None:
    empty = {"FaultCode": [], "FaultLevel": "", "UpdateTime": WRITTEN, "FaultTimeAndLevelMap": {}}
    faulty = json.loads(switch_data(alarm("[0x08520003,na,L2,na]"), level="RestartRequest"))
    shard = {"mindx-dl-switchinfo-node-a ": empty, "mindx-dl-switchinfo-node-b": faulty}
    parts = read("cluster-info-switch-0", shard)
    assert [(part.node, part.part, len(part.reading.faults)) for part in parts] == [
        ("node-a", "switch", 0),
        ("node-b", "switch", 1),
    ]
    assert all(part.reading.complete for part in parts)


def test_a_node_without_a_list_of_faults_is_not_complete() -> None:
    names = {"huawei.com/Ascend910": "Ascend910-0", "huawei.com/Ascend910-Unhealthy": ""}
    (part,) = read("cluster-info-device-0", {"mindx-dl-deviceinfo-n": {"DeviceList": names, "UpdateTime": WRITTEN}})
    assert (part.node, part.reading.complete) == ("n", False)


@pytest.mark.parametrize("bad", [5, {}, {"DeviceList": []}])
def test_a_bad_node_is_a_problem_of_that_node(bad: object) -> None:
    parts = read("cluster-info-device-0", {"mindx-dl-deviceinfo-a": bad, "b": device("node-b", LINK_DOWN)})
    assert [(part.node, bool(part.reading.problem), len(part.reading.faults)) for part in parts] == [
        ("a", True, 0),
        ("node-b", False, 1),
    ]


def test_an_empty_shard_says_nothing_and_a_broken_one_is_a_problem_of_all() -> None:
    assert read("cluster-info-device-1", "") == []
    (part,) = read("cluster-info-device-1", "{")
    assert (part.node, part.reading.complete, bool(part.reading.problem)) == ("", False, True)


@pytest.mark.parametrize("name", ["public-fault-example", "super-pod-0", "mindx-dl-deviceinfo-node-a"])
def test_other_configmaps_are_not_read(name: str) -> None:
    """Public faults are ClusterD's input: they count when ClusterD has taken them in."""
    fault = {"faultType": "NPU", "faultCode": "100000001", "influence": [{"nodeName": "node-a", "deviceIds": [0]}]}
    assert read(name, {"id": "public-fault-msg-001", "faults": [fault]}) == []


def test_cards_that_clusterd_isolates_have_the_codes_that_made_it_do_so() -> None:
    since = 1_770_811_685_650
    detail = [{"FaultCode": "8C084E00", "FaultLevel": "ManuallySeparateNPU", "LastSeparateTime": since}]
    info = {"Total": ["Ascend910-0", "Ascend910-3", "Ascend910-6"], "Detail": {"Ascend910-0": detail, "Ascend910-6": 5}}
    reading = read_manual_info("node-a", json.dumps(info), NOW)
    assert [(fault.npu_name, fault.code, fault.level) for fault in reading.faults] == [
        ("Ascend910-0", "8C084E00", "L6"),
        ("Ascend910-3", "ManuallySeparateNPU", "L6"),
        ("Ascend910-6", "ManuallySeparateNPU", "L6"),
    ]
    assert reading.faults[0].since == since / 1000
    assert not reading.complete
    assert read_manual_info("node-a", "{", NOW).problem
    assert read_manual_info("node-a", '{"Total":[]}', NOW).complete
