"""Payloads of MindCluster may be anything: nothing ends the adapter, and no good record is lost to a bad neighbour.

What the board makes of them is told to a Controller, which takes it: of one fault that it refuses in a snapshot all
others would never arrive.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from controller.convert import hardware_report_from_pb
from controller.core.reports import HardwareSnapshot
from gateway.mindcluster.core.board import Board, Place
from gateway.mindcluster.core.device import CheckCode
from gateway.mindcluster.core.node import Condition
from gateway.mindcluster.core.observed import Source
from gateway.mindcluster.core.slot import Times
from gateway.mindcluster.feed import Feed, SnapshotMark
from gateway.mindcluster.metrics import MindClusterMetrics
from gateway.mindcluster.signals import read_signal
from gateway.mindcluster.sinks import BoardSink, ClusterSink, DeviceSink, ManualSink, NodeInfoSink, NodeSink
from motor_ft.clusterd.fault_pb2 import FaultMsgSignal
from motor_ft.model.hardware import FaultLevel, HardwareFault
from tests.fuzz.generators import damaged, fuzz
from tests.fuzz.protobuf import messages
from tests.support.mindcluster import ISOLATED, LINK_DOWN, MIXED, NOW, alarm, device_data, device_list, switch_data

Item = dict[str, Any]


def times() -> Times:
    return Times(1000.0, NOW)


def config_map(name: str, data: Item) -> Item:
    """An object of the Kubernetes API; its texts are the JSON of what is in ``data``."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in data.items()}
    return {"metadata": {"name": name, "resourceVersion": "7"}, "data": texts}


def decoded(data: dict[str, str]) -> Item:
    """Data of a ConfigMap with everything in it decoded, so that all of it can be damaged."""
    return {key: json.loads(text) if text.startswith("{") else text for key, text in data.items()}


DEVICES = decoded(device_data(device_list(LINK_DOWN, MIXED, ISOLATED), manual="Ascend910-5"))
DEVICES["DeviceInfoCfg"]["DeviceInfo"]["DeviceList"]["huawei.com/Ascend910-Fault"] = [LINK_DOWN, MIXED, ISOLATED]
DEVICES |= {"SwitchInfoCfg": json.loads(switch_data(alarm("[0x08520003,na,L2,na]"), level="RestartRequest"))}
DEVICES |= {"UpgradeFaultReason": {"Ascend910-0": [{"fault_code": "81078603", "upgrade_type": "FaultDuration"}]}}
CPU = {"DeviceType": "CPU", "DeviceId": 1, "FaultCode": ["00000011", "0300000D"], "FaultLevel": "SeparateFault"}
NODE_INFO = {"NodeInfo": {"NodeInfo": {"FaultDevList": [CPU], "NodeStatus": "UnHealthy"}}, "updateTime": "2027-01-15"}
SHARD = DEVICES["DeviceInfoCfg"]["DeviceInfo"] | {"CmName": "mindx-dl-deviceinfo-bad"}
MANUAL = {"Total": ["npu-5"], "Detail": {"npu-5": [{"FaultCode": "80E0", "FaultLevel": "ManuallySeparateNPU"}]}}
NODE = {
    "status": {
        "conditions": [
            {"type": "Ready", "status": "False", "lastTransitionTime": "0001-01-01T00:00:00Z"},
            {"type": "ModelArts", "status": "True", "reason": "x", "lastTransitionTime": "2027-01-15T00:00:00Z"},
        ],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
    }
}
Build = Callable[[str, Item], Item]
KINDS: dict[str, tuple[Callable[[Feed], BoardSink], Item, Build]] = {
    "device": (
        lambda feed: DeviceSink(feed, times, CheckCode.WARN),
        DEVICES,
        lambda node, data: config_map(f"mindx-dl-deviceinfo-{node}", data),
    ),
    "node info": (
        lambda feed: NodeInfoSink(feed, times),
        NODE_INFO,
        lambda node, data: config_map(f"mindx-dl-nodeinfo-{node}", data),
    ),
    "node": (
        lambda feed: NodeSink(feed, times, [Condition("ModelArts", "True", FaultLevel.L4)]),
        NODE,
        lambda node, data: data | {"metadata": {"name": node}},
    ),
    "cluster": (
        lambda feed: ClusterSink(feed, times),
        SHARD,
        lambda node, data: config_map(
            f"cluster-info-device-{node}", {f"cluster-info-device-{node}": {f"mindx-dl-deviceinfo-{node}": data}}
        ),
    ),
    "manual": (
        lambda feed: ManualSink(feed, times),
        MANUAL,
        lambda node, data: config_map("clusterd-manual-info-cm", {node: data}),
    ),
}


def new_feed() -> Feed:
    return Feed(Board(Source), times, MindClusterMetrics(CollectorRegistry()))


def told(feed: Feed) -> Sequence[HardwareFault]:
    """What a Controller takes of the snapshot that is sent now."""
    feed.refresh()
    snapshot = hardware_report_from_pb(feed.message(1, SnapshotMark(), times().monotonic))
    assert isinstance(snapshot, HardwareSnapshot)
    return snapshot.faults


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@fuzz(2)
def test_a_damaged_object_loses_nothing_of_its_neighbour(kind: str, data: st.DataObject) -> None:
    make, good, build = KINDS[kind]
    alone = new_feed()
    make(alone).listed([build("good", good)])
    expected = {fault.key for fault in told(alone)}
    assert expected
    feed = new_feed()
    bad = build("bad", data.draw(damaged(good), label="data"))
    if kind == "manual":
        make(feed).listed([{**bad, "data": {**bad["data"], **build("good", good)["data"]}}])
    else:
        make(feed).listed([bad, build("good", good)])
    assert expected <= {fault.key for fault in told(feed)}


@given(entries=st.lists(damaged(MIXED), max_size=3), place=st.integers(0, 3))
@fuzz(2)
def test_in_one_list_too_a_good_entry_is_read_whatever_stands_beside_it(entries: list[object], place: int) -> None:
    feed = new_feed()
    entries.insert(place, LINK_DOWN)
    data = device_data(device_list(*entries))
    DeviceSink(feed, times, CheckCode.WARN).listed([config_map("mindx-dl-deviceinfo-n", {**data})])
    assert "81078603" in {fault.fault_code for fault in told(feed) if fault.npu_name == "Ascend910-0"}


SIGNAL = {
    "jobId": "job",
    "signalType": "fault",
    "nodeFaultInfo": [
        {
            "nodeName": "good",
            "nodeIP": "10.0.0.7",
            "faultDevice": [
                {"deviceId": "4", "deviceType": "NPU", "faultCodes": ["80E18401"], "faultLevels": ["SeparateNPU"]},
                {"deviceId": "-1", "deviceType": "Switch", "switchFaultInfos": [{"faultCode": "8", "faultTime": "9"}]},
            ],
        }
    ],
}


@given(signal=messages(FaultMsgSignal), query=st.booleans())
@fuzz(2)
def test_a_signal_of_clusterd_with_anything_in_it_loses_nothing_of_its_nodes(
    signal: FaultMsgSignal, query: bool
) -> None:
    feed = new_feed()
    good = ParseDict(SIGNAL, FaultMsgSignal())
    signal.nodeFaultInfo.extend(good.nodeFaultInfo)
    reading = read_signal(signal, NOW, query=query, cards_elsewhere=False)
    feed.board.take(Place(Source.CLUSTERD_STREAM, part=signal.jobId), reading, times())
    assert {("good", "80E18401"), ("good", "8")} <= {(fault.node, fault.fault_code) for fault in told(feed)}
