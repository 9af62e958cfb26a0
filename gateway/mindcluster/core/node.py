"""Faults of a server outside its cards: from its management controller, and its conditions (sections 3 and 5)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from gateway.mindcluster.core.observed import Observed, Reading, problems
from gateway.mindcluster.core.vocabulary import (
    EARLIEST,
    NODE_NOT_READY,
    PayloadError,
    as_list,
    as_object,
    decode_object,
    level_of,
    names_of,
    text_of,
)
from motor_ft.model.hardware import FaultLevel

NODE_STATUS_CODE = "NodeStatus"
"""Code of a status for which no device is named: shown, never acted on, because it is known to stay for days."""
NOT_READY = "NotReady"
NODE = "Node"
_HEALTHY = frozenset({"Healthy", ""})


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a Node that is a fault of ``level`` while its status is ``bad_status``."""

    type: str
    bad_status: str
    level: FaultLevel


@dataclass(frozen=True, slots=True)
class NodeReading:
    """A Node; ``ready_since`` in seconds since the epoch, None while it is not ready or does not say."""

    reading: Reading
    address: str = ""
    ready_since: float | None = None


def read_node_info(data: Mapping[str, str], node: str, now: float) -> Reading:
    """Read the data of ``mindx-dl-nodeinfo-<node>``."""
    try:
        info = decode_object(data.get("NodeInfo") or "{}", "NodeInfo")
        return read_node_faults(
            as_object(info.get("NodeInfo"), "NodeInfo"), node, _read_rfc3339(data.get("updateTime"))
        )
    except PayloadError as error:
        return Reading(problem=str(error))


def read_node_faults(info: Mapping[str, object], node: str, since: float | None) -> Reading:
    """Read the devices that a management controller reports; their numbers are its own, not those of cards."""
    faults: list[Observed] = []
    bad: list[str] = []
    try:
        devices = as_list(info.get("FaultDevList"), "FaultDevList")
    except PayloadError as error:
        return Reading(problem=str(error))
    for index, device in enumerate(devices):
        try:
            fields = as_object(device, f"FaultDevList[{index}]")
            codes = names_of(fields.get("FaultCode")) or ("",)
        except PayloadError as error:
            bad.append(str(error))
            continue
        raw_level, kind = text_of(fields.get("FaultLevel")), text_of(fields.get("DeviceType"))
        unit = text_of(fields.get("DeviceId"))
        faults += [
            Observed(node, "", code, level_of(raw_level), raw_level, fault_type=kind, unit=unit, since=since)
            for code in codes
        ]
    status = text_of(info.get("NodeStatus"))
    if status not in _HEALTHY and not devices:
        faults.append(Observed(node, "", NODE_STATUS_CODE, FaultLevel.L1, status, fault_type=NODE, since=since))
    return Reading(tuple(faults), complete=not bad, problem=problems(bad))


def read_node(name: str, node: Mapping[str, object], conditions: Iterable[Condition] = ()) -> NodeReading:
    """Read a Node object as the API server gives it; one that does not say that it is ready is not."""
    told = node.get("status")
    status = told if isinstance(told, dict) else {}
    found = {text_of(each.get("type")): each for each in _objects(status.get("conditions"))}
    ready = found.get("Ready", {})
    changed = _read_rfc3339(ready.get("lastTransitionTime"))
    is_ready = text_of(ready.get("status")) == "True"
    address = _address(status)
    faults = [] if is_ready else [_not_ready(name, changed)]
    for condition in conditions:
        fields = found.get(condition.type, {})
        if text_of(fields.get("status")) == condition.bad_status:
            faults.append(
                Observed(
                    name,
                    "",
                    condition.type,
                    condition.level,
                    condition.bad_status,
                    fault_type=NODE,
                    since=_read_rfc3339(fields.get("lastTransitionTime")),
                    detail=text_of(fields.get("reason")),
                )
            )
    return NodeReading(Reading(tuple(faults), complete=True), address, changed if is_ready else None)


def deleted_node(node: str) -> NodeReading:
    """Return what is known of a node that the cluster has no more: it is not ready."""
    return NodeReading(Reading((_not_ready(node, None),), complete=True))


def _not_ready(node: str, since: float | None) -> Observed:
    return Observed(node, "", NODE_NOT_READY, FaultLevel.L6, NOT_READY, fault_type=NODE, since=since)


def _address(status: Mapping[str, object]) -> str:
    addresses = {text_of(each.get("type")): text_of(each.get("address")) for each in _objects(status.get("addresses"))}
    return addresses.get("InternalIP", "")


def _objects(items: object) -> list[Mapping[str, object]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _read_rfc3339(value: object) -> float | None:
    try:
        time = datetime.fromisoformat(text_of(value))
    except ValueError:
        return None
    if time.tzinfo is None or (seconds := time.timestamp()) < EARLIEST:
        return None
    return seconds
