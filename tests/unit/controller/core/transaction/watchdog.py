"""What holds in every run of the transaction, checked at every event and every effect."""

from collections.abc import Set

from controller.core import effects as fx
from controller.core.phases import Phase, move
from controller.core.probe import CompletionProbe
from controller.core.transaction import Outcome, Spec, Step, Transaction
from motor_ft.model.command import ScaleDownPlan, hash_plan
from motor_ft.model.engine import ApplyOutcome, EngineObservation, EngineStatus, EvidenceSource, FtState

BEFORE_ARMING = frozenset(
    {Step.BEGINNING, Step.GUARDING, Step.OBSERVING, Step.RECHECKING, Step.FREEZING, Step.WITHDRAWING}
)
READ = frozenset({Step.OBSERVING, Step.RECHECKING})
FROZEN = frozenset({Step.FREEZING, Step.WITHDRAWING, Step.ARMING})
UNREACHABLE = EvidenceSource.STATUS_UNREACHABLE


class Watchdog:
    """Remembers what the machine asked and was told, independently of the machine's own state."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.stored = spec.previous_phase
        self.dead_committed = tuple(sorted(spec.dead_committed))
        self.sources: dict[int, set[EvidenceSource]] = {r: {s} for r, s in spec.candidates.items()}
        self.readings: dict[int, EngineObservation] = {}
        self.asked: set[int] = set()
        self.shown_dead: set[int] = set()
        self.recovered: set[int] = set()
        self.accepted: dict[int, int] = {}
        self.leases: dict[str, float] = {}
        self.plans: dict[str, ScaleDownPlan | None] = {}
        self.offered: dict[str, ScaleDownPlan | None] = {}
        self.applied: set[str] = set()
        self.probed: set[str] = set()
        self.proved: set[int] = set()
        self.committed: set[str] = set()
        self.recycled: set[str] = set()
        self.finals: dict[str, list[bool]] = {}
        self.persisting: fx.Persist | None = None
        self.querying: set[str] = set()
        self.withdrawn = self.cancelled = False

    # --- what the machine is told ---

    def event(self, state: Transaction, event: fx.Event) -> None:
        """An answer, or news, on its way to the machine."""
        match event:
            case fx.Persisted():
                self._persisted(event)
            case fx.Guarded(grant=grant) if grant is not None:
                self.leases[event.address] = event.sent_at + self.spec.limits.lease
                self.plans[event.address] = self.offered[event.address]
            case fx.Observed():
                self.querying.discard(event.address)
                for seen in event.observations:
                    self._read(state, seen)
            case fx.Pushed():
                self._pushed(state, event.observation)
                self._recovery(state, event.observation)
            case fx.Withdrawn():
                self.withdrawn = event.confirmed
            case fx.Applied():
                accepted = [outcome for outcome in event.outcomes if outcome.outcome is ApplyOutcome.ACCEPTED]
                self.accepted |= {outcome.rank: outcome.observation for outcome in accepted}
            case fx.Probed():
                mode = self.spec.completion_probe
                self.proved |= {probe.rank for probe in event.probes if mode.satisfied(probe)}
            case fx.Finalized(error="") if self.finals[event.address][-1]:
                self.committed.add(event.address)
            case fx.Died():
                self.sources.setdefault(event.rank, set()).add(event.source)
                self.cancelled |= self.spec.retries and state.step in BEFORE_ARMING
            case fx.Cancel():
                self.cancelled |= state.step in BEFORE_ARMING
            case _:
                pass

    def _persisted(self, event: fx.Persisted) -> None:
        assert self.persisting is not None
        if not event.error:
            self.stored = self.persisting.phase
            if self.persisting.dead_committed is not None:
                self.dead_committed = self.persisting.dead_committed
        self.persisting = None

    def _read(self, state: Transaction, seen: EngineObservation) -> None:
        if state.step in BEFORE_ARMING:
            self.readings[seen.rank] = seen
            if seen.status is EngineStatus.DEAD:
                self.sources.setdefault(seen.rank, set()).add(EvidenceSource.ENGINE_REPORTED)
        self._recovery(state, seen)

    def _pushed(self, state: Transaction, seen: EngineObservation) -> None:
        known = self.readings.get(seen.rank)
        later = known is not None and known.incarnation == seen.incarnation and known.observation < seen.observation
        if state.step in READ | FROZEN and later and seen.status is not EngineStatus.UNKNOWN:
            self.readings[seen.rank] = seen
        if state.step in READ and seen.status is EngineStatus.DEAD:
            self.shown_dead.add(seen.rank)

    def _recovery(self, state: Transaction, seen: EngineObservation) -> None:
        healthy = seen.status is EngineStatus.HEALTHY and seen.ft_state is FtState.NONE
        if state.step is Step.POLLING and healthy and seen.observation > self.accepted.get(seen.rank, seen.observation):
            self.recovered.add(seen.rank)

    # --- what the machine asks ---

    def effects(self, state: Transaction, effects: tuple[fx.Effect, ...], now: float) -> None:
        """Effects as they leave the machine."""
        assert state.step is not Step.DONE or not effects, "an effect after the end"
        for effect in effects:
            if self.cancelled:
                assert isinstance(effect, fx.Finalize | fx.Persist | fx.Publish), "something new after a Cancel"
            match effect:
                case fx.Persist():
                    self._persist(effect)
                case fx.Guard():
                    assert effect.lease_sec == self.spec.limits.lease
                    self.offered[effect.address] = effect.plan
                case fx.Query():
                    assert effect.address not in self.querying, "two readings of one NodeManager at once"
                    self.querying.add(effect.address)
                    self.asked |= set(effect.ranks)
                case fx.Apply():
                    self._apply(effect, now)
                case fx.Probe():
                    self._probe(effect)
                case fx.Finalize():
                    self._finalize(effect)
                case fx.Recycle():
                    self._recycle(effect)
                case fx.Watch() | fx.Withdraw() | fx.Publish():
                    pass

    def _persist(self, effect: fx.Persist) -> None:
        assert self.persisting is None, "two writes at once"
        move(self.stored, effect.phase)  # raises when the phase table does not have it
        assert (effect.dead_committed is not None) is (effect.phase is Phase.POST_SCALE_CLEANUP)
        if effect.dead_committed is not None:
            assert self.committed == self._participants(), "dead_committed before every commit was confirmed"
            assert effect.dead_committed == self._plan().removed
        self.persisting = effect

    def _participants(self) -> set[str]:
        pods = self.spec.pods
        return {p.node_manager_address for p in pods if any(e.rank in self.spec.active for e in p.endpoints)}

    def _plan(self) -> ScaleDownPlan:
        (plan,) = {self.plans[address] for address in self._participants()}
        assert plan is not None
        return plan

    def _apply(self, effect: fx.Apply, now: float) -> None:
        order, plan = effect.order, self._plan()
        assert effect.address not in self.applied, "a second Apply"
        self.applied.add(effect.address)
        assert self.withdrawn, "Apply before the withdrawal was confirmed"
        assert self.stored is Phase.SCALING_DOWN, "Apply before its intent was written"
        assert (order.removed, order.plan_hash) == (plan.removed, plan.plan_hash)
        assert order.plan_hash == hash_plan(self.spec.instance_id, self.spec.generation, plan.removed, plan.survivors)
        assert not set(order.ranks) & set(order.removed)
        assert order.instruction is self.spec.instruction
        told = {rank for rank, _ in plan.survivors}
        if self.spec.retries:
            assert (order.removed, order.dp_master_ip, order.dp_store_port) == ((), "", None)
            assert told == self.spec.active, "a retry that leaves somebody out"
        assert set(order.removed) | told | self.spec.dead_committed == self.spec.original
        self._evidence(order.removed)
        for rank in order.ranks:
            seen = self.readings[rank]
            assert (seen.status, seen.ft_state) == (EngineStatus.UNHEALTHY, FtState.NONE), "Apply to a rank not U"
            assert seen.incarnation == dict(plan.survivors)[rank]
            assert self.sources.get(rank, set()) <= {UNREACHABLE}, "Apply to a rank that died"
        noticed = [self.spec.unhealthy_since[r] for r, _ in plan.survivors if r in self.spec.unhealthy_since]
        since = min(noticed, default=now)
        assert self.spec.recovery_timeout - (now - since) >= self.spec.limits.apply_window
        assert all(end - now >= self.spec.limits.lease_to_apply for end in self.leases.values())

    def _evidence(self, removed: tuple[int, ...]) -> None:
        """Nothing is removed without DEAD, and never on an unreachable socket that was not asked once more."""
        for rank in set(removed) - self.spec.dead_committed - self.shown_dead:
            assert self.sources[rank], "a rank is removed that nobody reported dead"
            if self.sources[rank] == {UNREACHABLE}:
                assert rank in self.asked
                seen = self.readings.get(rank)
                assert seen is None or seen.status in {EngineStatus.UNKNOWN, EngineStatus.DEAD}

    def _endpoints(self, address: str) -> set[int]:
        (own,) = [p.endpoints for p in self.spec.pods if p.node_manager_address == address]
        return {endpoint.rank for endpoint in own}

    def _probe(self, effect: fx.Probe) -> None:
        assert self.spec.completion_probe is not CompletionProbe.OFF
        assert effect.address not in self.probed, "a second completion"
        self.probed.add(effect.address)
        survivors = {rank for rank, _ in self._plan().survivors}
        assert self.recovered >= survivors, "a completion of engines that have not recovered"
        assert set(effect.ranks) <= survivors & self._endpoints(effect.address)
        assert 0 < effect.timeout_sec <= self.spec.limits.execution_deadline

    def _recycle(self, effect: fx.Recycle) -> None:
        assert self.spec.recycles
        assert effect.address not in self.recycled, "a second Stop"
        self.recycled.add(effect.address)
        assert self.stored is Phase.POST_SCALE_CLEANUP, "a Stop before the commit is durable"
        assert self._endpoints(effect.address) <= set(self.dead_committed), "Stop of a pod with an active rank"

    def _finalize(self, effect: fx.Finalize) -> None:
        finals = self.finals.setdefault(effect.address, [])
        assert False not in finals, "something after an abort"
        assert effect.address not in self.committed, "something after a confirmed commit"
        finals.append(effect.commit)
        if effect.commit:
            assert not self.spec.retries, "a commit although nobody is removed"
            plan = self._plan()
            assert self._serve({rank for rank, _ in plan.survivors}), "commit of a rank that has not recovered"
            gone = self._endpoints(effect.address) & set(plan.removed) - self.spec.dead_committed
            assert effect.retired == tuple(sorted(gone)), "a pod retires exactly its own ranks"
        else:
            assert effect.retired == ()

    # --- the end ---

    def _serve(self, ranks: Set[int]) -> bool:
        """They have recovered, and shown it with a completion where they have to."""
        return self.recovered >= ranks and (self.spec.completion_probe is CompletionProbe.OFF or self.proved >= ranks)

    def end(self, state: Transaction) -> None:
        """After DONE."""
        assert state.step is Step.DONE
        assert state.wake_at is None
        assert set(self.finals) == self.offered.keys(), "a NodeManager was guarded and never told the end"
        if state.outcome is Outcome.FAILED:
            assert state.failure is not None
            assert self.dead_committed == tuple(sorted(self.spec.dead_committed))
            assert all(not finals[-1] or address in self.committed for address, finals in self.finals.items())
        elif state.outcome is Outcome.CANCELLED:
            assert not self.applied
            assert not any(finals[-1] for finals in self.finals.values())
            assert self.stored is state.phase is self.spec.previous_phase
        elif self.spec.retries:
            assert self.applied, "success without a retry"
            assert self._serve(self.spec.active)
            assert self.stored is state.phase is self.spec.previous_phase
        elif self.offered:
            assert self.committed == self._participants()
            assert self.dead_committed == state.cumulative == self._plan().removed
            emptied = {at for at in self._participants() if self._endpoints(at) <= set(self.dead_committed)}
            assert self.recycled == (emptied if self.spec.recycles else set())
            assert self.stored is state.phase is Phase.SCALED_DOWN_RUNNING
