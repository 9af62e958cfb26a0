"""A Controller that passes a point at the begin of a scale-down and after each of its effects, and before a rebuild.

While it is stopped the clock of its lease stands still, as when the whole machine is paused: it wakes up as a leader.
"""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from controller import app, recoveries
from controller.__main__ import main
from controller.core import effects as fx
from controller.core.ports import StrategyResult
from controller.strategies.dp_scale_down import DpScaleDownStrategy
from controller.strategies.instance_reconfiguration import InstanceReconfiguration
from motor_ft.model.errors import FtError
from tests.support.killed import Pauses, passing


def points(effects: Sequence[fx.Effect]) -> list[str]:
    """Every point that a transaction with these effects passes, in order; a Watch is answered only when it ends."""
    counts = Counter[str]()
    return ["begin", *(_name(counts, effect) for effect in effects if not isinstance(effect, fx.Watch))]


def _name(counts: Counter[str], effect: fx.Effect) -> str:
    """Effects of a kind are numbered from 1."""
    kind = f"{type(effect).__name__} {getattr(effect, 'phase', '')}".rstrip()
    counts[kind] += 1
    return f"after {kind} {counts[kind]}"


class MortalScaleDown(DpScaleDownStrategy):
    """One transaction."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._counts = Counter[str]()

    async def _answer(self, effect: fx.Effect) -> fx.Event | FtError | None:
        passing("begin")
        point = _name(self._counts, effect)
        answer = await super()._answer(effect)
        passing(point)
        return answer


class MortalReconfiguration(InstanceReconfiguration):
    """One rebuild."""

    async def execute(self) -> StrategyResult:
        passing("rebuild")
        return await super().execute()


def _boot_time(clock: int) -> float:
    return time.clock_gettime(clock) - Pauses.total_sec


if __name__ == "__main__":
    vars(recoveries).update(DpScaleDownStrategy=MortalScaleDown, InstanceReconfiguration=MortalReconfiguration)
    vars(app).update(time=SimpleNamespace(**{**vars(time), "clock_gettime": _boot_time}))
    sys.exit(main())
