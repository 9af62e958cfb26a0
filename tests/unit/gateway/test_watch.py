"""What a watcher gets to see."""

import asyncio

from gateway.engines.poller import Watch
from motor_ft.model.engine import EngineObservation, EngineStatus, Problem


def healthy(number: int, rank: int = 0) -> EngineObservation:
    return EngineObservation(rank, EngineStatus.HEALTHY, "e1", number)


def unread(number: int, problem: Problem = Problem.UNREACHABLE) -> EngineObservation:
    return EngineObservation(0, EngineStatus.UNKNOWN, "e1", number, problem=problem)


async def drain(watch: Watch) -> list[int]:
    """Numbers of the readings that wait."""
    seen: list[int] = []
    while True:
        task = asyncio.create_task(watch.next())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if not task.done():
            task.cancel()
            return seen
        seen.append(task.result().observation)


async def test_the_first_reading_then_only_changes() -> None:
    watch = Watch(1, 1)
    watch.offer(healthy(1))
    assert await drain(watch) == [1]
    watch.offer(healthy(2))
    assert await drain(watch) == []
    watch.offer(EngineObservation(0, EngineStatus.DEAD, "e1", 3))
    assert await drain(watch) == [3]


async def test_every_failed_reading_is_shown_so_that_they_can_be_counted() -> None:
    watch = Watch(1, 1)
    for number in (1, 2, 3):
        watch.offer(unread(number))
        assert await drain(watch) == [number]


async def test_another_process_with_the_same_status_is_a_change() -> None:
    watch = Watch(1, 1)
    watch.offer(healthy(1))
    watch.offer(EngineObservation(0, EngineStatus.HEALTHY, "e2", 2))
    assert await drain(watch) == [2]


async def test_a_reading_that_started_earlier_never_replaces_a_later_one() -> None:
    watch = Watch(1, 1)
    watch.offer(EngineObservation(0, EngineStatus.DEAD, "e1", 6))
    watch.offer(healthy(5))
    assert await drain(watch) == [6]


async def test_a_slow_watcher_finds_the_newest_of_each_rank_and_no_more() -> None:
    watch = Watch(1, 1)
    for number in range(1, 1001):
        watch.offer(unread(number))
        watch.offer(healthy(number, rank=1))
    assert await drain(watch) == [1000, 1]
