"""The transition table: every step can be reached, every cell does something, every step can end."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import cast

import pytest

from controller.core import effects as fx
from controller.core.probe import CompletionProbe
from controller.core.transaction import RETRY_TABLE, TABLE, Step
from motor_ft.model.engine import EngineStatus, EvidenceSource
from tests.unit.controller.core.transaction.world import Run, retry, spec

Table = Mapping[Step, Mapping[type[fx.Event], object]]
ON, UNREACHABLE = CompletionProbe.ON, EvidenceSource.STATUS_UNREACHABLE
Edge = tuple[Step, type[fx.Event], Step]
"""From, event, to."""

FORWARD = [
    Step.BEGINNING,
    Step.GUARDING,
    Step.OBSERVING,
    Step.RECHECKING,
    Step.FREEZING,
    Step.WITHDRAWING,
    Step.ARMING,
    Step.APPLYING,
    Step.POLLING,
    Step.PROBING,
    Step.RELEASING,
    Step.RENEWING,
    Step.COMMITTING,
    Step.RECORDING,
    Step.CLEANING,
    Step.PUBLISHING,
    Step.DONE,
]
"""The order of recovery.md section 5."""


def walks(table: Table) -> Iterable[Run]:
    """Runs that together enter every step and use every cell."""
    start = retry(completion_probe=ON) if table is RETRY_TABLE else spec({1: UNREACHABLE}, completion_probe=ON)
    for step in (step for step in FORWARD if step in table):
        for event in (fx.Cancel("stop"), fx.Died(2, EvidenceSource.PROCESS_EXIT), fx.Tick()):
            run = Run(start).to(step)
            run.feed(event)
            yield run
            run.finish()
        for lost in (False, True):
            run = Run(start).to(step)
            if run.owed:
                run.lose(run.owed[0]) if lost else run.answer(run.owed[0])
            yield run
            run.finish()
    for step in {Step.RECHECKING, Step.FREEZING, Step.WITHDRAWING, Step.ARMING} & table.keys():
        recanting = Run(start).to(step)
        recanting.reading(2, EngineStatus.HEALTHY)
        recanting.push(2)
        yield recanting
    waiting = Run(start)
    waiting.reading(2, EngineStatus.DIAGNOSING)
    waiting.to(Step.OBSERVING)
    for _ in range(5):
        waiting.answer(waiting.owed[0]) if waiting.owed else waiting.push(2)
    yield waiting
    hanging = Run(start).hang().to(Step.POLLING)
    hanging.push(2)
    yield hanging


@pytest.fixture(scope="module", params=[TABLE, RETRY_TABLE], ids=["scale_down", "retry"])
def table(request: pytest.FixtureRequest) -> Table:
    """What each instruction may do."""
    return cast(Table, request.param)


@pytest.fixture(scope="module")
def edges(table: Table) -> frozenset[Edge]:
    """Everything that the walks used."""
    found: set[Edge] = set()
    for run in walks(table):
        run.finish()
        found |= run.cells
    return frozenset(edge for edge in found if edge[1] in table[edge[0]])


def render(edges: Iterable[Edge]) -> str:
    """The table as text: one line per move."""
    lines: dict[tuple[Step, Step], set[str]] = defaultdict(set)
    for start, event, end in edges:
        lines[start, end].add(event.__name__)
    order = list(Step)
    moves = sorted(lines, key=lambda move: (order.index(move[0]), order.index(move[1])))
    return "\n".join(f"{start} -- {', '.join(sorted(lines[start, end]))} --> {end}" for start, end in moves)


def reachable(edges: Iterable[Edge], start: Step) -> set[Step]:
    """Steps that a walk from ``start`` can enter."""
    known, more = set(edges), {start}
    found: set[Step] = set()
    while more:
        found |= more
        more = {end for begin, _, end in known if begin in found} - found
    return found


def test_every_step_has_a_row_in_one_of_the_tables() -> None:
    assert TABLE.keys() | RETRY_TABLE.keys() == set(Step)


def test_every_step_is_reached_from_the_begin_and_every_step_can_end(table: Table, edges: frozenset[Edge]) -> None:
    assert reachable(edges, Step.BEGINNING) == table.keys(), render(edges)
    for step in table:
        assert Step.DONE in reachable(edges, step), f"{step} never ends:\n{render(edges)}"


def test_every_cell_of_the_table_is_used(table: Table, edges: frozenset[Edge]) -> None:
    cells = {(step, event) for step, row in table.items() for event in row}
    assert {(start, event) for start, event, _ in edges} == cells, render(edges)


def test_no_move_goes_back_except_to_abort(edges: frozenset[Edge]) -> None:
    """There is no second attempt: apply cannot be reached twice. Only reading begins anew, before anything is sent."""
    read_again = (Step.RECHECKING, fx.Observed, Step.OBSERVING)
    forward = {step: place for place, step in enumerate([*FORWARD[:-1], Step.ABORTING, Step.REVERTING, Step.DONE])}
    for start, event, end in edges - {read_again}:
        assert forward[start] <= forward[end], f"{start} -- {event.__name__} --> {end}"


def test_the_end_is_the_end(table: Table) -> None:
    assert table[Step.DONE] == {}
