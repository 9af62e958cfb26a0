"""A world for one transaction, in virtual time: it answers effects, in any order, well or badly.

``Run`` drives the machine: ``to`` answers everything well until a step is reached; in between a test takes effects
away and feeds the events of its own story. Every event of every run passes the watchdog.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from controller.core import effects as fx
from controller.core.errors import FailureCode
from controller.core.phases import Phase
from controller.core.ports import GuardGrant
from controller.core.probe import CompletionProbe
from controller.core.transaction import Limits, Outcome, Spec, Step, Transaction, advance, begin
from motor_ft.model.engine import (
    ApplyOutcome,
    EngineObservation,
    EngineStatus,
    EvidenceSource,
    FtState,
    Instruction,
    ProbeOutcome,
    Problem,
    RankOutcome,
    RankProbe,
)
from motor_ft.model.topology import Registration
from tests.unit.controller.core.fleet import pod
from tests.unit.controller.core.transaction.watchdog import Watchdog

E = TypeVar("E")

ENDLESS = 1000
"""Events that no transaction needs; one lease of retries every second is far below."""

UNANSWERED = fx.Watch | fx.Recycle

START = 100.0
LIMITS = Limits()
TWO_PODS = (pod(1, [0, 1]), pod(2, [2, 3]))
POD_1, POD_2 = (registration.node_manager_address for registration in TWO_PODS)


def spec(
    candidates: Mapping[int, EvidenceSource] | None = None,
    *,
    pods: tuple[Registration, ...] = TWO_PODS,
    dead_committed: Iterable[int] = (),
    previous_phase: Phase = Phase.NORMAL,
    unhealthy_since: float = START - 5,
    recovery_timeout: float = 120.0,
    scale_down_enabled: bool = True,
    limits: Limits = LIMITS,
    instruction: Instruction = Instruction.SCALE_DOWN,
    completion_probe: CompletionProbe = CompletionProbe.OFF,
    recycles: bool = False,
) -> Spec:
    """Rank 1 of four over two pods has died; the others noticed it five seconds ago. For a retry nobody has died."""
    original = frozenset(e.rank for registration in pods for e in registration.endpoints)
    if candidates is None:
        candidates = {} if instruction is Instruction.RETRY else {1: EvidenceSource.ENGINE_REPORTED}
    survivors = original - frozenset(dead_committed) - candidates.keys()
    return Spec(
        instance_id=7,
        request_id="request-1",
        generation=3,
        previous_phase=previous_phase,
        pods=pods,
        original=original,
        dead_committed=frozenset(dead_committed),
        candidates=candidates,
        unhealthy_since=dict.fromkeys(survivors, unhealthy_since),
        scale_down_enabled=scale_down_enabled,
        recovery_timeout=recovery_timeout,
        limits=limits,
        instruction=instruction,
        completion_probe=completion_probe,
        recycles=recycles,
    )


def retry(
    *,
    pods: tuple[Registration, ...] = TWO_PODS,
    dead_committed: Iterable[int] = (),
    unhealthy_since: float = START - 5,
    scale_down_enabled: bool = True,
    completion_probe: CompletionProbe = CompletionProbe.OFF,
) -> Spec:
    """All ranks are UNHEALTHY, none is dead; those of ``dead_committed`` were removed earlier."""
    gone = frozenset(dead_committed)
    return spec(
        pods=pods,
        dead_committed=gone,
        previous_phase=Phase.SCALED_DOWN_RUNNING if gone else Phase.NORMAL,
        unhealthy_since=unhealthy_since,
        scale_down_enabled=scale_down_enabled,
        instruction=Instruction.RETRY,
        completion_probe=completion_probe,
    )


@dataclass
class Engine:
    """What an engine says of itself; ``counter`` is the number of its readings."""

    rank: int
    incarnation: str
    status: EngineStatus = EngineStatus.UNHEALTHY
    ft_state: FtState = FtState.NONE
    last_id: str = ""
    ft_error: str = ""
    counter: int = 0
    recovers: bool = True

    def read(self) -> EngineObservation:
        """A fresh reading."""
        self.counter += 1
        unread = self.status is EngineStatus.UNKNOWN
        return EngineObservation(
            self.rank,
            self.status,
            self.incarnation,
            self.counter,
            self.ft_state,
            last_ft_request_id=self.last_id,
            ft_error=self.ft_error,
            problem=Problem.UNREACHABLE if unread else Problem.NONE,
        )

    def apply(self) -> RankOutcome:
        """Accept an instruction, and carry it out unless the test says that it hangs."""
        if self.recovers:
            self.status, self.ft_state, self.last_id = EngineStatus.HEALTHY, FtState.NONE, ""
        return RankOutcome(self.rank, ApplyOutcome.ACCEPTED, observation=self.counter, engine_request_id="request-1")


@dataclass(frozen=True)
class Owed:
    """An effect whose answer is still to come, and when it was asked for."""

    effect: fx.Effect
    since: float


class Run:
    """One transaction from its begin."""

    def __init__(self, start: Spec, *, now: float = START) -> None:
        self.spec = start
        self.now = now
        self.engines = {rank: Engine(rank, f"e{rank}") for rank in start.original}
        for rank in start.original & start.candidates.keys():
            silent = start.candidates[rank] is EvidenceSource.STATUS_UNREACHABLE
            self.engines[rank].status = EngineStatus.UNKNOWN if silent else EngineStatus.DEAD
        self.fed = 0
        self.owed: list[Owed] = []
        self.effects: list[fx.Effect] = []
        self.cells: set[tuple[Step, type[fx.Event], Step]] = set()
        self.watchdog = Watchdog(start)
        self.state, effects = begin(start)
        self._perform(effects)

    def _perform(self, effects: tuple[fx.Effect, ...]) -> None:
        self.watchdog.effects(self.state, effects, self.now)
        self.effects += effects
        self.owed += [Owed(effect, self.now) for effect in effects if not isinstance(effect, UNANSWERED)]

    def feed(self, event: fx.Event) -> None:
        """One event, now."""
        self.fed += 1
        assert self.fed < ENDLESS, f"no end: {self.state}"
        before = self.state
        self.watchdog.event(before, event)
        self.state, effects = advance(before, event, self.now)
        assert self.state.phase is self.watchdog.stored, "the machine believes in another phase than the stored one"
        self.cells.add((before.step, type(event), self.state.step))
        if isinstance(event, fx.Tick):
            assert self.state.wake_at is None or self.state.wake_at > self.now, "a Tick that leaves itself due spins"
        self._perform(effects)
        assert self.state.persisting is (self.watchdog.persisting is not None)

    def take(self, kind: type[E]) -> list[E]:
        """The effects of this kind that are still owed; the test answers them itself."""
        taken: list[E] = [owed.effect for owed in self.owed if isinstance(owed.effect, kind)]
        self.owed = [owed for owed in self.owed if not isinstance(owed.effect, kind)]
        return taken

    def of(self, kind: type[E]) -> list[E]:
        """Every effect of this kind so far."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def never(self, *kinds: type[fx.Effect]) -> bool:
        """No effect of these kinds, so far."""
        return not any(isinstance(effect, kinds) for effect in self.effects)

    def at(self, step: Step) -> bool:
        """The machine is in this step now."""
        return self.state.step is step

    def answer(self, owed: Owed) -> None:
        """Answer one effect well."""
        self.owed.remove(owed)
        self.feed(self.good(owed.effect, owed.since))

    def tick(self) -> None:
        """Sleep until the machine wants to be woken."""
        assert self.state.wake_at is not None, f"stuck in {self.state.step}: nothing owed, nothing to wait for"
        self.now = max(self.now, self.state.wake_at)
        self.feed(fx.Tick())

    def to(self, step: Step) -> "Run":
        """Answer well, in order, until the machine enters a step."""
        while self.state.step is not step:
            assert self.state.step is not Step.DONE, f"{step} was not reached: {self.state.failure}"
            if self.owed:
                self.answer(self.owed[0])
            else:
                self.tick()
        return self

    def finish(self) -> Transaction:
        """Answer well until the end."""
        self.to(Step.DONE)
        self.watchdog.end(self.state)
        return self.state

    def ends(self, outcome: Outcome, code: FailureCode | None = None, text: str = "") -> None:
        """Finish, with this outcome and failure."""
        state = self.finish()
        failure = state.failure
        assert (state.outcome, failure.code if failure else None) == (outcome, code), str(failure)
        assert text in str(failure)

    def fails(self, code: FailureCode, text: str = "") -> None:
        """Finish FAILED for this reason; an Apply that was not ordered yet never is."""
        applies = len(self.of(fx.Apply))
        self.ends(Outcome.FAILED, code, text)
        assert len(self.of(fx.Apply)) == applies

    # --- what the world answers ---

    def good(self, effect: fx.Effect, since: float) -> fx.Event:
        """The answer when all goes well."""
        match effect:
            case fx.Persist():
                return fx.Persisted()
            case fx.Guard():
                return fx.Guarded(effect.address, since, self._grant(effect))
            case fx.Query():
                return fx.Observed(effect.address, tuple(self.engines[rank].read() for rank in effect.ranks))
            case fx.Withdraw():
                return fx.Withdrawn(confirmed=True)
            case fx.Apply():
                return fx.Applied(effect.address, tuple(self.engines[rank].apply() for rank in effect.order.ranks))
            case fx.Probe():
                return fx.Probed(effect.address, tuple(RankProbe(rank, ProbeOutcome.SERVED) for rank in effect.ranks))
            case fx.Finalize():
                return fx.Finalized(effect.address)
            case fx.Publish():
                return fx.Published(confirmed=True)
            case fx.Watch() | fx.Recycle():
                raise AssertionError("it has no answer")

    def _grant(self, effect: fx.Guard) -> GuardGrant:
        """Only the NodeManager of the lowest survivor of the plan reserves a port."""
        own = {
            endpoint.rank
            for registration in self.spec.pods
            if registration.node_manager_address == effect.address
            for endpoint in registration.endpoints
            if not endpoint.headless
        }
        reserves = effect.plan is not None and effect.plan.removed and effect.plan.lowest_survivor in own
        return GuardGrant(effect.lease_sec, dp_store_port=29600 if reserves else None)

    def bad(self, effect: fx.Effect, since: float, *, refused: bool = False) -> fx.Event:
        """The answer when the other side is silent, or refuses."""
        match effect:
            case fx.Persist():
                return fx.Persisted("STORE_UNAVAILABLE")
            case fx.Guard():
                return fx.Guarded(effect.address, since, error="GUARD_HELD")
            case fx.Query():
                return fx.Observed(effect.address, error="no answer")
            case fx.Withdraw():
                return fx.Withdrawn(confirmed=False)
            case fx.Apply() if refused:
                outcomes = [RankOutcome(rank, ApplyOutcome.REFUSED, "400") for rank in effect.order.ranks]
                return fx.Applied(effect.address, tuple(outcomes))
            case fx.Apply():
                return fx.Applied(effect.address, error="OUTCOME_UNKNOWN")
            case fx.Probe() if refused:
                return fx.Probed(effect.address, tuple(RankProbe(r, ProbeOutcome.FAILED, "500") for r in effect.ranks))
            case fx.Probe():
                return fx.Probed(effect.address, error="no answer")
            case fx.Finalize():
                return fx.Finalized(effect.address, "no answer", refused)
            case fx.Publish():
                return fx.Published(confirmed=False)
            case fx.Watch() | fx.Recycle():
                raise AssertionError("it has no answer")

    def lose(self, owed: Owed, *, refused: bool = False) -> None:
        """Answer one effect badly."""
        self.owed.remove(owed)
        self.feed(self.bad(owed.effect, owed.since, refused=refused))

    def reply(self, effect: fx.Effect) -> None:
        """Answer an effect that was taken, well."""
        self.feed(self.good(effect, self.now))

    def drop(self, effect: fx.Effect, *, refused: bool = False) -> None:
        """Answer an effect that was taken, badly."""
        self.feed(self.bad(effect, self.now, refused=refused))

    def die(self, rank: int, source: EvidenceSource = EvidenceSource.PROCESS_EXIT) -> None:
        """An engine dies, and the evidence reaches the machine."""
        self.engines[rank].status = EngineStatus.DEAD
        self.feed(fx.Died(rank, source))

    def push(self, rank: int) -> None:
        """The watch shows a reading."""
        self.feed(fx.Pushed(self.engines[rank].read()))

    def reading(self, rank: int, status: EngineStatus, ft_state: FtState = FtState.NONE, last_id: str = "") -> None:
        """From now on an engine reads like this."""
        engine = self.engines[rank]
        engine.status, engine.ft_state, engine.last_id = status, ft_state, last_id

    def hang(self) -> "Run":
        """Engines accept apply and do nothing about it."""
        for engine in self.engines.values():
            engine.recovers = False
        return self


def short(limits: Limits = LIMITS, **changes: float) -> Limits:
    """Other limits."""
    return replace(limits, **changes)
