"""All sources together: which faults hold now, and which sources are not to be believed (mindcluster.md section 11)."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from typing import NamedTuple

from gateway.mindcluster.core.node import Condition
from gateway.mindcluster.core.observed import Reading, Source, plausible
from gateway.mindcluster.core.slot import STALE_SEC, Kept, Slot, Times
from motor_ft.model.hardware import FaultKey, FaultLevel, HardwareFault, SourceState, canonical_code

QUERY_LAG_SEC = 5.0
"""Older than this when a query was asked, a stream's fault is in the answer or is over: ClusterD's cache and tick."""

_PRIORITY = {source: -rank for rank, source in enumerate(Source)}


class Place(NamedTuple):
    """Part of a source that has a state of its own: a node, or a job of a stream. Empty: the source as a whole."""

    source: Source
    node: str = ""
    part: str = ""


class _Node(NamedTuple):
    address: str = ""
    ready_since: float | None = None


class _Seen(NamedTuple):
    place: Place
    kept: Kept
    live: bool


class _Shown(NamedTuple):
    """Places that show a fault, which was nowhere before this ``occurrence`` of it began."""

    occurrence: int
    places: set[Place]


class Board:
    """State of all ``sources``, none of which is believed before it has said that it works.

    Faults with one of ``debounce_codes`` count as L6 only after ``debounce_sec`` at that level, as L1 before. Nodes are
    read where ``node_selector`` says, and each of ``conditions`` is a source of its own: all that is part of names, so
    that no adapter stands in for one that reads other nodes or conditions.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        *,
        debounce_codes: Iterable[str] = (),
        debounce_sec: float = 0.0,
        node_selector: str = "",
        conditions: Iterable[Condition] = (),
    ) -> None:
        self._broken: dict[Source, str] = dict.fromkeys(sources, "has not answered yet")
        self._slots: dict[Place, Slot] = {}
        self._shown: dict[FaultKey, _Shown] = {}
        self._occurrences = count(1)
        self._nodes: dict[str, _Node] = {}
        self._debounce_codes = frozenset(map(canonical_code, debounce_codes))
        self._debounce_sec = debounce_sec
        nodes = Source.NODE_READY + (f"[{node_selector}]" if node_selector else "")
        self._names = {source: source.value for source in Source} | {Source.NODE_READY: nodes}
        self._parts = {
            Source.CM_DEVICE: (Source.CM_SWITCH.value,),
            Source.NODE_READY: tuple(_part(nodes, each.type, each.bad_status) for each in conditions),
        }

    def take(self, place: Place, reading: Reading, now: Times) -> None:
        """A reading of a place has arrived."""
        self._keep(place, self._slots.get(place, Slot()).take(plausible(reading), now))

    def node(self, name: str, address: str, ready_since: float | None) -> None:
        """A node and its address; what its plugin wrote before it became Ready says nothing of what came after."""
        self._nodes[name] = _Node(address, ready_since)

    def lost(self, place: Place, problem: str) -> None:
        """The place is gone without saying how it is: kept, and not believed."""
        if place in self._slots:
            self._slots[place] = self._slots[place].broken(problem)

    def cleared(self, place: Place) -> None:
        """The place is gone, which for this source means healthy."""
        self._show(place, Slot())
        self._slots.pop(place, None)

    def places(self, source: Source) -> frozenset[Place]:
        """Places of which the source has said something."""
        return frozenset(place for place in self._slots if place.source is source)

    def broken(self, source: Source, problem: str) -> None:
        """The source does not work; ``problem`` is for people."""
        self._broken[source] = problem

    def working(self, source: Source) -> None:
        """The source works."""
        self._broken[source] = ""

    def unconfirm(self, source: Source) -> None:
        """Changes may have been missed."""
        for place in self.places(source):
            self._slots[place] = self._slots[place].broken("")

    def answered(self, reading: Reading, asked_at: float, now: Times) -> None:
        """A query of the whole cluster, asked at a monotonic time: what streams said before and it lacks is over."""
        self.take(Place(Source.CLUSTERD_QUERY), reading, now)
        shown = frozenset(fault.key for fault in reading.faults)
        for place in self.places(Source.CLUSTERD_STREAM):
            slot = self._slots[place]
            if slot.taken_at < asked_at - QUERY_LAG_SEC:
                self._keep(place, slot.without(shown))

    def faults(self, now: Times) -> dict[FaultKey, HardwareFault]:
        """Every fault that holds, once, whichever sources show it."""
        seen: defaultdict[FaultKey, list[_Seen]] = defaultdict(list)
        for place, slot in self._slots.items():
            if slot.faults:
                believed = not self._doubt(place, slot, now)
                for (key, _), kept in slot.faults.items():
                    seen[key].append(_Seen(place, kept, believed and kept.confirmed))
        return {key: self._merge(each, self._shown[key].occurrence, now) for key, each in seen.items()}

    def states(self, now: Times) -> tuple[SourceState, ...]:
        """Each source as a whole, and every place of one that works and is not to be believed."""
        whole = [
            SourceState(name, "", problem)
            for source, problem in self._broken.items()
            for name in (self._names[source], *self._parts.get(source, ()))
        ]
        places = [
            SourceState(self._names[place.source], place.node or place.part, problem)
            for place, slot in self._slots.items()
            if not self._broken.get(_watch(place)) and (problem := slot.problem or self._doubt(place, slot, now))
        ]
        return (*whole, *sorted(places, key=lambda state: (state.source, state.node)))

    def _keep(self, place: Place, slot: Slot) -> None:
        """Jobs come and go: one without faults is not remembered."""
        self._show(place, slot)
        if slot.faults or place.source is not Source.CLUSTERD_STREAM:
            self._slots[place] = slot
        else:
            self._slots.pop(place, None)

    def _show(self, place: Place, slot: Slot) -> None:
        """The place will have this slot; whether a fault was gone for a moment is not seen later."""
        before, now = ({key for key, _ in each.faults} for each in (self._slots.get(place, Slot()), slot))
        for key in now - before:
            if key not in self._shown:
                self._shown[key] = _Shown(next(self._occurrences), set())
            self._shown[key].places.add(place)
        for key in before - now:
            self._shown[key].places.remove(place)
            if not self._shown[key].places:
                del self._shown[key]

    def _doubt(self, place: Place, slot: Slot, now: Times) -> str:
        """Why nothing of this place is confirmed now; empty when something may be."""
        if problem := self._broken.get(_watch(place)):
            return problem
        writer = self._slots.get(Place(Source.CM_DEVICE, place.node), slot)
        if place.source is Source.CM_DEVICE or (place.source is Source.CM_SWITCH and slot.faults):
            if writer.outdated(now):
                return f"nothing was written for {STALE_SEC:g} s"
            ready = self._nodes.get(place.node, _Node()).ready_since
            if ready is not None and writer.update_time is not None and writer.update_time < ready:
                return "nothing was written since the node became Ready"
        return ""

    def _merge(self, seen: list[_Seen], occurrence: int, now: Times) -> HardwareFault:
        """The gravest that a believed source states; levels that had to be inferred only where none is stated."""
        live = [each for each in seen if each.live] or seen
        stated = [each for each in live if not each.kept.observed.level_inferred] or live
        _, kept, is_live = max(
            stated, key=lambda each: (self._level(each.kept, now).severity, _PRIORITY[each.place.source])
        )
        chosen = kept.observed
        return HardwareFault(
            node=chosen.node,
            npu_name=chosen.npu_name,
            fault_code=chosen.code,
            level=self._level(kept, now),
            raw_level=chosen.raw_level,
            level_inferred=chosen.level_inferred,
            fault_type=chosen.fault_type,
            unit=chosen.unit,
            port=chosen.port,
            node_ip=chosen.node_ip or self._nodes.get(chosen.node, _Node()).address or next(_addresses(live), ""),
            sources=tuple(sorted({self._name(each) for each in live})),
            stale=not is_live,
            detail=chosen.detail,
            first_seen=min(each.kept.first_seen for each in seen),
            occurrence=occurrence,
            age_sec=now.monotonic - min(each.kept.since for each in seen),
        )

    def _name(self, seen: _Seen) -> str:
        """Of the source, or of the part of it that shows this."""
        name, observed = self._names[seen.place.source], seen.kept.observed
        part = _part(name, observed.code, observed.raw_level)
        return part if part in self._parts.get(seen.place.source, ()) else name

    def _level(self, kept: Kept, now: Times) -> FaultLevel:
        level = kept.observed.level
        flaps = level is FaultLevel.L6 and canonical_code(kept.observed.code) in self._debounce_codes
        return FaultLevel.L1 if flaps and now.monotonic - kept.level_since < self._debounce_sec else level


def _watch(place: Place) -> Source:
    """The source with which a place's source fails: both are in one ConfigMap."""
    return Source.CM_DEVICE if place.source is Source.CM_SWITCH else place.source


def _part(nodes: str, condition: str, status: str) -> str:
    return f"{nodes} {condition}={status}"


def _addresses(seen: Iterable[_Seen]) -> Iterator[str]:
    return (each.kept.observed.node_ip for each in seen if each.kept.observed.node_ip)
