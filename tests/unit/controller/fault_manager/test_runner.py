"""No instance ever has two strategies: the next one starts when the task of the last one is done and was reaped."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from controller.core.outcome import Outcome
from controller.core.ports import StrategyResult
from controller.fault_manager.runner import Runner
from motor_ft.model.engine import EvidenceSource
from motor_ft.wire.tasks import Tasks


class Waiting:
    """A strategy that ends when a test lets it."""

    name = "waiting"

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.told: list[object] = []

    async def execute(self) -> StrategyResult:
        await self.may_end.wait()
        return StrategyResult(Outcome.CANCELLED)

    def died(self, rank: int, source: EvidenceSource) -> None:
        self.told.append((rank, source))

    def stop(self, reason: str) -> None:
        self.told.append(reason)


@pytest_asyncio.fixture(name="tasks")
async def _tasks() -> AsyncIterator[Tasks]:
    tasks = Tasks("test")
    yield tasks
    await tasks.close()


async def test_a_second_strategy_does_not_start_before_the_first_was_reaped(tasks: Tasks) -> None:
    ended = asyncio.Event()
    runner, first = Runner(1, tasks, ended.set), Waiting()
    runner.start(first)
    with pytest.raises(RuntimeError, match="waiting may not start beside waiting"):
        runner.start(Waiting())
    assert runner.reap() is None
    first.may_end.set()
    await ended.wait()
    with pytest.raises(RuntimeError):
        runner.start(Waiting())
    assert runner.reap() == ("waiting", StrategyResult(Outcome.CANCELLED))
    assert (runner.name, runner.reap()) == (None, None)
    runner.start(Waiting())
    assert len(tasks) == 1


async def test_a_strategy_is_asked_to_end_once_and_the_next_one_anew(tasks: Tasks) -> None:
    ended = asyncio.Event()
    runner, first, second = Runner(1, tasks, ended.set), Waiting(), Waiting()
    runner.start(first)
    runner.stop("first reason")
    runner.stop("second reason")
    runner.died(3, EvidenceSource.PROCESS_EXIT)
    first.may_end.set()
    await ended.wait()
    runner.reap()
    runner.start(second)
    runner.stop("again")
    assert first.told == ["first reason", (3, EvidenceSource.PROCESS_EXIT)]
    assert second.told == ["again"]


async def test_without_a_strategy_nobody_is_told(tasks: Tasks) -> None:
    runner = Runner(1, tasks, lambda: None)
    runner.stop("nothing runs")
    runner.died(0, EvidenceSource.PROCESS_EXIT)
    assert (runner.name, runner.reap()) == (None, None)
