"""Snapshots of an instance of four ranks, for the tables of decisions."""

from dataclasses import replace

from controller.core.correlation import Concern, Correlation
from controller.core.decision import Action, Snapshot
from controller.core.phases import Phase
from motor_ft.model.hardware import FaultLevel, HardwareFault
from motor_ft.model.topology import Role

CALM = Snapshot(
    phase=Phase.NORMAL,
    ready=True,
    strategy=None,
    automation_stopped=False,
    superseded=False,
    scale_down_enabled=True,
    active=frozenset({0, 1, 2, 3}),
    unhealthy=frozenset(),
    dead=frozenset(),
    collecting_since=None,
    collection_timeout_sec=60.0,
    in_service=True,
    correlation_window_sec=5.0,
    enabled=frozenset(Action) - {Action.FAST_RECOVERY},
    role=Role.PREFILL,
)
"""Nothing is wrong."""


def faulty(unhealthy: set[int], dead: set[int], *, since: float = 100.0) -> Snapshot:
    """Faults that are collected from second 100 to second 160."""
    return replace(CALM, unhealthy=frozenset(unhealthy), dead=frozenset(dead), collecting_since=since)


COMPLETE = faulty({0, 2, 3}, {1})


def concern(
    *ranks: int, level: FaultLevel = FaultLevel.L6, known: bool = True, transient: bool = False, code: str = "80E18402"
) -> Concern:
    """A card of these ranks is broken; its name says nothing when it is not ``known``."""
    fault = HardwareFault("node-a", f"Ascend910-{ranks[0]}", code, level)
    return Concern(fault, level, frozenset(ranks) if known else None, transient)


def hardware(*concerns: Concern, first: float | None = 10.0, noticed: bool = False, done: bool = False) -> Correlation:
    """``first``: when the hardware spoke, before the engines; ``done``: everything was done about it."""
    spent = {each.fault.key: each.level for each in concerns} if done else {}
    return Correlation({each.fault.key: each for each in concerns}, spent=spent, hardware_first=first, noticed=noticed)


def broken(*ranks: int, first: float | None = 10.0, noticed: bool = False, known: bool = True) -> Correlation:
    """One card of these ranks is broken."""
    return hardware(concern(*ranks, known=known), first=first, noticed=noticed)


TRANSIENT = concern(1, level=FaultLevel.L2, transient=True, code="0x08520003")
NAMED = "L6 80E18402 on Ascend910-1 of node-a (ranks [1])"
