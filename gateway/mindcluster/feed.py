"""The board's faults on their way to the Controller: what has changed since it was last told."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from gateway.mindcluster.core.board import Board
from gateway.mindcluster.core.slot import Times
from gateway.mindcluster.metrics import MindClusterMetrics
from motor_ft.model.hardware import FaultKey, FaultLevel, HardwareFault, SourceState
from motor_ft.v1 import fault_report_pb2
from motor_ft.v1.fault_report_pb2 import FaultReportRequest
from motor_ft.wire.hardware import hardware_cleared_to_pb, hardware_fault_to_pb, source_to_pb
from motor_ft.wire.log import get_logger
from motor_ft.wire.outbox import Outbox

TICK_SEC = 1.0
"""How soon what only time changes is noticed: staleness, and flapping faults that have lasted."""
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    """A fault that is new or has changed at a monotonic time, or is ``over``."""

    fault: HardwareFault
    at: float
    over: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotMark:
    """Stands in the outbox for everything, until it is sent."""


Item = Change | SnapshotMark


class Feed:
    """Compares the board with what was told, and queues the differences; ``touch`` says that the board has changed."""

    def __init__(
        self, board: Board, times: Callable[[], Times], metrics: MindClusterMetrics, *, outbox_limit: int = 512
    ) -> None:
        self.board = board
        self.outbox: Outbox[Item] = Outbox(outbox_limit, SnapshotMark())
        self.wake = asyncio.Event()
        self._outbox_limit = outbox_limit
        self._times = times
        self._metrics = metrics
        self._touched = asyncio.Event()
        self._told: dict[FaultKey, Change] = {}
        self._states: tuple[SourceState, ...] = ()
        self.refresh()

    @property
    def problems(self) -> list[str]:
        """Sources that do not work."""
        return [f"{state.source}: {state.problem}" for state in self._states if state.problem and not state.node]

    def touch(self) -> None:
        """The board has changed; several changes are told at once."""
        self._touched.set()

    async def run(self) -> None:
        """Queue what changes, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_SEC):
                    await self._touched.wait()
            self._touched.clear()
            self.refresh()

    def refresh(self) -> None:
        """Queue every difference between the board and what was told; a source that changes is told with a snapshot."""
        now = self._times()
        faults = self.board.faults(now)
        changes = {
            key: Change(fault, now.monotonic)
            for key, fault in faults.items()
            if key not in self._told or self._told[key].fault != fault
        }
        changes |= {key: replace(told, over=True) for key, told in self._told.items() if key not in faults}
        self._tell(changes)
        self._compare_states(self.board.states(now))
        self._count(faults)

    def message(self, sequence: int, item: Item, now: float) -> FaultReportRequest:
        """One numbered report; a snapshot is of the last refresh, so that what follows it follows from it."""
        if isinstance(item, SnapshotMark):
            snapshot = fault_report_pb2.Snapshot(
                hardware_faults=[_fault(told, now) for told in self._told.values()],
                hardware_sources=map(source_to_pb, self._states),
            )
            return FaultReportRequest(sequence=sequence, snapshot=snapshot)
        if item.over:
            return FaultReportRequest(sequence=sequence, hardware_cleared=hardware_cleared_to_pb(item.fault))
        return FaultReportRequest(sequence=sequence, hardware_fault=_fault(item, now))

    def _tell(self, changes: dict[FaultKey, Change]) -> None:
        """Queue what has changed; a storm is told with one snapshot, and logged with one line."""
        storm = len(changes) > self._outbox_limit
        for key, change in changes.items():
            if change.over:
                del self._told[key]
            else:
                self._told[key] = change
            if not storm:
                self.outbox.put(key, change)
                _log.info("hardware fault is over" if change.over else "hardware fault", **_fields(change.fault))
        if storm:
            self.outbox.request_snapshot()
            _log.warning("many hardware faults have changed at once", changes=len(changes), faults=len(self._told))
        if changes:
            self.wake.set()

    def _compare_states(self, states: tuple[SourceState, ...]) -> None:
        if states == self._states:
            return
        before, after = ({state for state in each if state.problem} for each in (self._states, states))
        for state in after - before:
            _log.warning("hardware source is not to be believed", **_fields(state))
        for state in before - after:
            _log.info("hardware source: the problem is over", **_fields(state))
        self._states = states
        self.outbox.request_snapshot()
        self.wake.set()

    def _count(self, faults: dict[FaultKey, HardwareFault]) -> None:
        levels = Counter(fault.level for fault in faults.values())
        for level in FaultLevel:
            self._metrics.faults.labels(level).set(levels[level])
        for state in self._states:
            if not state.node:
                self._metrics.working.labels(state.source).set(not state.problem)
        self._metrics.doubted.set(sum(bool(state.node) for state in self._states))


def _fault(change: Change, now: float) -> fault_report_pb2.HardwareFault:
    """The age is counted when the message is made."""
    return hardware_fault_to_pb(replace(change.fault, age_sec=change.fault.age_sec + now - change.at))


def _fields(record: HardwareFault | SourceState) -> dict[str, object]:
    return {name: value for name in record.__slots__ if (value := getattr(record, name))}
