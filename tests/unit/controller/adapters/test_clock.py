"""The wall clock may be set at any time."""

import asyncio
from dataclasses import dataclass

import pytest

from controller.clock import LOOK_SEC, SHOWN_SEC, STEP_SEC, WallClock


@dataclass
class SetClock:
    """ports.Clock whose wall clock is ahead of the loop's."""

    ahead: float = 1_700_000_000.0

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return self.now() + self.ahead


class Steps:
    """A watch of that clock, what it has told, and what it showed when it said that this has changed."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.told: list[float] = []
        self.shown: list[tuple[str, ...]] = []
        self.wall = WallClock(self.clock, lambda: self.told.append(self.clock.now()), self._changed)

    def _changed(self) -> None:
        self.shown.append(self.wall.degraded)

    async def after(self, *changes: float) -> None:
        """Each change comes between two looks."""
        task = asyncio.create_task(self.wall.watch())
        await asyncio.sleep(0.5 * LOOK_SEC)
        for change in changes:
            self.clock.ahead += change
            await asyncio.sleep(LOOK_SEC)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.looptime
async def test_a_wall_clock_that_is_set_is_told_once_and_one_that_is_corrected_is_not() -> None:
    steps = Steps()
    await steps.after(0.0, STEP_SEC, 0.0, -3600.0, 0.0, 2 * STEP_SEC)
    assert len(steps.told) == 2


@pytest.mark.looptime
async def test_a_status_tells_of_a_clock_that_was_set_for_a_while() -> None:
    steps = Steps()
    await steps.after(-3600.0, 0.0)
    (text,) = steps.wall.degraded
    assert "set by -3600.0 s" in text
    assert steps.shown == [(text,)]
    steps = Steps()
    await steps.after(-3600.0, *(0.0 for _ in range(int(SHOWN_SEC / LOOK_SEC))))
    assert [bool(shown) for shown in steps.shown] == [True, False]
