"""What the core and the strategies need from the world; adapters implement these (architecture.md section 2)."""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from controller.core.errors import Failure
from controller.core.explain import Explanation
from controller.core.gate import GateResult
from controller.core.history import Event, EventKind
from controller.core.outcome import Outcome
from controller.core.phases import Phase
from controller.core.records import IdentityRecord, RuntimeRecord
from controller.core.reports import (
    AdapterHello,
    Directive,
    HardwareReport,
    Hello,
    Report,
    SoftwareFault,
    Welcome,
)
from controller.core.serving import ServingEvent, ServingInstance
from controller.core.status import InstanceStatus
from motor_ft.model.command import Command, OperatorCommand, ScaleDownPlan
from motor_ft.model.engine import EngineObservation, EvidenceSource, Instruction, PodEngine, RankOutcome, RankProbe


class Clock(Protocol):
    """Time for decisions and time for people."""

    def now(self) -> float:
        """Monotonic seconds; never wall clock."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch, for display only."""
        ...


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """A record and the revision that the next write must name."""

    record: T
    revision: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a row cannot be read, and the revision that the next write of it must name."""

    why: str
    revision: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """All that a store holds. An unreadable row is reported in ``unreadable`` by instance id, the others load."""

    identities: dict[int, Stored[IdentityRecord]]
    runtimes: dict[int, Stored[RuntimeRecord]]
    unreadable: dict[int, Unreadable]


class Store(Protocol):
    """Durable records of one Controller; what comes out is a copy, editing it changes nothing.

    Every write is compare-and-set on the revision (0: must not exist yet) and on the leadership of this Controller.
    A write raises FtError: ``STORE_CONFLICT`` (another revision is stored), ``NOT_LEADER``, or ``STORE_UNAVAILABLE``
    (whether it was written is not known: the caller reads back, ``runtime``/``identity``, and compares).
    """

    async def lead(self, above: int = 0) -> int:
        """Begin a term and return its epoch: larger than ``above`` and than every epoch before. May be called again.

        Waits while another Controller leads. Where another store may hold the fleet's records, only an operator may
        raise the epoch above one of the fleet that is larger than ours: FtError ``EPOCH_BEHIND_FLEET``, and no term.
        """
        ...

    def leads(self) -> bool:
        """No other Controller can have begun a term yet, as far as this one's clock can tell."""
        ...

    def leader(self) -> str:
        """Address that the Controller which leads advertises, as far as is known; else empty."""
        ...

    async def next_instance_id(self) -> int:
        """A number that was never returned before, from 1, on a durable counter."""
        ...

    async def load(self) -> Loaded:
        """Everything."""
        ...

    async def runtime(self, instance_id: int) -> Stored[RuntimeRecord] | None:
        """One runtime record, or None."""
        ...

    async def save_runtime(self, instance_id: int, record: RuntimeRecord, expected: int) -> int:
        """Write and return the new revision."""
        ...

    async def save_identity(self, record: IdentityRecord, expected: int) -> int:
        """Write and return the new revision."""
        ...

    async def remove(self, instance_id: int) -> None:
        """Forget both records of an instance; none is not an error."""
        ...

    async def probe(self) -> None:
        """Write what no record depends on, to learn whether records could be written; raises what a write raises."""
        ...

    async def close(self) -> None:
        """Give up leadership and let go of files and connections; idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class GuardGrant:
    """A lease that a NodeManager holds for us."""

    remaining_sec: float
    dp_store_port: int | None = None


@dataclass(frozen=True, slots=True)
class ApplyOrder:
    """What one NodeManager applies to its ranks; a retry has neither removed ranks nor a store."""

    instruction: Instruction
    ranks: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    dp_master_ip: str = ""
    dp_store_port: int | None = None
    plan_hash: str = ""


class NodeManagers(Protocol):
    """Commands to NodeManagers by their ``host:port``. Every call has a deadline and raises FtError."""

    def connect(self, address: str) -> None:
        """Have a connection ready before the first command, and keep it until ``forget``."""
        ...

    async def guard(
        self,
        address: str,
        command: Command,
        lease_sec: float,
        plan: ScaleDownPlan | None,
    ) -> GuardGrant:
        """Take or renew the lease."""
        ...

    async def status(self, address: str, command: Command, ranks: Sequence[int]) -> tuple[EngineObservation, ...]:
        """Read engines anew, in the asked order."""
        ...

    async def apply(self, address: str, command: Command, order: ApplyOrder) -> tuple[RankOutcome, ...]:
        """Tell engines once, outcomes in the order of the ranks. An FtError with OUTCOME_UNKNOWN may have been sent."""
        ...

    async def probe(
        self, address: str, command: Command, ranks: Sequence[int], timeout_sec: float
    ) -> tuple[RankProbe, ...]:
        """Ask engines for one token each, in the asked order; ``timeout_sec`` for all of it."""
        ...

    async def finalize(self, address: str, command: Command, *, commit: bool, retired: Sequence[int]) -> None:
        """End the transaction there."""
        ...

    async def stop(self, address: str, command: Command, reason: str) -> None:
        """Stop the pod."""
        ...

    def recycle(self, address: str, command: Command) -> None:
        """Stop a pod that is not needed any more: told once, without waiting; a failure is only logged."""
        ...

    async def restart_engines(
        self, address: str, command: Command, reason: str, timeout_sec: float, *, validate_only: bool = False
    ) -> tuple[PodEngine, ...]:
        """Start all engines of the pod anew; returns those that this ends.

        The pod does not end itself for ``timeout_sec`` because they are not ready. With ``validate_only`` nothing
        happens, and the engines are as they are now.
        """
        ...

    def watch(self, address: str, command: Command, ranks: Sequence[int]) -> AsyncIterator[EngineObservation]:
        """Readings as they change, until closed; raises FtError when the stream ends."""
        ...

    async def forget(self, address: str) -> None:
        """Close the channel to a NodeManager that is gone."""
        ...


class Coordinator(Protocol):
    """One Coordinator."""

    @property
    def name(self) -> str:
        """For logs and metrics."""
        ...

    async def refresh(
        self,
        event: ServingEvent,
        instances: Sequence[ServingInstance],
        epoch: int,
        revision: int,
    ) -> None:
        """Return when the Coordinator confirmed (an unknown instance in DEL counts as confirmed); raises FtError."""
        ...

    async def ready(self) -> bool:
        """The Coordinator says that it serves normally; False also when it cannot be reached."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class Runtime(Protocol):
    """The runtime of one instance, for the one strategy that runs on it."""

    @property
    def record(self) -> RuntimeRecord:
        """What is stored."""
        ...

    async def persist(self, phase: Phase, dead_committed: Sequence[int] | None = None, *, begins: bool = False) -> None:
        """Write a legal move; ``begins`` takes a new generation. Unknown outcomes are read back. Raises FtError."""
        ...

    def show(
        self,
        *,
        request_id: str | None = None,
        pending: frozenset[int] | None = None,
        gate: GateResult | None = None,
        withdrawn: bool | None = None,
        failure: Failure | None = None,
    ) -> None:
        """Change what is only in memory; None leaves a field as it is. ``withdrawn`` changes the projection at once."""
        ...


class Engines(Protocol):
    """What is known of the engines of one instance, for the one strategy that starts them anew."""

    def relaunching(self, engines: Mapping[int, frozenset[str]]) -> None:
        """These, rank → incarnations, are about to end: nothing that is said of them counts, and others are awaited."""
        ...

    async def relaunched(self, engines: Mapping[int, str]) -> None:
        """These are the instance's from now on, durably; raises FtError, also when one has failed or gone meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class StrategyResult:
    """How a strategy ended; ``learned`` are readings that the evidence does not have yet."""

    outcome: Outcome
    failure: Failure | None = None
    removed: frozenset[int] = frozenset()
    learned: tuple[EngineObservation, ...] = ()


class Strategy(Protocol):
    """One way to bring an instance back (RFC section 5). An instance has at most one at a time."""

    @property
    def name(self) -> str:
        """As in ``fallback_strategy``."""
        ...

    async def execute(self) -> StrategyResult:
        """Run to the end; FtError NOT_LEADER leaves everything as it is."""
        ...

    def died(self, rank: int, source: EvidenceSource) -> None:
        """New evidence that an active rank is D."""
        ...

    def stop(self, reason: str) -> None:
        """End early where that is still safe."""
        ...


class ServingViews(Protocol):
    """Where the pusher reads projections, at send time, and tells what was confirmed."""

    def view(self, instance_id: int) -> ServingInstance | None:
        """Projection of one instance now; None when it is not to be published."""
        ...

    def views(self) -> Sequence[ServingInstance]:
        """Projections of all instances now."""
        ...

    def confirmed(self, instance_id: int, view: ServingInstance | None) -> None:
        """All Coordinators hold exactly this view of the instance (None: withdrawn)."""
        ...

    def may_publish(self) -> bool:
        """The leadership deadline has not passed; asked right before every send."""
        ...


class ServingPublisher(Protocol):
    """Changes of the serving view."""

    async def withdraw(self, instance_id: int, timeout_sec: float) -> bool:
        """DEL what is published; True when every Coordinator confirmed within the time."""
        ...

    async def publish(self, instance_id: int, timeout_sec: float) -> bool:
        """ADD the projection; True when every Coordinator confirmed within the time. False converges through SET."""
        ...

    def update(self, instance_id: int) -> None:
        """The projection has changed, perhaps only to ``paused`` or back: tell every Coordinator, without waiting."""
        ...

    def kick(self) -> None:
        """Send SET to every Coordinator at once."""
        ...


ReportT = TypeVar("ReportT", contravariant=True)


class Attachment(Protocol[ReportT]):
    """One open FaultReport stream as the FaultManager sees it."""

    @property
    def welcome(self) -> Welcome:
        """What to answer to Hello."""
        ...

    async def deliver(self, sequence: int, report: ReportT) -> None:
        """Return when the FaultManager has it (a duplicate too); raises FtError when it is refused."""
        ...

    def detach(self) -> None:
        """The stream has ended."""
        ...


class Reports(Protocol):
    """Entry of everything that reporters say."""

    async def attach(self, hello: Hello, send: Callable[[Directive | Welcome], None]) -> Attachment[Report]:
        """Admit a NodeManager; ``send`` puts a message on its stream and never blocks. Raises FtError to refuse."""
        ...

    async def attach_adapter(self, hello: AdapterHello) -> Attachment[HardwareReport]:
        """Admit an adapter of hardware faults; raises FtError to refuse."""
        ...

    async def report_software_fault(self, fault: SoftwareFault) -> None:
        """One fault over the unary RPC (RFC section 4.4); raises FtError when it is refused."""
        ...


class Instances(Protocol):
    """Read side for clients."""

    def get(self, instance_id: int) -> InstanceStatus | None:
        """One instance, or None."""
        ...

    def all(self) -> Sequence[InstanceStatus]:
        """All instances by ascending id."""
        ...

    def subscribe(self, limit: int) -> "Subscription":
        """Changes from now on. A subscriber that falls more than ``limit`` changes behind is cut, never skipped."""
        ...


class Subscription(Protocol):
    """Ordered changes; use as an async iterator and close it."""

    def __aiter__(self) -> AsyncIterator[InstanceStatus]:
        """Ends with FtError OVERLOADED when the subscriber was too slow."""
        ...

    def close(self) -> None:
        """No more changes."""
        ...


class Recorder(Protocol):
    """Takes events into the history of an instance."""

    def record(self, instance_id: int, kind: EventKind, text: str, **attributes: object) -> None:
        """One more event, now; attributes that are None or empty are left out."""
        ...


class Events(Protocol):
    """Read side of the histories."""

    @property
    def life(self) -> str:
        """Name of this Controller's life; sequences compare only within one."""
        ...

    def page(
        self,
        instance_id: int | None,
        kinds: Collection[EventKind],
        *,
        after: int | None,
        newest_first: bool,
        size: int,
    ) -> list[Event]:
        """The first ``size`` events beyond the sequence ``after``, of one instance or all; raises UNKNOWN_INSTANCE."""
        ...


class Order(StrEnum):
    """What an operator may order for an instance."""

    PAUSE = "pause automation"
    RESUME = "resume automation"
    RECONFIGURE = "reconfigure"


class Operations(Protocol):
    """What operators ask and order. Every method raises UNKNOWN_INSTANCE."""

    def explain(self, instance_id: int) -> Explanation:
        """The decision that would be taken now; changes nothing."""
        ...

    async def order(self, order: Order, command: OperatorCommand) -> InstanceStatus:
        """Carry out an order and return the instance after it; raises STALE_GENERATION, STRATEGY_RUNNING."""
        ...
