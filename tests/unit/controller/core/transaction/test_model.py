"""The transaction, exhaustively: every order of everything that can happen to three ranks in two pods.

One more rank may die, one answer may get lost with or without what it is about, somebody may ask to stop, and the
Controller may end anywhere. Safety is checked at every step; from every state the end is within reach.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import assert_never

import pytest

from controller.core import effects as fx
from controller.core.errors import Failure
from controller.core.phases import INTERRUPTED, Phase, move
from controller.core.ports import GuardGrant
from controller.core.transaction import Limits, Outcome, Spec, Step, Transaction, advance, begin
from motor_ft.model.engine import ApplyOutcome, EngineObservation, EngineStatus, EvidenceSource, RankOutcome
from tests.unit.controller.core.fleet import pod
from tests.unit.controller.core.transaction.world import START, spec

U, H, D = EngineStatus.UNHEALTHY, EngineStatus.HEALTHY, EngineStatus.DEAD
PODS = (pod(1, [0], dp_size=3), pod(2, [1, 2], dp_size=3))
OWNER = {endpoint.rank: each.node_manager_address for each in PODS for endpoint in each.endpoints}
ADDRESSES = tuple(each.node_manager_address for each in PODS)
LIMITS = Limits(request_timeout=1.0, poll_interval=1.0, execution_deadline=2.0)
DEAD_RANK = 2
Key = tuple[object, ...]
GUARDED, PLANNED, ABORTED, COMMITTED = "guarded", "planned", "aborted", "committed"


@dataclass(frozen=True)
class World:
    """All that is true, the machine's own state included. ``readings`` count the changes of each engine."""

    state: Transaction
    owed: tuple[fx.Effect, ...] = ()
    now: float = START
    stored: Phase = Phase.NORMAL
    dead_committed: tuple[int, ...] = ()
    engines: tuple[EngineStatus, ...] = ()
    readings: tuple[int, ...] = (1, 1, 1)
    told: frozenset[int] = frozenset()
    ordered: frozenset[str] = frozenset()
    recovered: bool = False
    withdrawn: bool = False
    nodes: tuple[str, ...] = ("", "")
    lost: int = 1
    deaths: int = 1
    cancels: int = 1

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for worlds that go on in the same ways."""
        mine = tuple(getattr(self, name) for name in _MINE)
        return tuple(_hashable(getattr(self.state, name)) for name in _STATE), frozenset(self.owed), mine

    # --- what happens ---

    def feed(self, event: fx.Event) -> "World":
        """The machine learns something, and asks for more."""
        state, effects = advance(self.state, event, self.now)
        world = replace(self, state=state)
        for effect in effects:
            world.allows(effect)
            if isinstance(effect, fx.Apply):
                world = replace(world, ordered=world.ordered | {effect.address})
        asked = tuple(each for each in effects if not isinstance(each, fx.Watch | fx.Recycle))
        return replace(world, owed=(*world.owed, *asked))

    def successors(self) -> Iterator["World"]:
        """One for everything that can be next."""
        for number, effect in enumerate(self.owed):
            rest = replace(self, owed=self.owed[:number] + self.owed[number + 1 :])
            done, answer = rest.perform(effect)
            yield done.feed(answer)
            if self.lost and (lost := _lost(effect, self.now)) is not None:
                yield replace(rest, lost=0).feed(lost)
                if not isinstance(effect, fx.Persist):  # what is read back after a write is the truth
                    yield replace(done, lost=0).feed(lost)
        if self.state.wake_at is not None:
            yield replace(self, now=max(self.now, self.state.wake_at)).feed(fx.Tick())
        if self.deaths:
            for rank in (0, 1):
                yield replace(self._changed({rank: D}), deaths=0).feed(fx.Died(rank, EvidenceSource.ENGINE_REPORTED))
        if self.cancels:
            yield replace(self, cancels=0).feed(fx.Cancel("no rank is DEAD any more"))
        plan = self.state.plan
        meet = {rank for rank, _ in plan.survivors} if plan else set()
        if meet and meet <= self.told and {self.engines[rank] for rank in meet} == {U}:
            yield replace(self._changed(dict.fromkeys(meet, H)), recovered=True)

    def _changed(self, statuses: dict[int, EngineStatus]) -> "World":
        engines = tuple(statuses.get(rank, status) for rank, status in enumerate(self.engines))
        readings = tuple(count + (rank in statuses) for rank, count in enumerate(self.readings))
        return replace(self, engines=engines, readings=readings)

    def _node(self, address: str, stands: str) -> "World":
        nodes = tuple(stands if each == address else before for each, before in zip(ADDRESSES, self.nodes, strict=True))
        return replace(self, nodes=nodes)

    def perform(self, effect: fx.Effect) -> tuple["World", fx.Event]:
        """The effect has its effect."""
        match effect:
            case fx.Persist():
                committed = effect.dead_committed if effect.dead_committed is not None else self.dead_committed
                return replace(self, stored=effect.phase, dead_committed=committed), fx.Persisted()
            case fx.Guard():
                grant = GuardGrant(effect.lease_sec, 29600 if effect.plan else None)
                taken = self._node(effect.address, PLANNED if effect.plan else GUARDED)
                return taken, fx.Guarded(effect.address, self.now, grant)
            case fx.Query():
                read = (EngineObservation(r, self.engines[r], f"e{r}", self.readings[r]) for r in effect.ranks)
                return self, fx.Observed(effect.address, tuple(read))
            case fx.Withdraw():
                return replace(self, withdrawn=True), fx.Withdrawn(confirmed=True)
            case fx.Apply():
                ranks = effect.order.ranks
                taken = replace(self._changed({r: self.engines[r] for r in ranks}), told=self.told | set(ranks))
                accepted = (RankOutcome(r, ApplyOutcome.ACCEPTED, observation=self.readings[r]) for r in ranks)
                return taken, fx.Applied(effect.address, tuple(accepted))
            case fx.Finalize():
                return self._node(effect.address, COMMITTED if effect.commit else ABORTED), fx.Finalized(effect.address)
            case fx.Publish():
                return replace(self, withdrawn=False), fx.Published(confirmed=True)
            case fx.Watch() | fx.Recycle() | fx.Probe():
                raise AssertionError("not asked for here")
            case _:
                assert_never(effect)

    # --- what must hold ---

    def allows(self, effect: fx.Effect) -> None:
        """The machine may ask for this now."""
        match effect:
            case fx.Persist():
                move(self.stored, effect.phase)
                if effect.dead_committed is not None:
                    assert self.nodes == (COMMITTED, COMMITTED)
                    assert self.recovered
            case fx.Apply():
                assert effect.address not in self.ordered, "apply is sent twice"
                assert (self.stored, self.withdrawn, self.nodes) == (Phase.SCALING_DOWN, True, (PLANNED, PLANNED))
                assert all(self.engines[rank] is D for rank in effect.order.removed) or not self.lost
                late = [rank for rank in effect.order.ranks if self.engines[rank] is not U]
                assert not late, f"{late} died before the order was given"
            case fx.Finalize(commit=True):
                assert self.recovered
            case fx.Publish():
                serves = Phase.SCALED_DOWN_RUNNING if self.ordered else Phase.NORMAL
                assert self.stored is serves
            case _:
                pass

    def check(self) -> None:
        """Wherever the Controller ends now, the next one knows enough."""
        if self.ordered and not self.dead_committed:
            assert self.stored in INTERRUPTED, "an order would be forgotten"
        if self.dead_committed:
            assert self.recovered
            assert self.nodes == (COMMITTED, COMMITTED)
        if self.state.step is not Step.DONE:
            return
        assert all(isinstance(each, fx.Query) for each in self.owed), "more than a reading is cut off"
        assert not self.withdrawn or self.state.outcome is Outcome.FAILED or not self.lost
        left = [each for each in self.nodes if each in (GUARDED, PLANNED)]
        match self.state.outcome:
            case Outcome.SUCCEEDED:
                assert self.stored is Phase.SCALED_DOWN_RUNNING
                assert self.dead_committed == self.state.cumulative
            case Outcome.FAILED:
                assert not self.dead_committed
                assert not left or not self.lost, "a guard is left although every abort arrives"
            case Outcome.CANCELLED:
                assert (self.stored, self.ordered) == (Phase.NORMAL, frozenset())


_STATE = [each.name for each in fields(Transaction) if each.name not in ("spec", "gate", "marks", "learned")]
_MINE = [each.name for each in fields(World) if each.name not in ("state", "owed")]


def _hashable(value: object) -> object:
    """What of a field decides how it goes on: of errors, only that there are any."""
    match value:
        case dict():
            return frozenset(value.items())
        case set():
            return frozenset(value)
        case Failure():
            return value.code
        case (str(), *_):
            return True
        case _:
            return value


def _lost(effect: fx.Effect, now: float) -> fx.Event | None:
    """No answer came; nobody waits for the answer of what has none."""
    match effect:
        case fx.Persist():
            return fx.Persisted("STORE_UNAVAILABLE")
        case fx.Guard():
            return fx.Guarded(effect.address, now, error="no answer")
        case fx.Query():
            return fx.Observed(effect.address, error="no answer")
        case fx.Withdraw():
            return fx.Withdrawn(confirmed=False)
        case fx.Apply():
            return fx.Applied(effect.address, error="OUTCOME_UNKNOWN")
        case fx.Finalize():
            return fx.Finalized(effect.address, "no answer")
        case fx.Publish():
            return fx.Published(confirmed=False)
        case _:
            return None


def explore(start: Spec, *, engines: tuple[EngineStatus, ...]) -> list[World]:
    """Every world that can come about; a state from which the end is out of reach fails."""
    state, effects = begin(start)
    first = World(state, effects, engines=engines)
    worlds, before = {first.key: first}, defaultdict[Key, list[Key]](list)
    left = [first]
    while left:
        world = left.pop()
        world.check()
        for after in () if world.state.step is Step.DONE else world.successors():
            before[after.key].append(world.key)
            if after.key not in worlds:
                worlds[after.key] = after
                left.append(after)
    reached = [key for key, world in worlds.items() if world.state.step is Step.DONE]
    ending = set(reached)
    while reached:
        news = set(before[reached.pop()]) - ending
        ending |= news
        reached += news
    stuck = worlds.keys() - ending
    assert not stuck, f"no way to the end from {worlds[next(iter(stuck))]}"
    return list(worlds.values())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("source", [EvidenceSource.ENGINE_REPORTED, EvidenceSource.STATUS_UNREACHABLE])
def test_everything_that_can_happen_is_safe_and_ends(source: EvidenceSource) -> None:
    worlds = explore(spec({DEAD_RANK: source}, pods=PODS, limits=LIMITS), engines=(U, U, D))
    assert {world.state.outcome for world in worlds} == {None, *Outcome}
    asked_again = source is EvidenceSource.STATUS_UNREACHABLE
    never = {Step.PROBING, Step.RELEASING} | (set() if asked_again else {Step.RECHECKING})
    assert {world.state.step for world in worlds} == {*Step} - never


@pytest.mark.timeout(300)
def test_a_rank_that_answers_after_all_is_never_removed_whatever_happens() -> None:
    """Unless its answer is what gets lost."""
    unreachable = spec({DEAD_RANK: EvidenceSource.STATUS_UNREACHABLE}, pods=PODS, limits=LIMITS)
    worlds = explore(unreachable, engines=(U, U, U))
    assert not any(world.ordered and world.lost for world in worlds)
