"""ClusterD's messages: levels by code where they are stated, from the state where they are not, and marked so."""

import pytest

from gateway.mindcluster.core.observed import Observed
from gateway.mindcluster.signals import read_signal
from motor_ft.clusterd.fault_pb2 import DeviceFaultInfo, FaultMsgSignal, NodeFaultInfo, SwitchFaultInfo
from tests.support.mindcluster import NOW

NPU_CODE = "[0x00f1fef5,155914,npu,na]"


def npu(
    device_id: str, *codes: str, levels: tuple[str, ...] = (), state: str = "UnHealthy", kind: str = "NPU"
) -> DeviceFaultInfo:
    return DeviceFaultInfo(deviceId=device_id, deviceType=kind, faultCodes=codes, faultLevels=levels, faultLevel=state)


def read(*devices: DeviceFaultInfo, query: bool = False, cards_elsewhere: bool = True) -> tuple[Observed, ...]:
    node = NodeFaultInfo(nodeName="node-a", nodeIP="192.0.2.1", faultLevel="UnHealthy", faultDevice=devices)
    signal = FaultMsgSignal(jobId="job", signalType="fault", nodeFaultInfo=[node])
    reading = read_signal(signal, NOW, query=query, cards_elsewhere=cards_elsewhere)
    assert reading.complete
    return reading.faults


def brief(fault: Observed) -> tuple[str, str, str, str, bool]:
    return fault.npu_name, fault.code, fault.unit, fault.level, fault.level_inferred


@pytest.mark.parametrize("query", [False, True])
def test_each_code_has_its_own_level(query: bool) -> None:
    faults = read(npu("4", "80E18401", "A8028801", levels=("NotHandleFault", "SeparateNPU")), query=query)
    assert [brief(fault) for fault in faults] == [
        ("npu-4", "80E18401", "", "L1", False),
        ("npu-4", "A8028801", "", "L6", False),
    ]
    assert {(fault.node, fault.node_ip) for fault in faults} == {("node-a", "192.0.2.1")}


def test_lists_of_different_length_say_only_the_state() -> None:
    """7.2 removed repeated codes, and not their levels."""
    faults = read(npu("4", "80E18401", "A8028801", levels=("NotHandleFault",) * 3))
    assert [brief(fault)[3:] for fault in faults] == [("L6", True), ("L6", True)]


@pytest.mark.parametrize(("state", "level"), [("UnHealthy", "L6"), ("SubHealthy", "L1"), ("Healthy", "L1")])
def test_before_levels_existed_the_state_is_all_there_is(state: str, level: str) -> None:
    (fault,) = read(npu("3", state=state))
    assert brief(fault) == ("npu-3", "", "", level, True)
    assert fault.raw_level == state


def test_in_a_query_a_device_without_codes_is_no_fault() -> None:
    """Every node with a switch is listed there."""
    switch = DeviceFaultInfo(deviceId="-1", deviceType="Switch", faultLevel="Healthy")
    assert read(switch, npu("3"), query=True) == ()


def test_a_fault_without_action_is_no_health_and_a_flag_of_health_no_fault() -> None:
    link = npu("0", "81078603", levels=("NotHandleFault",), state="Healthy")
    flag = npu("1", "", levels=("NormalNPU",), state="UnHealthy")
    empty = npu("2", "", levels=("",), state="UnHealthy")
    assert [brief(fault) for fault in read(link, flag, empty)] == [("npu-0", "81078603", "", "L1", False)]


@pytest.mark.parametrize(("query", "inferred"), [(True, False), (False, True)])
def test_the_level_of_a_switch_code_is_its_own_only_in_a_query(query: bool, inferred: bool) -> None:
    info = SwitchFaultInfo(
        faultCode=NPU_CODE,
        switchChipId="1",
        switchPortId="2",
        faultTime="1744168468259",
        faultLevel="RestartRequest",
    )
    switch = DeviceFaultInfo(deviceId="-1", deviceType="Switch", faultCodes=[NPU_CODE], switchFaultInfos=[info])
    (fault,) = read(switch, query=query)
    assert (fault.npu_name, fault.code, fault.unit, fault.port) == ("", NPU_CODE, "1", "2")
    assert (fault.level, fault.level_inferred, fault.since) == ("L2", inferred, 1744168468.259)


def test_a_switch_of_old_versions_concerns_the_node() -> None:
    (fault,) = read(DeviceFaultInfo(deviceId="0", deviceType="Switch", faultLevel="UnHealthy"))
    assert brief(fault) == ("", "", "", "L6", True)


@pytest.mark.parametrize("query", [False, True])
def test_a_node_that_is_not_ready_has_no_code_of_its_own(query: bool) -> None:
    node = DeviceFaultInfo(deviceId="-1", deviceType="Node", faultLevel="UnHealthy")
    assert [brief(fault) for fault in read(node, query=query)] == [("", "0x0000001", "", "L6", False)]
    assert read(DeviceFaultInfo(deviceId="-1", deviceType="Node", faultLevel="Healthy"), query=query) == ()


@pytest.mark.parametrize(
    "device",
    [
        npu("1", "00000011", levels=("SeparateFault",), kind="CPU"),
        npu("1", "80000011", levels=("SeparateFault",)),
        npu("1", "00000011", levels=("NotHandleFault",)),
        npu("1", "2C000031"),
    ],
    ids=["cpu", "levels of the controller", "codes of the controller", "no levels"],
)
def test_what_the_management_controller_numbers_is_no_card(device: DeviceFaultInfo) -> None:
    """It has devices that it calls NPU; their number is not that of a card."""
    (fault,) = read(device)
    assert (fault.npu_name, fault.unit) == ("", "1")


def test_a_virtual_card_is_left_to_a_source_that_knows_its_number() -> None:
    """ClusterD names it by its template, which is no card: unmappable where there is no other source."""
    sliced = npu("2c", "80E18402", levels=("SeparateNPU",))
    assert read(sliced) == ()
    assert [fault.npu_name for fault in read(sliced, cards_elsewhere=False)] == ["2c"]


def test_normal_is_a_job_without_faults_and_a_node_may_come_twice() -> None:
    normal = read_signal(FaultMsgSignal(jobId="j", signalType="normal"), NOW, query=False, cards_elsewhere=True)
    assert (normal.faults, normal.complete) == ((), True)
    node = NodeFaultInfo(nodeName="node-a", faultDevice=[npu("1", "A", levels=("SeparateNPU",))])
    twice = FaultMsgSignal(nodeFaultInfo=[node, node])
    assert len(read_signal(twice, NOW, query=False, cards_elsewhere=True).faults) == 2
