"""A NodeManager that passes a point before and after each step of a transaction, named by its configuration file."""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from motor_ft.model.command import Command, ScaleDownPlan
from motor_ft.model.engine import EngineObservation, RankOutcome
from nodemanager import app
from nodemanager.__main__ import main
from nodemanager.core.applies import ApplyOrder
from nodemanager.core.ports import Target
from nodemanager.engines import EngineClient
from nodemanager.service import FtService, Grant
from tests.support.killed import passing

STEPS = (
    "before guard 1",
    "after guard 1",
    "after status 1",
    "after guard 2",
    "before send 1",
    "after send 1",
    "after apply 1",
    "after guard 3",
    "before finalize 1",
    "after finalize 1",
)
"""Guard with the plan is the second, the renewal before the commit the third. Before ``send`` the intent is in the
journal, after it the engines have answered, after ``apply`` their answers are in the journal too."""

_pod = Path(sys.argv[sys.argv.index("--config") + 1]).stem if "--config" in sys.argv else ""
_counts = Counter[str]()


class _Step:
    """``with _Step("guard"):`` around the work."""

    def __init__(self, name: str) -> None:
        _counts[name] += 1
        self._name = f"{name} {_counts[name]}"

    def __enter__(self) -> None:
        passing(f"{_pod} before {self._name}")

    def __exit__(self, *error: object) -> None:
        passing(f"{_pod} after {self._name}")


class MortalService(FtService):
    """The transaction as the pod carries it out."""

    async def guard(self, command: Command, lease_sec: float, plan: ScaleDownPlan | None) -> Grant:
        with _Step("guard"):
            return await super().guard(command, lease_sec, plan)

    async def status(self, ranks: Sequence[int]) -> tuple[EngineObservation, ...]:
        with _Step("status"):
            return await super().status(ranks)

    async def apply(self, command: Command, order: ApplyOrder) -> tuple[RankOutcome, ...]:
        with _Step("apply"):
            return await super().apply(command, order)

    async def finalize(self, command: Command, *, commit: bool, retired: Sequence[int]) -> tuple[int, ...]:
        with _Step("finalize"):
            return await super().finalize(command, commit=commit, retired=retired)


class MortalEngines(EngineClient):
    """The engines of the pod."""

    async def apply(
        self, command: Command, order: ApplyOrder, targets: Sequence[Target], *, lease_sec: float, timeout_sec: float
    ) -> tuple[RankOutcome, ...]:
        with _Step("send"):
            return await super().apply(command, order, targets, lease_sec=lease_sec, timeout_sec=timeout_sec)


if __name__ == "__main__":
    vars(app).update(FtService=MortalService, EngineClient=MortalEngines)
    sys.exit(main())
