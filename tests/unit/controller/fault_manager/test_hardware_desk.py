"""What adapters say is kept once, told to those whose nodes it concerns, and bounded (protocol.md section 2)."""

from dataclasses import dataclass, field, replace

import pytest

from controller.core.reports import AdapterHello, HardwareCleared, HardwareReport, HardwareSnapshot, Heartbeat
from controller.fault_manager.environment import Settings
from controller.fault_manager.hardware import (
    MAX_ADAPTERS,
    MAX_FAULTS,
    MAX_FAULTS_PER_NODE,
    AdapterAttachment,
    HardwareDesk,
)
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.hardware import FaultKey, FaultLevel, HardwareFault, SourceState

DEVICE, QUERY = "cm-device", "clusterd-query"


def card(number: int = 0, node: str = "node-a", *, level: FaultLevel = FaultLevel.L6, code: str = "A") -> HardwareFault:
    """A fault that both sources show."""
    return HardwareFault(node, f"npu-{number}", code, level, node_ip=f"ip-of-{node}", sources=(QUERY, DEVICE))


@dataclass(eq=False)
class Watcher:
    """hardware.Watcher that remembers."""

    told: list[tuple[FaultKey, HardwareFault | None, bool]] = field(default_factory=list)

    def hardware_changed(self, key: FaultKey, fault: HardwareFault | None, *, new: bool) -> None:
        self.told.append((key, fault, new))

    def faults(self) -> list[HardwareFault | None]:
        """What was told since the last time."""
        told, self.told = self.told, []
        return [fault for _, fault, _ in told]


class World:
    """A desk, somebody who watches node-a, and adapters."""

    def __init__(self) -> None:
        self.counts = (0, 0, 0)
        self.desk = HardwareDesk(self)
        self.watcher = Watcher()
        assert self.desk.watch(self.watcher, frozenset({"node-a"})) == []
        self._sequence = 0

    def hardware(self, adapters: int, problems: int, faults: int) -> None:
        self.counts = (adapters, problems, faults)

    def attach(self, name: str = "adapter", incarnation: str = "one", number: int = 1) -> AdapterAttachment:
        hello = AdapterHello(name, incarnation, number, None)
        return self.desk.attach(hello, Settings().welcome(7))

    async def tell(self, stream: AdapterAttachment, *reports: HardwareReport) -> None:
        for report in reports:
            self._sequence += 1
            await stream.deliver(self._sequence, report)

    def known(self, *nodes: str) -> list[HardwareFault]:
        """What somebody new is told of these nodes."""
        other = Watcher()
        found = self.desk.watch(other, frozenset(nodes))
        self.desk.unwatch(other)
        return sorted(found, key=lambda fault: fault.key)


async def test_an_adapter_belongs_to_no_instance() -> None:
    welcome = World().attach().welcome
    assert (welcome.instance_id, welcome.generation, welcome.controller_epoch) == (0, 0, 7)


async def test_a_fault_its_changes_and_its_end_are_told_once_each() -> None:
    world = World()
    stream = world.attach()
    graver = replace(card(), level=FaultLevel.L6, raw_level="SeparateNPU")
    await world.tell(stream, card(), card(), replace(card(), age_sec=9.0), graver, Heartbeat(()))
    await world.tell(stream, HardwareCleared(card().key), HardwareCleared(card().key))
    assert world.watcher.faults() == [card(), graver, None]
    assert world.counts == (1, 0, 0)


async def test_only_the_watchers_of_a_node_by_name_or_by_address_are_told() -> None:
    world = World()
    by_address, elsewhere = Watcher(), Watcher()
    world.desk.watch(by_address, frozenset({"ip-of-node-a", "node-a"}))
    world.desk.watch(elsewhere, frozenset({"node-b"}))
    await world.tell(world.attach(), card())
    assert (world.watcher.faults(), by_address.faults(), elsewhere.faults()) == ([card()], [card()], [])
    assert world.known("ip-of-node-a") == world.known("node-a", "ip-of-node-a") == [card()]
    assert world.known("node-b") == []


async def test_a_node_is_known_by_the_address_that_it_has_now() -> None:
    """However many it has had."""
    world = World()
    moved = [replace(card(), node_ip=f"ip-{number}") for number in range(3)]
    by_old_address = Watcher()
    world.desk.watch(by_old_address, frozenset({"ip-0"}))
    await world.tell(world.attach(), *moved)
    assert by_old_address.faults() == moved[:2]
    assert [world.known(name) for name in ("ip-0", "ip-1", "ip-2", "node-a")] == [[], [], moved[2:], moved[2:]]


async def test_a_watcher_may_change_its_nodes_and_leave() -> None:
    world = World()
    stream = world.attach()
    world.desk.watch(world.watcher, frozenset({"node-b"}))
    await world.tell(stream, card(), card(1, "node-b"))
    assert world.watcher.faults() == [card(1, "node-b")]
    world.desk.unwatch(world.watcher)
    world.desk.unwatch(world.watcher)
    await world.tell(stream, card(2, "node-b"))
    assert world.watcher.faults() == []


async def test_a_snapshot_replaces_what_its_adapter_said_and_nothing_of_another() -> None:
    world = World()
    first, second = world.attach("first"), world.attach("second")
    await world.tell(first, card(0), card(1))
    await world.tell(second, card(2))
    world.watcher.faults()
    await world.tell(first, HardwareSnapshot((card(1), card(3)), ()))
    assert [(key.cards, fault is None) for key, fault, _ in world.watcher.told] == [("0.", True), ("3.", False)]
    assert world.known("node-a") == [card(1), card(2), card(3)]


async def test_a_fault_holds_while_any_adapter_says_so_at_the_gravest_level_said() -> None:
    world = World()
    first, second = world.attach("first"), world.attach("second")
    low = card(level=FaultLevel.L3)
    await world.tell(first, low)
    await world.tell(second, card())
    assert world.watcher.faults() == [low, card()]
    await world.tell(first, HardwareCleared(card().key))
    assert world.watcher.faults() == []
    await world.tell(second, HardwareCleared(card().key))
    assert world.watcher.faults() == [None]


@pytest.mark.parametrize(
    ("broken", "kept"),
    [
        ({DEVICE: "", QUERY: ""}, False),
        ({DEVICE: "", QUERY: "is down"}, False),
        ({DEVICE: "is down", QUERY: "is down"}, True),
        ({"cm-node": "is down"}, False),
    ],
)
async def test_what_a_snapshot_lacks_is_over_unless_no_source_that_showed_it_works(
    broken: dict[str, str], kept: bool
) -> None:
    """The sources of an adapter that has just started have not answered yet."""
    world = World()
    stream = world.attach()
    await world.tell(stream, card())
    world.watcher.faults()
    sources = tuple(SourceState(source, "", problem) for source, problem in broken.items())
    await world.tell(stream, HardwareSnapshot((), sources))
    assert world.watcher.faults() == ([replace(card(), stale=True)] if kept else [None])
    await world.tell(stream, HardwareSnapshot((), ()))
    assert world.known("node-a") == []


async def test_a_source_may_be_broken_for_one_node_only() -> None:
    world = World()
    stream = world.attach()
    await world.tell(stream, card(0), card(0, "node-b"))
    down = tuple(SourceState(source, "node-b", "nothing was written") for source in (DEVICE, QUERY))
    await world.tell(stream, HardwareSnapshot((), down))
    assert world.known("node-a", "node-b") == [replace(card(0, "node-b"), stale=True)]
    assert world.desk.problems(frozenset({"node-a"})) == ""
    assert "cm-device node-b: nothing was written" in world.desk.problems(frozenset({"node-b"}))
    assert world.counts == (1, 2, 1)


async def test_a_fault_without_sources_is_over_when_a_snapshot_lacks_it() -> None:
    world = World()
    stream = world.attach()
    await world.tell(stream, replace(card(), sources=()), HardwareSnapshot((), (SourceState(DEVICE, "", "down"),)))
    assert world.known("node-a") == []


async def test_a_fault_is_new_when_its_adapter_has_said_before_that_it_is_not_there() -> None:
    """What the first snapshot names may be older than this Controller, and so may be what an unsure one lacked."""
    world = World()
    stream = world.attach()
    unsure = SourceState(DEVICE, "node-a", "has not answered yet")
    await world.tell(stream, card(0), HardwareSnapshot((card(0), card(1)), (unsure,)), card(2))
    await world.tell(stream, HardwareSnapshot((card(0), card(1), card(2), card(3)), ()))
    assert [new for _, _, new in world.watcher.told] == [False] * 4
    await world.tell(stream, card(4), HardwareSnapshot((card(5),), ()))
    told = {key.cards: new for key, fault, new in world.watcher.told if fault is not None}
    assert (told["4."], told["5."]) == (True, True)


async def test_a_fault_that_has_returned_is_new_though_its_end_was_never_told() -> None:
    """Of the same start of the adapter: another start counts anew."""
    world = World()
    stream = world.attach()
    first, second, third = (replace(card(), occurrence=number) for number in (1, 2, 3))
    await world.tell(stream, first, first)
    assert world.watcher.told == [(card().key, first, False)]
    await world.tell(stream, second, HardwareSnapshot((third,), ()))
    returned = [(card().key, each, each is not None) for each in (None, second, None, third)]
    assert world.watcher.told[1:] == returned
    await world.tell(world.attach(incarnation="two", number=2), HardwareSnapshot((first,), ()), first)
    assert world.watcher.told[5:] == [(card().key, first, False)]


async def test_what_another_adapter_already_said_is_not_new() -> None:
    world = World()
    first, second = world.attach("first"), world.attach("second")
    await world.tell(second, HardwareSnapshot((), ()))
    await world.tell(first, card(level=FaultLevel.L2))
    await world.tell(second, card())
    assert [new for _, _, new in world.watcher.told] == [False, False]


async def test_a_stream_takes_over_from_the_older_one_and_goes_on_with_its_sequence() -> None:
    world = World()
    old = world.attach()
    await old.deliver(5, card(0))
    new = world.attach()
    with pytest.raises(FtError) as refused:
        await old.deliver(6, card(1))
    assert refused.value.reason is Reason.STALE_INCARNATION
    old.detach()
    assert world.counts[0] == 1
    await new.deliver(5, card(2))
    await new.deliver(6, card(3))
    assert world.known("node-a") == [card(0), card(3)]


async def test_a_new_start_counts_anew_and_an_older_start_is_refused() -> None:
    world = World()
    await world.attach(number=2).deliver(5, card(0))
    await world.attach(incarnation="two", number=3).deliver(1, card(1))
    assert world.known("node-a") == [card(0), card(1)]
    with pytest.raises(FtError) as refused:
        world.attach(number=2)
    assert (refused.value.reason, refused.value.metadata) == (
        Reason.STALE_INCARNATION,
        {"got": "2", "current": "3"},
    )


async def test_a_vanished_adapter_is_a_problem_until_it_is_back_and_its_faults_stay() -> None:
    world = World()
    stream = world.attach()
    await world.tell(stream, card())
    stream.detach()
    assert world.counts == (0, 1, 1)
    assert world.desk.problems(frozenset()) == "adapter adapter is gone, its faults are kept"
    assert world.known("node-a") == [card()]
    world.attach()
    assert (world.counts, world.desk.problems(frozenset())) == ((1, 0, 1), "")


def sources(*names: str, broken: str = "", node: str = "") -> tuple[SourceState, ...]:
    """All of these work, but for one that is broken, perhaps only for a node."""
    problems = (SourceState(broken, node, "is down"),) if broken else ()
    return *(SourceState(name, "", "") for name in names), *problems


@pytest.mark.parametrize("speaks_last", [True, False])
async def test_what_a_vanished_adapter_said_is_over_when_another_would_show_it_and_does_not(speaks_last: bool) -> None:
    """It comes back under another name, as a pod does that was made anew, before or after the older one is gone."""
    world = World()
    old, new = world.attach("old"), world.attach("new")
    await world.tell(old, HardwareSnapshot((card(0), card(1)), sources(QUERY, DEVICE)))
    if speaks_last:
        await world.tell(new, HardwareSnapshot((card(1),), sources(QUERY, DEVICE)))
    assert world.known("node-a") == [card(0), card(1)]
    old.detach()
    assert world.counts == (1, 1, 2)
    if not speaks_last:
        await world.tell(new, HardwareSnapshot((card(1),), sources(QUERY, DEVICE)))
    await world.tell(new, Heartbeat(()))
    assert world.known("node-a") == [card(1)]
    assert (world.counts, world.desk.problems(frozenset({"node-a"}))) == ((1, 0, 1), "")
    await world.tell(new, card(0))
    assert world.watcher.told[-1] == (card(0).key, card(0), True)


@pytest.mark.parametrize(
    "other",
    [
        sources(QUERY),
        sources(QUERY, DEVICE, broken=DEVICE),
        sources(QUERY, DEVICE, broken=DEVICE, node="node-a"),
        (),
    ],
    ids=["a source is missing", "broken", "broken for the node", "nothing is said of sources"],
)
async def test_what_a_vanished_adapter_said_stays_while_nobody_else_would_show_it(
    other: tuple[SourceState, ...],
) -> None:
    world = World()
    old, new = world.attach("old"), world.attach("new")
    await world.tell(old, HardwareSnapshot((card(),), sources(QUERY, DEVICE)))
    old.detach()
    await world.tell(new, HardwareSnapshot((), other), Heartbeat(()))
    assert world.known("node-a") == [card()]
    assert "adapter old is gone, its faults are kept" in world.desk.problems(frozenset())


async def test_an_adapter_without_faults_is_missed_until_its_sources_are_read_by_another() -> None:
    world = World()
    old, new = world.attach("old"), world.attach("new")
    await world.tell(old, HardwareSnapshot((), sources(QUERY, DEVICE, broken=DEVICE)))
    old.detach()
    await world.tell(new, HardwareSnapshot((), sources(QUERY)))
    assert world.counts == (1, 2, 0)
    await world.tell(new, HardwareSnapshot((), sources(QUERY, DEVICE)))
    assert world.counts == (1, 0, 0)
    again = world.attach("old")
    await world.tell(again, card())
    assert world.watcher.told == [(card().key, card(), False)], "it has not said yet what was there before"
    again.detach()
    assert world.counts == (1, 1, 1)


async def test_adapters_that_were_replaced_do_not_fill_the_limit() -> None:
    world = World()
    for number in range(2 * MAX_ADAPTERS):
        stream = world.attach(f"adapter-{number}")
        await world.tell(stream, HardwareSnapshot((), sources(DEVICE)))
        stream.detach()
    assert world.counts == (0, 1, 0)


async def test_adapters_beyond_the_limit_are_refused_by_name() -> None:
    world = World()
    for number in range(MAX_ADAPTERS):
        world.attach(f"adapter-{number}")
    with pytest.raises(FtError, match=r"adapters are known \(adapter-0, ") as refused:
        world.attach("one more")
    assert refused.value.reason is Reason.OVERLOADED
    world.attach("adapter-0")


async def test_a_node_has_a_limit_that_refuses_the_new_and_takes_every_change_and_end() -> None:
    world = World()
    stream = world.attach()
    full = [card(0, code=f"{number:X}A") for number in range(MAX_FAULTS_PER_NODE)]
    await world.tell(stream, HardwareSnapshot(tuple(full), ()))
    with pytest.raises(FtError) as refused:
        await world.tell(stream, card(1))
    assert refused.value.reason is Reason.OVERLOADED
    assert world.counts == (1, 0, MAX_FAULTS_PER_NODE)
    await world.tell(stream, replace(full[0], level=FaultLevel.L1), HardwareCleared(full[1].key), card(1))
    await world.tell(stream, card(1, "node-b"))
    assert world.counts == (1, 0, MAX_FAULTS_PER_NODE + 1)


async def test_of_a_node_with_too_many_faults_the_gravest_are_kept_and_the_rest_shows_as_a_problem() -> None:
    """No other node's fault is lost for it."""
    world = World()
    light = [card(0, code=f"{number:X}A", level=FaultLevel.L1) for number in range(MAX_FAULTS_PER_NODE + 9)]
    await world.tell(world.attach(), HardwareSnapshot((*light, card(1), card(1, "node-b")), ()))
    assert len(world.known("node-a")) == MAX_FAULTS_PER_NODE
    assert card(1) in world.known("node-a")
    assert world.known("node-b") == [card(1, "node-b")]
    assert "more than 1024 faults of node node-a" in world.desk.problems(frozenset({"node-a"}))
    assert world.desk.problems(frozenset({"node-b"})) == ""


async def test_an_adapter_has_a_limit_of_sources_too() -> None:
    world = World()
    sources = tuple(SourceState(DEVICE, f"node-{number}", "down") for number in range(MAX_FAULTS + 1))
    with pytest.raises(FtError) as refused:
        await world.tell(world.attach(), HardwareSnapshot((), sources))
    assert refused.value.reason is Reason.OVERLOADED
    assert world.counts == (1, 0, 0)


async def test_nothing_is_left_of_faults_that_are_over() -> None:
    world = World()
    stream = world.attach()
    await world.tell(stream, *(card(number, f"node-{number}") for number in range(50)))
    await world.tell(stream, HardwareSnapshot((), ()))
    assert world.known(*(f"node-{number}" for number in range(50))) == []
    assert world.counts == (1, 0, 0)
