"""State of one transaction, and the few moves that every step shares."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from controller.core import effects as fx
from controller.core.errors import Failure, FailureCode
from controller.core.gate import GateResult
from controller.core.outcome import Outcome
from controller.core.phases import Phase
from controller.core.probe import CompletionProbe
from controller.core.topology import Participant, resolve
from motor_ft.model.command import ScaleDownPlan
from motor_ft.model.engine import EngineObservation, EvidenceSource, Instruction, RankOutcome
from motor_ft.model.topology import Registration


class Step(StrEnum):
    """Where a transaction is; the order is the order of recovery.md section 5."""

    BEGINNING = "beginning"
    GUARDING = "guarding"
    OBSERVING = "observing"
    RECHECKING = "rechecking"
    FREEZING = "freezing"
    WITHDRAWING = "withdrawing"
    ARMING = "arming"
    APPLYING = "applying"
    POLLING = "polling"
    PROBING = "probing"
    RELEASING = "releasing"
    RENEWING = "renewing"
    COMMITTING = "committing"
    RECORDING = "recording"
    CLEANING = "cleaning"
    PUBLISHING = "publishing"
    ABORTING = "aborting"
    REVERTING = "reverting"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds (recovery.md sections 5 and 9)."""

    request_timeout: float = 5.0
    poll_interval: float = 1.0
    execution_deadline: float = 30.0
    begin_window: float = 35.0
    apply_window: float = 20.0

    @property
    def lease(self) -> float:
        """Guard lease: both execution windows and room for requests and polls."""
        return 2 * self.execution_deadline + 4 * self.request_timeout + max(5.0, self.poll_interval)

    @property
    def lease_to_apply(self) -> float:
        """What must be left of the lease when apply is sent: execution, renewal and commit."""
        return self.execution_deadline + 2 * self.request_timeout


@dataclass(frozen=True, slots=True)
class Spec:
    """What the transaction starts from; frozen evidence, topology and switches. A retry has no candidates.

    ``recycles``: pods without an active rank are stopped after the commit (``enable_dp_scale_up``).
    """

    instance_id: int
    request_id: str
    generation: int
    previous_phase: Phase
    pods: tuple[Registration, ...]
    original: frozenset[int]
    dead_committed: frozenset[int]
    candidates: Mapping[int, EvidenceSource]
    unhealthy_since: Mapping[int, float]
    scale_down_enabled: bool
    recovery_timeout: float
    limits: Limits = field(default_factory=Limits)
    instruction: Instruction = Instruction.SCALE_DOWN
    completion_probe: CompletionProbe = CompletionProbe.OFF
    recycles: bool = False

    @property
    def retries(self) -> bool:
        """Fast recovery: every active rank is told to retry, none is removed."""
        return self.instruction is Instruction.RETRY

    @property
    def serving_phase(self) -> Phase:
        """The phase after success."""
        return self.previous_phase if self.retries else Phase.SCALED_DOWN_RUNNING

    @property
    def active(self) -> frozenset[int]:
        """Ranks that are not gone yet."""
        return self.original - self.dead_committed


@dataclass(frozen=True, slots=True)
class Transaction:
    """State. ``waiting`` are the addresses that still owe an answer; ``wake_at`` is when to send Tick."""

    spec: Spec
    step: Step
    phase: Phase
    removed: frozenset[int]
    unreachable: frozenset[int]
    gate: GateResult | None = None
    participants: tuple[Participant, ...] = ()
    waiting: frozenset[str] = frozenset()
    persisting: bool = False
    guarded: frozenset[str] = frozenset()
    lease_end: Mapping[str, float] = field(default_factory=dict)
    seen: Mapping[int, EngineObservation] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    plan: ScaleDownPlan | None = None
    dp_store_port: int | None = None
    accepted: Mapping[int, RankOutcome] = field(default_factory=dict)
    committed: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    withdrawn: bool = False
    cancelled: str = ""
    doomed: str = ""
    deadline: float = 0.0
    wake_at: float | None = None
    failure: Failure | None = None
    outcome: Outcome | None = None
    learned: tuple[EngineObservation, ...] = ()
    marks: Mapping[str, float] = field(default_factory=dict)

    @property
    def survivors(self) -> frozenset[int]:
        """Active ranks that stay."""
        return self.spec.active - self.removed

    @property
    def cumulative(self) -> tuple[int, ...]:
        """Everything that is gone after this transaction, original numbering."""
        return tuple(sorted(self.spec.dead_committed | self.removed))


Advance = tuple[Transaction, tuple[fx.Effect, ...]]


def fail(state: Transaction, code: FailureCode, text: str) -> Advance:
    """Abort every guard that was sent and not committed, then FAILED."""
    failure = Failure(code, text)
    return _abort(replace(state, failure=failure, outcome=Outcome.FAILED))


def cancel(state: Transaction) -> Advance:
    """Abort every guard, then back to the phase before."""
    return _abort(replace(state, outcome=Outcome.CANCELLED))


def done(state: Transaction, outcome: Outcome) -> Advance:
    """The end; no effect follows."""
    return replace(state, step=Step.DONE, outcome=outcome, waiting=frozenset(), wake_at=None), ()


def persist(state: Transaction, phase: Phase) -> Advance:
    """Write a phase."""
    return replace(state, persisting=True), (fx.Persist(phase),)


def query(state: Transaction, ranks: Mapping[str, tuple[int, ...]]) -> Advance:
    """Read engines at several NodeManagers."""
    state = replace(state, waiting=state.waiting | ranks.keys())
    return state, tuple(fx.Query(address, asked) for address, asked in ranks.items())


def guard_all(state: Transaction) -> Advance:
    """Take or renew the lease everywhere, with the plan once it is frozen."""
    addresses = frozenset(participant.address for participant in state.participants)
    state = replace(state, waiting=addresses, guarded=state.guarded | addresses, errors=())
    lease = state.spec.limits.lease
    return state, tuple(fx.Guard(participant.address, lease, state.plan) for participant in state.participants)


def guard_answered(state: Transaction, event: fx.Guarded) -> Transaction:
    """Note one lease; our deadline for it counts from when the request left."""
    state = answered(state, event.address, event.error)
    if event.grant is None:
        return state
    state = replace(state, lease_end={**state.lease_end, event.address: event.sent_at + state.spec.limits.lease})
    if event.grant.dp_store_port is not None:
        state = replace(state, dp_store_port=event.grant.dp_store_port)
    return state


def answered(state: Transaction, address: str, error: str) -> Transaction:
    """One NodeManager has answered."""
    errors = (*state.errors, f"{address}: {error}") if error else state.errors
    return replace(state, waiting=state.waiting - {address}, errors=errors)


def with_readings(state: Transaction, event: fx.Observed) -> Transaction:
    """Note the readings of one NodeManager."""
    return newer(answered(state, event.address, event.error), event.observations)


def newer(state: Transaction, readings: tuple[EngineObservation, ...]) -> Transaction:
    """Keep the later reading of each rank. A reading that never reached the engine (counter 0) counts as later, and so
    does one of another incarnation: their counters do not compare."""
    seen = dict(state.seen)
    for reading in readings:
        known = seen.get(reading.rank)
        same = known is not None and known.incarnation == reading.incarnation
        if known is None or not same or not 0 < reading.observation <= known.observation:
            seen[reading.rank] = reading
    return replace(state, seen=seen)


def remove(state: Transaction, ranks: frozenset[int]) -> Transaction:
    """Late deaths join the removal set and the groups are built again."""
    return regroup(replace(state, removed=state.removed | ranks)) if ranks else state


def regroup(state: Transaction) -> Transaction:
    """Who takes part; raises TopologyError."""
    return replace(state, participants=resolve(state.spec.pods, state.spec.active, state.removed))


def window_left(state: Transaction, now: float) -> float:
    """Seconds until the first survivor gives up waiting for a command."""
    since = [state.spec.unhealthy_since[rank] for rank in state.survivors & state.spec.unhealthy_since.keys()]
    return state.spec.recovery_timeout - (now - min(since, default=now))


def window_text(state: Transaction, now: float, needed: float) -> str:
    """For people."""
    return f"{window_left(state, now):.1f} s of the engines' recovery window are left, {needed:g} s are needed"


def _abort(state: Transaction) -> Advance:
    targets = state.guarded - state.committed
    state = replace(state, step=Step.ABORTING, waiting=targets, wake_at=None)
    if not targets:
        return _after_abort(state)
    return state, tuple(fx.Finalize(address, commit=False) for address in sorted(targets))


def aborted(state: Transaction, event: fx.Finalized, now: float) -> Advance:
    """One abort was answered or given up; it is not repeated (the lease ends by itself)."""
    state = replace(state, waiting=state.waiting - {event.address})
    return (state, ()) if state.waiting else _after_abort(state)


def _after_abort(state: Transaction) -> Advance:
    if state.outcome is Outcome.FAILED:
        return done(state, Outcome.FAILED)
    return persist(replace(state, step=Step.REVERTING), state.spec.previous_phase)


def reverted(state: Transaction, event: fx.Persisted, now: float) -> Advance:
    """Back in the phase before; what was withdrawn is published again."""
    state = replace(state, persisting=False)
    if event.error:
        return done(replace(state, failure=Failure(FailureCode.PERSIST_FAILED, event.error)), Outcome.FAILED)
    state = replace(state, phase=state.spec.previous_phase)
    if not state.withdrawn:
        return done(state, Outcome.CANCELLED)
    return replace(state, withdrawn=False), (fx.Publish(),)


def revert_published(state: Transaction, event: fx.Published, now: float) -> Advance:
    """Published again, or converging through SET."""
    return done(state, Outcome.CANCELLED)
