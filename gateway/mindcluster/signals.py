"""What ClusterD's fault service says (mindcluster.md section 6); pure functions on its messages."""

from collections.abc import Iterator

from gateway.mindcluster.core.node import NODE, NOT_READY
from gateway.mindcluster.core.observed import Observed, Reading
from gateway.mindcluster.core.switch import SWITCH
from gateway.mindcluster.core.vocabulary import NODE_NOT_READY, is_health_flag, level_of, read_time
from motor_ft.clusterd.fault_pb2 import DeviceFaultInfo, FaultMsgSignal, NodeFaultInfo
from motor_ft.model.hardware import FaultLevel

NPU = "NPU"
_UNHEALTHY = "UnHealthy"
_BMC_LEVELS = frozenset({"PreSeparateFault", "SeparateFault"})


def read_signal(signal: FaultMsgSignal, now: float, *, query: bool, cards_elsewhere: bool) -> Reading:
    """Read the complete state of one job or, in a ``query``, of the cluster; ``now`` in seconds since the epoch.

    ``cards_elsewhere``: another source reads virtual cards, which ClusterD names by their template only.
    """
    faults = tuple(
        fault
        for node in signal.nodeFaultInfo
        for device in node.faultDevice
        for fault in _read_device(node, device, now, query=query, cards_elsewhere=cards_elsewhere)
    )
    return Reading(faults, complete=True)


def _read_device(
    node: NodeFaultInfo, device: DeviceFaultInfo, now: float, *, query: bool, cards_elsewhere: bool
) -> Iterator[Observed]:
    if device.deviceType == SWITCH:
        yield from _read_switch(node, device, now, query=query)
    elif device.deviceType == NODE:
        if device.faultLevel == _UNHEALTHY:
            yield _observed(node, NODE_NOT_READY, FaultLevel.L6, NOT_READY, fault_type=NODE)
    elif device.deviceType == NPU and not _of_management_controller(device):
        if device.deviceId.isdecimal():
            yield from _read_codes(node, device, f"npu-{device.deviceId}", "", query=query)
        elif not cards_elsewhere:
            yield from _read_codes(node, device, device.deviceId, "", query=query)
    else:
        yield from _read_codes(node, device, "", device.deviceId, query=query)


def _read_codes(
    node: NodeFaultInfo, device: DeviceFaultInfo, npu_name: str, unit: str, *, query: bool
) -> Iterator[Observed]:
    """One fault per code; without codes the state alone, which before 7.2 is all that there is."""
    for code, raw_level, inferred in _levels(device):
        if not is_health_flag(raw_level, code):
            level = _state_level(device.faultLevel) if inferred else level_of(raw_level)
            raw = device.faultLevel if inferred else raw_level
            yield _observed(
                node, code, level, raw, npu_name=npu_name, fault_type=device.deviceType, unit=unit, inferred=inferred
            )
    if not device.faultCodes and not query:
        level = _state_level(device.faultLevel)
        yield _observed(
            node,
            "",
            level,
            device.faultLevel,
            npu_name=npu_name,
            fault_type=device.deviceType,
            unit=unit,
            inferred=True,
        )


def _read_switch(node: NodeFaultInfo, device: DeviceFaultInfo, now: float, *, query: bool) -> Iterator[Observed]:
    """Codes by chip and port. In a stream their level is the node's worst, in a query their own."""
    for info in device.switchFaultInfos:
        yield _observed(
            node,
            info.faultCode,
            level_of(info.faultLevel),
            info.faultLevel,
            fault_type=SWITCH,
            unit=info.switchChipId,
            port=info.switchPortId,
            since=read_time(info.faultTime, now),
            inferred=not query,
        )
    if not device.switchFaultInfos:
        yield from _read_codes(node, device, "", "", query=query)


def _levels(device: DeviceFaultInfo) -> Iterator[tuple[str, str, bool]]:
    """Code, level name, and whether there is none: where the lists differ in length their indices mean nothing."""
    inferred = len(device.faultLevels) != len(device.faultCodes)
    levels = [device.faultLevel] * len(device.faultCodes) if inferred else device.faultLevels
    for code, level in zip(device.faultCodes, levels, strict=True):
        yield code, level, inferred


def _state_level(state: str) -> FaultLevel:
    return FaultLevel.L6 if state == _UNHEALTHY else FaultLevel.L1


def _of_management_controller(device: DeviceFaultInfo) -> bool:
    """Return whether an ``NPU`` is numbered by the server's management controller, so that its number is no card's.

    Its levels have names of their own; its codes are 8 digits with a small first one, where those of chips are large.
    """
    if _BMC_LEVELS.intersection(device.faultLevels):
        return True
    return bool(device.faultCodes) and all(len(code) == 8 and code[0] in "0123" for code in device.faultCodes)


def _observed(
    node: NodeFaultInfo,
    code: str,
    level: FaultLevel,
    raw_level: str,
    *,
    npu_name: str = "",
    fault_type: str,
    unit: str = "",
    port: str = "",
    since: float | None = None,
    inferred: bool = False,
) -> Observed:
    return Observed(
        node.nodeName.strip(),
        npu_name,
        code,
        level,
        raw_level,
        fault_type=fault_type,
        unit=unit,
        port=port,
        node_ip=node.nodeIP,
        since=since,
        level_inferred=inferred,
    )
