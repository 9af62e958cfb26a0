"""What the NodeManager needs from the world; adapters implement these (architecture.md section 2)."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from motor_ft.model.command import Command
from motor_ft.model.engine import EngineObservation, RankOutcome, RankProbe
from nodemanager.core.applies import ApplyOrder
from nodemanager.core.guard import BootTime


class Clock(Protocol):
    """Time for decisions; never wall clock."""

    def now(self) -> float:
        """Monotonic seconds of this process."""
        ...

    def boot(self) -> BootTime:
        """Seconds since the machine booted: the clock of the lease."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """An engine that is meant, and the process that was behind it when it was meant."""

    rank: int
    incarnation: str


class Engines(Protocol):
    """The engines of this pod, whatever they speak (EngineService). Calls have deadlines and raise FtError."""

    async def status(self, targets: Sequence[Target], timeout_sec: float) -> tuple[EngineObservation, ...]:
        """Read each engine anew, in the asked order."""
        ...

    def watch(
        self, targets: Sequence[Target], interval_sec: float, timeout_sec: float
    ) -> AsyncGenerator[EngineObservation, None]:
        """Read again and again: every engine once, then changes and failures. Ends only with FtError."""
        ...

    async def apply(
        self,
        command: Command,
        order: ApplyOrder,
        targets: Sequence[Target],
        *,
        lease_sec: float,
        timeout_sec: float,
    ) -> tuple[RankOutcome, ...]:
        """Tell each target once, while the lease has ``lease_sec`` left. OUTCOME_UNKNOWN may have been sent."""
        ...

    async def probe(self, target: Target, timeout_sec: float) -> RankProbe:
        """Ask for one token, ``timeout_sec`` for each request to the engine."""
        ...


class Processes(Protocol):
    """The engine processes of this pod as far as this NodeManager supervises them."""

    async def watch_descendants(self) -> None:
        """From now on the exit of a matching descendant is evidence too; called at readiness."""
        ...

    async def kill(self, rank: int) -> None:
        """End what is left of a removed rank; returns when it is gone. Nothing happens where none is supervised."""
        ...
