"""Faults of the switch inside a node (mindcluster.md section 2.6): they concern the node, not one card."""

from collections.abc import Mapping
from typing import NamedTuple

from gateway.mindcluster.core.observed import Observed, Reading, problems
from gateway.mindcluster.core.vocabulary import (
    PayloadError,
    as_list,
    as_object,
    decode,
    decode_object,
    level_of,
    read_time,
    shown,
    text_of,
)
from motor_ft.model.hardware import canonical_code

SWITCH = "Switch"
NODE_LEVEL_CODE = "SwitchFaultLevel"
"""Code of a fault that the node's level shows and no single code: all ports of a plane down, for example."""
_RECOVERED = 0


class _Place(NamedTuple):
    """Identity of an alarm inside the node."""

    code: str
    chip: str
    port: str


class _Alarm(NamedTuple):
    """What is known of an alarm; ``level`` is empty where only the node's is known."""

    code: str
    level: str
    time: object


def read_switch(value: object, node: str, now: float) -> Reading:
    """Read ``SwitchInfoCfg``, text or object. The form of a switched-off feature says nothing and clears nothing."""
    try:
        info = decode_object(value, "SwitchInfoCfg")
    except PayloadError as error:
        return Reading(problem=str(error))
    bad: list[str] = []
    alarms = _read_alarms(info, bad)
    node_level = text_of(info.get("FaultLevel"))
    faults = [
        Observed(
            node,
            "",
            alarm.code,
            level_of(alarm.level or node_level),
            alarm.level or node_level,
            fault_type=SWITCH,
            unit=place.chip,
            port=place.port,
            since=read_time(alarm.time, now),
            level_inferred=not alarm.level,
        )
        for place, alarm in alarms.items()
    ]
    if node_level and level_of(node_level).severity > max((fault.level.severity for fault in faults), default=0):
        faults.append(Observed(node, "", NODE_LEVEL_CODE, level_of(node_level), node_level, fault_type=SWITCH))
    update_time = read_time(info.get("UpdateTime"), now)
    return Reading(tuple(faults), update_time is not None and not bad, update_time=update_time, problem=problems(bad))


def _read_alarms(info: Mapping[str, object], bad: list[str]) -> dict[_Place, _Alarm]:
    """Alarms of the list with the levels of the map, and those that only the map has; none that is over."""
    alarms: dict[_Place, _Alarm] = {}
    over: set[_Place] = set()
    try:
        for item in as_list(info.get("FaultCode"), "FaultCode"):
            _read_alarm(item, alarms, over, bad)
    except PayloadError as error:
        bad.append(str(error))
    try:
        for key, value in as_object(info.get("FaultTimeAndLevelMap") or {}, "FaultTimeAndLevelMap").items():
            code, chip, port = _split(key)
            place = _Place(canonical_code(code), chip, port)
            fields = value if isinstance(value, dict) else {}
            if place not in over:
                known = alarms.get(place, _Alarm(code, "", None))
                level, time = text_of(fields.get("fault_level")), fields.get("fault_time")
                alarms[place] = known._replace(level=level, time=time or known.time)
    except PayloadError as error:
        bad.append(str(error))
    return alarms


def _read_alarm(item: object, alarms: dict[_Place, _Alarm], over: set[_Place], bad: list[str]) -> None:
    """One alarm: an object, the text of one, or a plain code."""
    if isinstance(item, str) and not item.lstrip().startswith("{"):
        code, chip, port = _split(item)
        alarms[_Place(canonical_code(code), chip, port)] = _Alarm(code, "", None)
        return
    try:
        fields = as_object(decode(item, "FaultCode"), "FaultCode")
        code = text_of(fields.get("AssembledFaultCode"))
        if not code:
            raise PayloadError(f"alarm without AssembledFaultCode: {shown(fields, 120)}")
    except PayloadError as error:
        bad.append(str(error))
        return
    place = _Place(canonical_code(code), text_of(fields.get("SwitchChipId")), text_of(fields.get("SwitchPortId")))
    if fields.get("Assertion") == _RECOVERED:
        over.add(place)
    else:
        alarms[place] = _Alarm(code, "", fields.get("AlarmRaisedTime"))


def _split(key: str) -> tuple[str, str, str]:
    """Code, chip and port; the code may contain commas and underscores, so from the right."""
    parts = key.strip().rsplit("_", 2)
    if len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal():
        return parts[0], parts[1], parts[2]
    return key.strip(), "", ""
