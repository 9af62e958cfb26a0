"""The wall clock may be set at any time."""

import asyncio
from dataclasses import dataclass

import pytest

from controller.clock import LOOK_SEC, STEP_SEC, watch


@dataclass
class SetClock:
    """ports.Clock whose wall clock is ahead of the loop's."""

    ahead: float = 1_700_000_000.0

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return self.now() + self.ahead


@pytest.mark.looptime
async def test_a_wall_clock_that_is_set_is_told_once_and_one_that_is_corrected_is_not() -> None:
    clock, steps = SetClock(), list[float]()
    task = asyncio.create_task(watch(clock, lambda: steps.append(clock.now())))
    for change in (0.0, STEP_SEC, 0.0, -3600.0, 0.0, 2 * STEP_SEC):
        clock.ahead += change
        await asyncio.sleep(LOOK_SEC)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(steps) == 2
