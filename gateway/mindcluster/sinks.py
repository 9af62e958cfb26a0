"""From objects of the Kubernetes API to readings on the board."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence

from gateway.mindcluster.core import cluster
from gateway.mindcluster.core.board import Board, Place
from gateway.mindcluster.core.device import CheckCode, read_device
from gateway.mindcluster.core.node import Condition, NodeReading, deleted_node, read_node, read_node_info
from gateway.mindcluster.core.observed import Source
from gateway.mindcluster.core.slot import Times
from gateway.mindcluster.core.switch import read_switch
from gateway.mindcluster.feed import Feed
from gateway.mindcluster.kubernetes import Object, name_of

DEVICE_PREFIX = "mindx-dl-deviceinfo-"
NODE_PREFIX = "mindx-dl-nodeinfo-"
MANUAL_CONFIGMAP = "clusterd-manual-info-cm"
_DELETED = "the ConfigMap was deleted, which says nothing about the node"


class BoardSink(ABC):
    """What all kinds of objects have in common: they tell of one source."""

    source: Source

    def __init__(self, feed: Feed, times: Callable[[], Times]) -> None:
        self._feed = feed
        self._board: Board = feed.board
        self._times = times

    def listed(self, objects: Sequence[Object]) -> None:
        """Take all, and treat as deleted what was there before and is no more."""
        for item in objects:
            self.changed(item)
        for name in self._known() - {name_of(item) for item in objects}:
            self._drop(name)
        self._feed.touch()

    def changed(self, item: Object) -> None:
        """Take one, if it is one of ours."""
        self._take(name_of(item), item)
        self._feed.touch()

    def deleted(self, item: Object) -> None:
        """Do what the end of this object means."""
        self._drop(name_of(item))
        self._feed.touch()

    def working(self) -> None:
        """Believe the source."""
        self._board.working(self.source)
        self._feed.touch()

    def broken(self, problem: str) -> None:
        """Keep what is known, and say that nothing is confirmed."""
        self._board.broken(self.source, problem)
        self._feed.touch()

    @abstractmethod
    def _known(self) -> set[str]:
        """Names of the objects of which the board has something."""

    @abstractmethod
    def _take(self, name: str, item: Object) -> None:
        """Read one object, or leave it when it is of another kind."""

    @abstractmethod
    def _drop(self, name: str) -> None:
        """One object is gone."""


class DeviceSink(BoardSink):
    """``mindx-dl-deviceinfo-<node>``: cards and switch of one node."""

    source = Source.CM_DEVICE

    def __init__(self, feed: Feed, times: Callable[[], Times], check: CheckCode) -> None:
        super().__init__(feed, times)
        self._check = check

    def _known(self) -> set[str]:
        return {DEVICE_PREFIX + place.node for place in self._board.places(Source.CM_DEVICE)}

    def _take(self, name: str, item: Object) -> None:
        if not name.startswith(DEVICE_PREFIX):
            return
        node, data, now = name.removeprefix(DEVICE_PREFIX), data_of(item), self._times()
        self._board.take(Place(Source.CM_DEVICE, node), read_device(data, node, now.wall, self._check), now)
        if "SwitchInfoCfg" in data:
            self._board.take(Place(Source.CM_SWITCH, node), read_switch(data["SwitchInfoCfg"], node, now.wall), now)

    def _drop(self, name: str) -> None:
        for source in (Source.CM_DEVICE, Source.CM_SWITCH):
            self._board.lost(Place(source, name.removeprefix(DEVICE_PREFIX)), _DELETED)


class NodeInfoSink(BoardSink):
    """``mindx-dl-nodeinfo-<node>``: there only while the server has a fault."""

    source = Source.CM_NODE

    def _known(self) -> set[str]:
        return {NODE_PREFIX + place.node for place in self._board.places(Source.CM_NODE)}

    def _take(self, name: str, item: Object) -> None:
        if name.startswith(NODE_PREFIX):
            node, now = name.removeprefix(NODE_PREFIX), self._times()
            self._board.take(Place(Source.CM_NODE, node), read_node_info(data_of(item), node, now.wall), now)

    def _drop(self, name: str) -> None:
        self._board.cleared(Place(Source.CM_NODE, name.removeprefix(NODE_PREFIX)))


class ClusterSink(BoardSink):
    """ClusterD's shards: a node may move between them, so a shard that is gone or lacks a node clears nothing."""

    source = Source.CM_CLUSTER

    def _known(self) -> set[str]:
        return set()

    def _take(self, name: str, item: Object) -> None:
        now = self._times()
        for node, part, reading in cluster.read_cluster_info(name, data_of(item), now.wall):
            self._board.take(Place(Source.CM_CLUSTER, node, part), reading, now)

    def _drop(self, name: str) -> None:
        """What it said is elsewhere, or no longer written, which its age shows."""


class ManualSink(BoardSink):
    """``clusterd-manual-info-cm``: one value for each node with cards that ClusterD has isolated."""

    source = Source.CM_MANUAL

    def _known(self) -> set[str]:
        return {MANUAL_CONFIGMAP} if self._board.places(Source.CM_MANUAL) else set()

    def _take(self, name: str, item: Object) -> None:
        data, now = data_of(item), self._times()
        for node, text in data.items():
            self._board.take(Place(Source.CM_MANUAL, node), cluster.read_manual_info(node, text, now.wall), now)
        for place in self._board.places(Source.CM_MANUAL):
            if place.node not in data:
                self._board.cleared(place)

    def _drop(self, name: str) -> None:
        for place in self._board.places(Source.CM_MANUAL):
            self._board.lost(place, _DELETED)


class NodeSink(BoardSink):
    """Nodes and their conditions."""

    source = Source.NODE_READY

    def __init__(self, feed: Feed, times: Callable[[], Times], conditions: Iterable[Condition]) -> None:
        super().__init__(feed, times)
        self._conditions = tuple(conditions)

    def _known(self) -> set[str]:
        return {place.node for place in self._board.places(Source.NODE_READY)}

    def _take(self, name: str, item: Object) -> None:
        self._found(name, read_node(name, item, self._conditions))

    def _drop(self, name: str) -> None:
        self._found(name, deleted_node(name))

    def _found(self, name: str, found: NodeReading) -> None:
        self._board.take(Place(Source.NODE_READY, name), found.reading, self._times())
        self._board.node(name, found.address, found.ready_since)


def data_of(item: Object) -> Mapping[str, str]:
    """Return the texts of a ConfigMap; one without any has none."""
    data = item.get("data")
    return {key: text for key, text in data.items() if isinstance(text, str)} if isinstance(data, dict) else {}
