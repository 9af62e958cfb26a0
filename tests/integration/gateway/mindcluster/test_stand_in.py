"""Two adapters as the Controller hears them: what the one that is left does not read it does not take back."""

from dataclasses import replace

import pytest

from controller.core.reports import AdapterHello, HardwareSnapshot, Heartbeat
from controller.fault_manager.environment import Settings
from controller.fault_manager.hardware import HardwareDesk
from gateway.mindcluster.core.board import Board, Place
from gateway.mindcluster.core.node import Condition, read_node
from gateway.mindcluster.core.observed import Observed, Reading, Source
from gateway.mindcluster.core.slot import Times
from motor_ft.model.hardware import FaultKey, FaultLevel, HardwareFault

NOW = Times(1_000.0, 1_800_000_000.0)
LOST = Condition("NT_NPU_CARD_LOSE", "True", FaultLevel.L5)


class Silent:
    """Watcher and Observer of the desk."""

    def hardware(self, adapters: int, problems: int, faults: int) -> None:
        pass

    def hardware_changed(self, key: FaultKey, fault: HardwareFault | None, *, new: bool) -> None:
        pass


async def left(gone: Board, stays: Board) -> list[str]:
    """Codes that hold when the first adapter has ended, and the second has spoken after that."""
    desk = HardwareDesk(Silent())
    streams = []
    for name, board in (("gone", gone), ("stays", stays)):
        streams.append(desk.attach(AdapterHello(name, "one", 1, None), Settings().welcome(1)))
        await streams[-1].deliver(1, HardwareSnapshot(tuple(board.faults(NOW).values()), board.states(NOW)))
    streams[0].detach()
    await streams[1].deliver(0, Heartbeat(()))
    return [fault.fault_code for fault in desk.watch(Silent(), frozenset({"node-a"}))]


def nodes(conditions: list[Condition], *, card_lost: str) -> Board:
    """An adapter that reads these conditions of the node."""
    board = Board([Source.NODE_READY], conditions=conditions)
    board.working(Source.NODE_READY)
    told = [{"type": "Ready", "status": "True"}, {"type": LOST.type, "status": card_lost}]
    found = read_node("node-a", {"status": {"conditions": told}}, conditions)
    board.take(Place(Source.NODE_READY, "node-a"), found.reading, NOW)
    return board


def switches(*faults: Observed) -> Board:
    """An adapter that reads the device plugin's ConfigMaps."""
    board = Board([Source.CM_DEVICE])
    board.working(Source.CM_DEVICE)
    board.take(Place(Source.CM_SWITCH, "node-a"), Reading(faults, complete=True), NOW)
    return board


@pytest.mark.parametrize(
    ("conditions", "codes"),
    [([LOST], []), ([], [LOST.type]), ([replace(LOST, bad_status="Unknown")], [LOST.type])],
    ids=["the same conditions", "none", "the same condition with another status"],
)
async def test_a_condition_is_taken_back_only_by_who_reads_it(conditions: list[Condition], codes: list[str]) -> None:
    assert await left(nodes([LOST], card_lost="True"), nodes(conditions, card_lost="False")) == codes


async def test_the_fault_of_a_switch_is_taken_back_by_another_reader_of_switches() -> None:
    """They are in the ConfigMap of the cards, which both have read."""
    fault = Observed("node-a", "", "[0x00f1fef5,155914,cpu,na]", FaultLevel.L6, "Separate", unit="1", port="2")
    assert await left(switches(fault), switches()) == []
    assert await left(switches(fault), switches(fault)) == [fault.code]
