"""What adapters of hardware faults say, and which instances it concerns (recovery.md section 7, protocol.md section 2).

A fault holds as long as any adapter says so. An adapter that is gone, or a source of it that does not work, says
nothing: what was known stays, and shows as such. All adapters are of one cluster: where one is gone and another reads
the same sources, what that one does not show is over (mindcluster.md section 11, rules 6 and 7).
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Protocol, assert_never

from controller.core.reports import AdapterHello, HardwareCleared, HardwareReport, HardwareSnapshot, Heartbeat, Welcome
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.hardware import FaultKey, HardwareFault, SourceState
from motor_ft.wire.log import get_logger

log = get_logger(__name__)

MAX_ADAPTERS = 16
MAX_FAULTS_PER_NODE = 1024
"""More is a defect of the reporter: the largest nodes have 16 cards and a few hundred ports."""
MAX_FAULTS = 50_000
"""Of one adapter, and so many sources."""
_NAMED = 10
"""Sources that are named in the log."""


class Watcher(Protocol):
    """Who wants to know of the faults on some nodes."""

    def hardware_changed(self, key: FaultKey, fault: HardwareFault | None, *, new: bool) -> None:
        """A fault is there, has changed, or is over (None).

        ``new``: its adapter has said before that it is not there; else it may be older than this Controller.
        """
        ...


class Observer(Protocol):
    """Metrics of hardware evidence."""

    def hardware(self, adapters: int, problems: int, faults: int) -> None:
        """Adapters that are connected; adapters and sources that are not to be believed now; faults that hold."""
        ...


class AdapterAttachment:
    """``controller.core.ports.Attachment`` of one stream of one adapter."""

    def __init__(self, desk: "HardwareDesk", adapter: "Adapter", welcome: Welcome, sequence: int) -> None:
        self._desk = desk
        self._adapter = adapter
        self._welcome = welcome
        self.sequence = sequence

    @property
    def welcome(self) -> Welcome:
        """What to answer to Hello."""
        return self._welcome

    async def deliver(self, sequence: int, report: HardwareReport) -> None:
        """Duplicates count as delivered; a stream that a newer one has replaced is refused."""
        if self._adapter.stream is not self:
            text = f"this stream of adapter {self._adapter.name} is over: a newer one has taken over"
            raise FtError(Reason.STALE_INCARNATION, text)
        if sequence and sequence <= self.sequence:
            return
        self.sequence = max(self.sequence, sequence)
        self._desk.take(self._adapter, report)

    def detach(self) -> None:
        """The stream has ended."""
        if self._adapter.stream is self:
            self._desk.lost(self._adapter)


class Adapter:
    """One adapter: its newest start, its newest stream, and all that it says."""

    def __init__(self, hello: AdapterHello) -> None:
        self.name = hello.reporter_id
        self.incarnation = hello.incarnation
        self.number = hello.incarnation_number
        self.stream: AdapterAttachment | None = None
        self.connected = False
        self.replaced = False
        self.sources: frozenset[str] = frozenset()
        self.faults: dict[FaultKey, HardwareFault] = {}
        self._told = False
        self._broken: frozenset[SourceState] = frozenset()
        self._broken_at: defaultdict[str, list[SourceState]] = defaultdict(list)

    def replace_sources(self, sources: Collection[SourceState]) -> None:
        """The sources as a snapshot has them."""
        self.sources = frozenset(source.source for source in sources if not source.node)
        before, self._told = self._broken, True
        self._broken = frozenset(source for source in sources if source.problem)
        self._broken_at.clear()
        for source in sorted(self._broken, key=lambda source: (source.node, source.source)):
            self._broken_at[source.node].append(source)
        if new := self._broken - before:
            named = sorted(f"{source.source} {source.node}: {source.problem}" for source in new)
            log.warning("hardware sources do not work", adapter=self.name, count=len(new), first=named[:_NAMED])

    def denies(self, node: str) -> bool:
        """It has told everything of the node: what it did not name then was not there."""
        return self._told and not self._broken_for(node)

    def doubts(self, fault: HardwareFault) -> bool:
        """None of the sources that showed the fault works: that they do not show it any more says nothing."""
        broken = {source.source for source in self._broken_for(fault.node)}
        return bool(fault.sources) and broken.issuperset(fault.sources)

    def shows(self, fault: HardwareFault) -> bool:
        """It would name the fault if it were there: every source that has shown it works here."""
        broken = {source.source for source in self._broken_for(fault.node)}
        return bool(fault.sources) and (self.sources - broken).issuperset(fault.sources)

    def replaces(self, gone: "Adapter") -> bool:
        """It reads all that the other one has read, of which nothing is left."""
        return self._told and not gone.faults and gone.sources <= self.sources

    def leave(self) -> None:
        """It is not missed any more."""
        self.replace_sources(())
        self.replaced, self._told = True, False

    @property
    def missed(self) -> bool:
        """It is gone, and no other adapter stands in for it."""
        return not (self.connected or self.replaced)

    def problems(self, nodes: Iterable[str]) -> Iterator[str]:
        """Why it is not to be believed for these nodes."""
        if self.missed:
            yield f"adapter {self.name} is gone, its faults are kept"
        for source in self._broken_for(*sorted(nodes)):
            yield f"{source.source} {source.node}".rstrip() + f": {source.problem}"

    def _broken_for(self, *nodes: str) -> list[SourceState]:
        """Sources that are broken as a whole, or for one of these nodes."""
        return [source for node in ("", *nodes) for source in self._broken_at.get(node, ())]

    @property
    def trouble(self) -> int:
        """How many things are wrong with it."""
        return len(self._broken) + self.missed


class _Held:
    """One fault: what each adapter says of it."""

    def __init__(self) -> None:
        self.said: dict[str, HardwareFault] = {}

    @property
    def names(self) -> set[str]:
        """All names of its node that are used now."""
        return {name for fault in self.said.values() for name in (fault.node, fault.node_ip) if name}

    @property
    def merged(self) -> HardwareFault | None:
        """The gravest; None when nobody says it any more."""
        return max(self.said.values(), key=lambda fault: fault.level.severity, default=None)


class HardwareDesk:
    """All hardware faults of the cluster by node; tells each watcher of the changes on its own nodes, and no other."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._adapters: dict[str, Adapter] = {}
        self._held: dict[FaultKey, _Held] = {}
        self._by_node: defaultdict[str, set[FaultKey]] = defaultdict(set)
        self._watchers: defaultdict[str, set[Watcher]] = defaultdict(set)
        self._watched: dict[Watcher, frozenset[str]] = {}

    # --- instances ---

    def watch(self, watcher: Watcher, nodes: frozenset[str]) -> list[HardwareFault]:
        """Tell of changes on these nodes from now on, in place of earlier ones; returns what is there."""
        self.unwatch(watcher)
        self._watched[watcher] = nodes
        for node in nodes:
            self._watchers[node].add(watcher)
        keys = {key for node in nodes for key in self._by_node.get(node, ())}
        return [fault for key in keys if (fault := self._held[key].merged) is not None]

    def unwatch(self, watcher: Watcher) -> None:
        """Tell nothing any more."""
        for node in self._watched.pop(watcher, ()):
            self._watchers[node].discard(watcher)
            if not self._watchers[node]:
                del self._watchers[node]

    def heard(self, nodes: frozenset[str]) -> bool:
        """Of each of these nodes an adapter that is there has told everything."""
        there = [adapter for adapter in self._adapters.values() if adapter.connected]
        return all(any(adapter.denies(node) for adapter in there) for node in nodes)

    def problems(self, nodes: frozenset[str]) -> str:
        """Why what is known of these nodes may be incomplete, for people; empty when there is no reason."""
        return "; ".join(text for adapter in self._adapters.values() for text in adapter.problems(nodes))

    # --- adapters ---

    def welcomed(self, reporter_id: str) -> bool:
        """The adapter has said Hello to this Controller."""
        return reporter_id in self._adapters

    def attach(self, hello: AdapterHello, welcome: Welcome) -> AdapterAttachment:
        """Admit an adapter; raises STALE_INCARNATION for an older start of it."""
        adapter = self._adapters.get(hello.reporter_id)
        if adapter is None:
            if len(self._adapters) >= MAX_ADAPTERS:
                self._adapters = {name: known for name, known in self._adapters.items() if not known.replaced}
            if len(self._adapters) >= MAX_ADAPTERS:
                known = ", ".join(sorted(self._adapters))
                text = f"{MAX_ADAPTERS} adapters are known ({known}): give yours a name that stays, or end some of them"
                raise FtError(Reason.OVERLOADED, text)
            adapter = self._adapters[hello.reporter_id] = Adapter(hello)
        if hello.incarnation_number < adapter.number:
            raise FtError(
                Reason.STALE_INCARNATION,
                f"adapter {adapter.name} has started again since (start {adapter.number} is known)",
                got=hello.incarnation_number,
                current=adapter.number,
            )
        sequence = adapter.stream.sequence if adapter.stream else 0
        if adapter.incarnation != hello.incarnation:  # it counts anew: sequences, and occurrences of faults
            sequence = 0
            adapter.faults = {key: replace(fault, occurrence=0) for key, fault in adapter.faults.items()}
        stream = AdapterAttachment(self, adapter, welcome, sequence)
        adapter.stream, adapter.connected, adapter.replaced = stream, True, False
        adapter.incarnation, adapter.number = hello.incarnation, hello.incarnation_number
        log.info("hardware adapter connected", adapter=adapter.name)
        self._count()
        return stream

    def lost(self, adapter: Adapter) -> None:
        """Its stream has ended; what it said stays."""
        adapter.connected = False
        log.warning("hardware adapter is gone, its faults are kept", adapter=adapter.name, faults=len(adapter.faults))
        self._count()

    def take(self, adapter: Adapter, report: HardwareReport) -> None:
        """Take in one report; raises FtError for one that is refused, changing nothing."""
        match report:
            case Heartbeat():
                self._take_over(adapter)
            case HardwareFault():
                self._check_room(adapter, report)
                self._told(adapter, report.key, report, new=adapter.denies(report.node))
            case HardwareCleared():
                self._say(adapter, report.key, None, new=False)
            case HardwareSnapshot():
                self._replace(adapter, report)
                self._take_over(adapter)
            case _:
                assert_never(report)
        self._count()

    def _take_over(self, live: Adapter) -> None:
        """Of adapters that are gone, what one that is there would show is what it does show."""
        for gone in [adapter for adapter in self._adapters.values() if adapter.missed]:
            for key in [key for key, fault in gone.faults.items() if live.shows(fault)]:
                self._say(gone, key, None, new=False)
            if live.replaces(gone):
                log.warning("hardware adapter was replaced", adapter=gone.name, successor=live.name)
                gone.leave()

    def _check_room(self, adapter: Adapter, fault: HardwareFault) -> None:
        if fault.key in adapter.faults:
            return
        if len(adapter.faults) >= MAX_FAULTS or len(self._by_node.get(fault.node, ())) >= MAX_FAULTS_PER_NODE:
            raise FtError(Reason.OVERLOADED, _too_many(fault.node))

    def _replace(self, adapter: Adapter, snapshot: HardwareSnapshot) -> None:
        """Everything that the adapter said before is replaced, but for what its broken sources said."""
        if max(len(snapshot.faults), len(snapshot.sources)) > MAX_FAULTS:
            raise FtError(Reason.OVERLOADED, f"more than {MAX_FAULTS} faults or sources of one adapter are not kept")
        snapshot = _gravest(snapshot)
        known_before = {node: adapter.denies(node) for node in {fault.node for fault in snapshot.faults}}
        adapter.replace_sources(snapshot.sources)
        told = {fault.key: fault for fault in snapshot.faults}
        for key, fault in list(adapter.faults.items()):
            if key not in told:
                kept = replace(fault, stale=True) if adapter.doubts(fault) else None
                self._say(adapter, key, kept, new=False)
        for key, fault in told.items():
            self._told(adapter, key, fault, new=known_before[fault.node])

    def _told(self, adapter: Adapter, key: FaultKey, fault: HardwareFault, *, new: bool) -> None:
        """A fault that has ended and returned since it was reported last has ended first."""
        if (known := adapter.faults.get(key)) and 0 < known.occurrence != fault.occurrence:
            self._say(adapter, key, None, new=False)
            new = True
        self._say(adapter, key, fault, new=new)

    def _say(self, adapter: Adapter, key: FaultKey, fault: HardwareFault | None, *, new: bool) -> None:
        """Note what one adapter says of one fault, and tell the watchers on its node if that changes anything."""
        if fault is not None:
            adapter.faults[key] = fault
        elif adapter.faults.pop(key, None) is None:
            return
        held = self._held.setdefault(key, _Held())
        before, names = held.merged, held.names
        if fault is None:
            del held.said[adapter.name]
        else:
            held.said[adapter.name] = fault
        after = held.merged
        self._index(key, held, names)
        if after != before:
            for watcher in {watcher for name in names | held.names for watcher in self._watchers.get(name, ())}:
                watcher.hardware_changed(key, after, new=new and before is None)

    def _index(self, key: FaultKey, held: _Held, names: set[str]) -> None:
        """Find the fault by all names of its node, and no longer by those that are not used any more."""
        for name in held.names - names:
            self._by_node[name].add(key)
        for name in names - held.names:
            self._by_node[name].discard(key)
            if not self._by_node[name]:
                del self._by_node[name]
        if not held.said:
            del self._held[key]

    def _count(self) -> None:
        adapters = self._adapters.values()
        connected = sum(adapter.connected for adapter in adapters)
        self._observer.hardware(connected, sum(adapter.trouble for adapter in adapters), len(self._held))


def _gravest(snapshot: HardwareSnapshot) -> HardwareSnapshot:
    """Of each node so many as are kept, the gravest first; of a node with more nobody has told everything."""
    counts: Counter[str] = Counter()
    kept: list[HardwareFault] = []
    for fault in sorted(snapshot.faults, key=lambda fault: -fault.level.severity):
        counts[fault.node] += 1
        if counts[fault.node] <= MAX_FAULTS_PER_NODE:
            kept.append(fault)
    crowded = [SourceState("limit", node, _too_many(node)) for node in counts if counts[node] > MAX_FAULTS_PER_NODE]
    return replace(snapshot, faults=tuple(kept), sources=(*snapshot.sources, *crowded))


def _too_many(node: str) -> str:
    return f"more than {MAX_FAULTS_PER_NODE} faults of node {node}, or {MAX_FAULTS} of one adapter, are not kept"
