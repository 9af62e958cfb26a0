"""ConfigMaps in which ClusterD gathers all nodes (mindcluster.md section 4)."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gateway.mindcluster.core.device import manually_separated, read_devices
from gateway.mindcluster.core.node import read_node_faults
from gateway.mindcluster.core.observed import Observed, Reading, problems
from gateway.mindcluster.core.switch import read_switch
from gateway.mindcluster.core.vocabulary import (
    PayloadError,
    as_list,
    as_object,
    decode_object,
    level_of,
    read_time,
    text_of,
)

DEVICE, SWITCH, NODE = "device", "switch", "node"
_KINDS = {"cluster-info-device-": DEVICE, "cluster-info-switch-": SWITCH, "cluster-info-node-cm": NODE}
_NODE_PREFIXES = ("mindx-dl-deviceinfo-", "mindx-dl-switchinfo-", "mindx-dl-nodeinfo-")


class NodePart(NamedTuple):
    """What one of these ConfigMaps says of one node; ``part`` is the kind of ConfigMap."""

    node: str
    part: str
    reading: Reading


def read_cluster_info(name: str, data: Mapping[str, str], now: float) -> Iterator[NodePart]:
    """Read one ConfigMap, which may be one of several shards: a node that is not in it is elsewhere, or nowhere.

    The empty node stands for the ConfigMap as a whole, when that cannot be read.
    """
    kind = next((kind for prefix, kind in _KINDS.items() if name.startswith(prefix)), "")
    if not kind or not data.get(name):
        return
    try:
        nodes = decode_object(data[name], name)
    except PayloadError as error:
        yield NodePart("", kind, Reading(problem=str(error)))
        return
    for key, value in nodes.items():
        node = _node_name(key)
        try:
            fields = as_object(value, key)
            node = _node_name(text_of(fields.get("CmName")) or key)
            yield NodePart(node, kind, _read_part(kind, fields, node, now))
        except PayloadError as error:
            yield NodePart(node, kind, Reading(problem=str(error)))


def read_manual_info(node: str, text: str, now: float) -> Reading:
    """Read one node's value of ``clusterd-manual-info-cm``: isolated cards, with the codes that made ClusterD do so."""
    faults: list[Observed] = []
    bad: list[str] = []
    try:
        info = decode_object(text, node)
        details = as_object(info.get("Detail") or {}, "Detail")
        for name in (text_of(each) for each in as_list(info.get("Total"), "Total")):
            try:
                faults += _read_isolated(node, name, as_list(details.get(name), f"Detail of {name}"), now)
            except PayloadError as error:
                faults.append(manually_separated(node, name))
                bad.append(str(error))
    except PayloadError as error:
        bad.append(str(error))
    return Reading(tuple(faults), complete=not bad, problem=problems(bad))


def _read_part(kind: str, fields: Mapping[str, object], node: str, now: float) -> Reading:
    if kind == DEVICE:
        return read_devices(fields, fields.get("UpdateTime"), node, now)
    if kind == SWITCH:
        return read_switch(fields, node, now)
    return read_node_faults(fields, node, None)


def _read_isolated(node: str, name: str, entries: list[object], now: float) -> list[Observed]:
    faults = []
    for entry in entries:
        fields = as_object(entry, f"Detail of {name}")
        raw_level, since = text_of(fields.get("FaultLevel")), read_time(fields.get("LastSeparateTime"), now)
        faults.append(
            Observed(node, name, text_of(fields.get("FaultCode")), level_of(raw_level), raw_level, since=since)
        )
    return faults or [manually_separated(node, name)]


def _node_name(text: str) -> str:
    """Node of a key or ``CmName``: the prefix may be another one's, and spaces stray in."""
    name = text.strip()
    for prefix in _NODE_PREFIXES:
        name = name.removeprefix(prefix)
    return name.strip()
