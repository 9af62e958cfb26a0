"""No background task ends unnoticed, and none outlives its component."""

import asyncio

import pytest
from structlog.testing import capture_logs

from motor_ft.wire.tasks import Tasks


async def crash() -> None:
    raise RuntimeError("boom")


async def test_a_crash_is_logged_and_reported_with_the_name_of_the_task() -> None:
    crashes: list[tuple[str, BaseException]] = []
    tasks = Tasks("part", lambda name, error: crashes.append((name, error)))
    with capture_logs() as logs:
        task = tasks.spawn("worker", crash())
        with pytest.raises(RuntimeError, match="boom"):
            await task
    assert crashes == [("part/worker", task.exception())]
    assert [(line["log_level"], line["task"]) for line in logs] == [("error", "part/worker")]
    assert len(tasks) == 0


async def test_a_task_that_ends_is_no_crash() -> None:
    crashes: list[str] = []
    tasks = Tasks("part", lambda name, _: crashes.append(name))

    async def answer() -> int:
        return 42

    assert await tasks.spawn("worker", answer()) == 42
    assert crashes == []


async def test_close_cancels_and_awaits_every_task_also_new_ones() -> None:
    tasks = Tasks("part")
    ended: list[str] = []

    async def last() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("last")

    async def first(running: asyncio.Event) -> None:
        try:
            running.set()
            await asyncio.Event().wait()
        finally:
            tasks.spawn("last", last())
            await asyncio.sleep(0)
            ended.append("first")

    running = asyncio.Event()
    tasks.spawn("first", first(running))
    await running.wait()
    await tasks.close()
    assert ended == ["first", "last"]
    assert len(tasks) == 0


async def test_a_task_may_close_its_own_component() -> None:
    tasks = Tasks("part")

    async def closer() -> str:
        await tasks.close()
        return "closed"

    other = tasks.spawn("other", asyncio.Event().wait())
    assert await tasks.spawn("closer", closer()) == "closed"
    assert other.cancelled()
