"""A Controller whose scale-downs pass a point before their first effect and after every one."""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from controller import recoveries
from controller.__main__ import main
from controller.core import effects as fx
from controller.strategies.dp_scale_down import DpScaleDownStrategy
from motor_ft.model.errors import FtError
from tests.support.killed import passing


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


if __name__ == "__main__":
    vars(recoveries).update(DpScaleDownStrategy=MortalScaleDown)
    sys.exit(main())
