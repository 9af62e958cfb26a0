"""Payloads as MindCluster writes them, with every peculiarity that its versions and simulators have shown."""

import hashlib
import json
from typing import Any

NOW = 1_800_000_000.0
"""Seconds since the epoch at which tests read."""
WRITTEN = 1_799_999_990
"""UpdateTime of a payload, in seconds."""
OCCURRED_MS = 1_799_999_900_123
OCCURRED = OCCURRED_MS / 1000


def entry(npu_name: str, level: str, codes: str, **change: Any) -> dict[str, Any]:
    """One entry of a ``-Fault`` list; without more all codes have the level of the entry."""
    times = {code.strip(): {"fault_time": OCCURRED_MS, "fault_level": level} for code in codes.split(",") if code}
    fields = {
        "fault_type": "CardUnhealthy",
        "npu_name": npu_name,
        "large_model_fault_level": level,
        "fault_level": level,
        "fault_handling": level,
        "fault_code": codes,
        "fault_time_and_level_map": times,
    }
    return fields | change


LINK_DOWN = entry("Ascend910-0", "PreSeparateNPU", "81078603", fault_type="CardNetworkUnhealthy")
MIXED = entry(
    "Ascend910-4",
    "SeparateNPU",
    "A8028801,A4028801, 80E18402,80E18401",
    fault_time_and_level_map={
        "80E18401": {"fault_time": OCCURRED_MS, "fault_level": "NotHandleFault"},
        "80E18402": {"fault_time": OCCURRED_MS, "fault_level": "SeparateNPU"},
        "A4028801": {"fault_time": OCCURRED_MS, "fault_level": "NotHandleFault"},
        "A8028801": {"fault_time": OCCURRED_MS, "fault_level": "SeparateNPU"},
    },
)
"""One card, four codes: the entry has the worst level, the map each code's own."""
ISOLATED = entry("Ascend910-5", "ManuallySeparateNPU", "")
"""Isolated by hand: neither code nor time."""


def device_list(*faults: object, resource: str = "huawei.com/Ascend910", **lists: str) -> dict[str, Any]:
    """A device list in which ``-Fault`` is text inside text; ``lists`` are suffixes with names."""
    texts = {"NetworkUnhealthy": "", "Recovering": "", "Unhealthy": ""} | lists
    return {
        resource: "Ascend910-1,Ascend910-2",
        f"{resource}-Fault": json.dumps(list(faults), separators=(",", ":")),
        **{f"{resource}-{suffix}": names for suffix, names in texts.items()},
    }


def device_data(
    devices: dict[str, Any], *, written: int = WRITTEN, check_code: str | None = None, manual: str = "", **data: str
) -> dict[str, str]:
    """Data of a deviceinfo ConfigMap with a right CheckCode, unless told."""
    info = {"DeviceList": dict(sorted(devices.items())), "UpdateTime": written}
    config = {"DeviceInfo": info, "SuperPodID": -2, "ServerIndex": -2, "RackID": 6, "TopoCheck": "OK"}
    config["CheckCode"] = go_check_code(info) if check_code is None else check_code
    return {"DeviceInfoCfg": json.dumps(config), "ManuallySeparateNPU": manual, "Description": "sunset"} | data


def go_check_code(info: dict[str, Any]) -> str:
    """SHA-256 of what Go's encoder writes for strings and integers."""
    text = json.dumps(info, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return hashlib.sha256(text.encode()).hexdigest()


def switch_data(*alarms: object, levels: dict[str, Any] | None = None, level: str = "", written: int = WRITTEN) -> str:
    """``SwitchInfoCfg``: each alarm is text inside text."""
    return json.dumps(
        {
            "FaultCode": [json.dumps(alarm) if isinstance(alarm, dict) else alarm for alarm in alarms],
            "FaultLevel": level,
            "UpdateTime": written,
            "NodeStatus": "Healthy",
            "FaultTimeAndLevelMap": levels or {},
        }
    )


def alarm(code: str, chip: int = 1, port: int = 2, assertion: int = 1) -> dict[str, Any]:
    """One alarm of a switch."""
    return {
        "EventType": 15857397,
        "AssembledFaultCode": code,
        "PeerPortDevice": 1,
        "PeerPortId": 0,
        "SwitchChipId": chip,
        "SwitchPortId": port,
        "Severity": 3,
        "Assertion": assertion,
        "AlarmRaisedTime": OCCURRED_MS,
    }


SWITCHED_OFF = json.dumps(
    {"FaultCode": None, "FaultLevel": "", "UpdateTime": 0, "NodeStatus": "", "FaultTimeAndLevelMap": None}
)
"""What nodes write that have no such switch, and what the plugin writes when it starts."""
