"""What is known from outside, and which rules did not hold."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from controller.core.records import IdentityRecord, RuntimeRecord
from nodemanager.core.fence import Fence
from nodemanager.core.state import NodeState
from tests.simulation.engines import Seat
from tests.simulation.loop import Process
from tests.support.engine.states import Process as RankProcess
from tests.support.engine.states import Status

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that did not hold."""

    rule: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.at:.3f} s: {self.text}"


class Commanded(NamedTuple):
    """Who sent a command, for which instance, in which term and generation."""

    client: Process
    instance_id: int
    epoch: int
    generation: int


class Facts:
    """Shared by all rules; ``counts`` says what a run has gone through."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.broken: list[Broken] = []
        self.counts: Counter[str] = Counter()
        self.runtimes: dict[int, RuntimeRecord] = {}
        self.identities: dict[int, IdentityRecord] = {}
        self.engines: dict[str, int] = {}
        """The instance in which an engine was first, by its incarnation."""
        self.withdrawn_by: dict[int, Process] = {}
        """Who has stored that nobody may be routed to an instance, for its hardware or its lost pods."""
        self.commands: dict[str, Commanded] = {}
        self.planned_at: dict[str, float] = {}
        """When the first Guard with the plan of a request id was sent."""
        self.relaunched: dict[int, float] = {}
        """When all engines of an instance were last told to start anew."""
        self.asked_at: dict[tuple[str, int], float] = {}
        """When a Status of a request id for a rank was last sent."""
        self.unread: set[tuple[str, int]] = set()
        """Those of them whose answer has not come."""
        self.epochs: dict[str, int] = {}
        """Highest durable epoch by pod UID."""
        self.members: dict[str, int | None] = {}
        """The instance that each pod is in, durably."""
        self.supervised: dict[str, dict[int, int]] = {}
        """Process of the engine of each rank, as each pod knows it, durably; 0 where only its address is known."""
        self.fences: dict[str, Fence] = {}
        """What each pod has seen, durably."""
        self.states: dict[str, NodeState] = {}
        """All that each pod remembers."""

    @property
    def now(self) -> float:
        """Time of the world."""
        return self.world.loop.time()

    def break_rule(self, rule: str, text: str) -> None:
        """Something must not be."""
        self.broken.append(Broken(rule, self.now, text))
        self.world.trace("BROKEN", rule, text)

    def job_of(self, instance_id: int) -> int | None:
        """Which job an instance is of, None for one that is not known."""
        identity = self.identities.get(instance_id)
        return int(identity.job_name.removeprefix("job-")) if identity else None


def gone(seat: Seat) -> bool:
    """What may count as DEAD now: no engine, an engine that says so, or a socket that does not answer."""
    rank = seat.rank
    if rank is None or not seat.serves or seat.asked.deaf:
        return True
    return rank.status is Status.DEAD or rank.executor_lost or rank.core_gone


def healthy(seat: Seat) -> bool:
    """It serves."""
    rank = seat.rank
    return seat.serves and rank is not None and rank.status is Status.HEALTHY and rank.process is RankProcess.RUNNING
