"""From the first guard to the last check before apply (recovery.md section 5, steps 2 to 8)."""

from collections.abc import Iterable
from dataclasses import replace

from controller.core import effects as fx
from controller.core.errors import FailureCode
from controller.core.gate import check_gate
from controller.core.outcome import Outcome
from controller.core.phases import Phase
from controller.core.topology import TopologyError
from controller.core.transaction.apply import apply_all
from controller.core.transaction.state import (
    Advance,
    Spec,
    Step,
    Transaction,
    cancel,
    done,
    fail,
    guard_all,
    guard_answered,
    newer,
    persist,
    query,
    regroup,
    remove,
    window_left,
    window_text,
    with_readings,
)
from controller.core.verdict import Verdict, judge_ready, still_dead, worst
from motor_ft.model.command import freeze_plan
from motor_ft.model.engine import EngineObservation, EngineStatus, EvidenceSource

NO_SURVIVOR = "no survivor is left"


def begin(spec: Spec) -> Advance:
    """Start: a duplicate ends at once, anything else is written down as DECIDING first."""
    removed = frozenset() if spec.retries else spec.active & spec.candidates.keys()
    unreachable = frozenset(r for r in removed if spec.candidates[r] is EvidenceSource.STATUS_UNREACHABLE)
    state = Transaction(spec, Step.BEGINNING, spec.previous_phase, removed, unreachable)
    if removed or spec.retries:
        return persist(state, Phase.DECIDING)
    ranks = sorted(spec.candidates)
    if not ranks or not spec.dead_committed.issuperset(ranks):
        return fail(state, FailureCode.TOPOLOGY_INVALID, f"of the candidates {ranks} none is an active rank")
    if spec.previous_phase is Phase.SCALED_DOWN_RUNNING:
        return done(state, Outcome.SUCCEEDED)
    return fail(state, FailureCode.DUPLICATE_REQUEST, f"ranks {ranks} are already removed")


def begun(state: Transaction, event: fx.Persisted, now: float) -> Advance:
    """DECIDING is written: gate, topology and window, then the guards."""
    if event.error:
        return fail(replace(state, persisting=False), FailureCode.PERSIST_FAILED, event.error)
    spec = state.spec
    gate = check_gate(
        scale_down_enabled=spec.scale_down_enabled,
        capabilities=[pod.capability for pod in spec.pods],
        survivors=len(state.survivors),
        instruction=spec.instruction,
    )
    state = replace(state, persisting=False, phase=Phase.DECIDING, gate=gate)
    if state.cancelled:
        return cancel(state)
    if not gate.allowed:
        return fail(state, FailureCode.GATE_REFUSED, ", ".join(gate.reasons))
    try:
        state = regroup(state)
    except TopologyError as error:
        return fail(state, FailureCode.TOPOLOGY_INVALID, str(error))
    if window_left(state, now) < spec.limits.begin_window:
        return fail(state, FailureCode.RECOVERY_WINDOW_EXPIRED, window_text(state, now, spec.limits.begin_window))
    return guard_all(replace(state, step=Step.GUARDING, marks={"begun": now}))


def guarded(state: Transaction, event: fx.Guarded, now: float) -> Advance:
    """Every participant holds our lease: look at the survivors."""
    state = guard_answered(state, event)
    if state.waiting:
        return state, ()
    if state.cancelled:
        return cancel(state)
    if state.errors:
        return fail(state, FailureCode.GUARD_FAILED, "; ".join(state.errors))
    limits = state.spec.limits
    budget = min(limits.execution_deadline, window_left(state, now) - limits.apply_window)
    state = replace(state, step=Step.OBSERVING, deadline=now + budget, marks={**state.marks, "guarded": now})
    watches = tuple(fx.Watch(p.address, p.survivors) for p in state.participants if p.survivors)
    state, queries = _query_survivors(state)
    return state, (*watches, *queries)


def _query_survivors(state: Transaction) -> Advance:
    """One round: fresh readings of every survivor."""
    if not state.survivors:
        return fail(state, FailureCode.ENGINE_FAILED, NO_SURVIVOR)
    state = replace(state, seen={}, wake_at=None)
    return query(state, {p.address: p.survivors for p in state.participants if p.survivors})


def ready_round(state: Transaction, event: fx.Observed, now: float) -> Advance:
    """Readings of one group; the round is judged when all have answered."""
    state = with_readings(state, event)
    return (state, ()) if state.waiting else _judge_round(state, now)


def _judge_round(state: Transaction, now: float) -> Advance:
    if state.cancelled:
        return cancel(state)
    if state.errors:
        return fail(state, FailureCode.ENGINE_FAILED, "; ".join(state.errors))
    if refuted := _refuted(state, state.seen.values()):
        return cancel(refuted)
    judgements = {rank: judge_ready(seen) for rank, seen in state.seen.items() if rank in state.survivors}
    state = remove(state, frozenset(rank for rank, j in judgements.items() if j.verdict is Verdict.DEAD))
    group = worst(judgements, state.survivors)
    if group.verdict is Verdict.FAILED:
        return fail(state, FailureCode.ENGINE_FAILED, group.text)
    if group.verdict is Verdict.GO:
        return _apply_ready(state, now)
    state = replace(state, step=Step.OBSERVING)
    if now >= state.deadline:
        return fail(state, FailureCode.APPLY_READY_TIMEOUT, group.text)
    if state.phase is Phase.DECIDING:
        return persist(state, Phase.WAITING_ENGINE_FAULT)
    return _wait(state, now)


def _wait(state: Transaction, now: float) -> Advance:
    return replace(state, wake_at=min(now + state.spec.limits.poll_interval, state.deadline)), ()


def waiting_persisted(state: Transaction, event: fx.Persisted, now: float) -> Advance:
    """WAITING_ENGINE_FAULT is written; the next round comes with the poll interval."""
    state = replace(state, persisting=False)
    if event.error:
        return fail(state, FailureCode.PERSIST_FAILED, event.error)
    state = replace(state, phase=Phase.WAITING_ENGINE_FAULT)
    return cancel(state) if state.cancelled else _wait(state, now)


def observe_again(state: Transaction, event: fx.Event, now: float) -> Advance:
    """The poll interval is over, or something has changed: a new round, unless one runs."""
    if state.waiting or state.persisting:
        return state, ()
    return _query_survivors(state)


def observe_push(state: Transaction, event: fx.Pushed, now: float) -> Advance:
    """A watch shows something else than the last round, or than what one that runs has read already."""
    known = state.seen.get(event.observation.rank)
    if known is not None and known.content() == event.observation.content():
        return state, ()
    return noted(state, event, now) if state.waiting else observe_again(state, event, now)


def noted(state: Transaction, event: fx.Pushed, now: float) -> Advance:
    """Judged when all have answered; what cannot be read is left to the readings of our own."""
    unread = event.observation.status is EngineStatus.UNKNOWN
    return (state if unread else newer(state, (event.observation,))), ()


def late_death(state: Transaction, event: fx.Died, now: float) -> Advance:
    """A survivor that died before the plan is frozen joins the removal set; unreachable alone is left to the round."""
    if event.source is EvidenceSource.STATUS_UNREACHABLE:
        return state, ()
    state = replace(state, unreachable=state.unreachable - {event.rank})
    if event.rank not in state.survivors:
        return state, ()
    state = replace(state, removed=state.removed | {event.rank})
    if not state.participants:
        return state, ()
    state = regroup(state)
    return observe_again(state, event, now) if state.step is Step.OBSERVING else (state, ())


def doom(state: Transaction, event: fx.Died, now: float) -> Advance:
    """A survivor that died after the plan was frozen ends the transaction at its next step."""
    if event.rank not in state.survivors:
        return state, ()
    return replace(state, doomed=f"rank {event.rank} died ({event.source}) after the plan was frozen"), ()


def recanted(state: Transaction, event: fx.Pushed, now: float) -> Advance:
    """A survivor that is not UNHEALTHY any more after the freeze ends it too; what cannot be read is left to apply."""
    seen = event.observation
    if seen.rank not in state.survivors or seen.status is EngineStatus.UNKNOWN or newer(state, (seen,)) == state:
        return state, ()
    judgement = judge_ready(seen)
    if judgement.verdict is Verdict.GO:
        return state, ()
    if state.step is not Step.ARMING and (refuted := _refuted(state, [seen])):
        return refuted, ()
    return replace(state, doomed=f"{judgement.text} after the plan was frozen"), ()


def _refuted(state: Transaction, readings: Iterable[EngineObservation]) -> Transaction | None:
    """A retry is for a group that is UNHEALTHY as a whole: when one is not, the decision is taken anew."""
    others = tuple(seen for seen in readings if seen.status in {EngineStatus.HEALTHY, EngineStatus.DEAD})
    if not (state.spec.retries and others):
        return None
    texts = ", ".join(f"rank {seen.rank} is {seen.status}" for seen in others)
    return replace(state, learned=others, cancelled=texts)


def death_cancels(state: Transaction, event: fx.Died, now: float) -> Advance:
    """A rank has died before a retry was sent: there is somebody to remove now, so the decision is taken anew."""
    return cancelled(state, fx.Cancel(f"rank {event.rank} died ({event.source})"), now)


def cancelled(state: Transaction, event: fx.Cancel, now: float) -> Advance:
    """Honoured at the next answer, or at once when none is owed."""
    state = replace(state, cancelled=event.reason)
    idle = state.step is Step.OBSERVING and not state.waiting and not state.persisting
    return cancel(state) if idle else (state, ())


def _stopped(state: Transaction) -> Advance | None:
    """What ends the transaction between two steps."""
    if state.cancelled:
        return cancel(state)
    return fail(state, FailureCode.ENGINE_FAILED, state.doomed) if state.doomed else None


def _apply_ready(state: Transaction, now: float) -> Advance:
    """Every survivor is ready; a rank that was only unreachable is asked once more before the plan is frozen."""
    asked = {
        pod.node_manager_address: tuple(
            sorted(e.rank for e in pod.endpoints if e.rank in state.unreachable and not e.headless)
        )
        for pod in state.spec.pods
    }
    asked = {address: ranks for address, ranks in asked.items() if ranks}
    if not asked or state.step is Step.RECHECKING:
        return _freeze(state, now)
    return query(replace(state, step=Step.RECHECKING), asked)


def rechecked(state: Transaction, event: fx.Observed, now: float) -> Advance:
    """An unreachable rank that answers after all, and is not dead, is no reason to remove anything.

    What the watch has shown of the survivors meanwhile is judged as well.
    """
    state = with_readings(state, event)
    if state.waiting:
        return state, ()
    back = tuple(seen for rank, seen in state.seen.items() if rank in state.unreachable and not still_dead(seen))
    if back:
        names = sorted(seen.rank for seen in back)
        return cancel(replace(state, learned=back, cancelled=f"ranks {names} answer again"))
    return _judge_round(replace(state, errors=()), now)


def _freeze(state: Transaction, now: float) -> Advance:
    """One plan for everybody, the guards are renewed with it; that of a retry removes nobody, now or earlier."""
    if not state.survivors:
        return fail(state, FailureCode.ENGINE_FAILED, NO_SURVIVOR)
    spec = state.spec
    survivors = {rank: state.seen[rank].incarnation for rank in state.survivors}
    removed = frozenset() if spec.retries else frozenset(state.cumulative)
    plan = freeze_plan(spec.instance_id, spec.generation, removed, survivors)
    marks = {**state.marks, "apply_ready": now}
    return guard_all(replace(state, step=Step.FREEZING, plan=plan, marks=marks))


def frozen(state: Transaction, event: fx.Guarded, now: float) -> Advance:
    """Everybody holds the plan: take the instance out of the serving view."""
    state = guard_answered(state, event)
    if state.waiting:
        return state, ()
    if stop := _stopped(state):
        return stop
    if state.errors:
        return fail(state, FailureCode.GUARD_FAILED, "; ".join(state.errors))
    return replace(state, step=Step.WITHDRAWING, withdrawn=True), (fx.Withdraw(),)


def withdrawn(state: Transaction, event: fx.Withdrawn, now: float) -> Advance:
    """Nobody routes to it any more: write SCALING_DOWN, the intent to apply."""
    if stop := _stopped(state):
        return stop
    if not event.confirmed:
        return fail(state, FailureCode.WITHDRAW_UNCONFIRMED, "a Coordinator did not confirm the withdrawal in time")
    state = replace(state, step=Step.ARMING, marks={**state.marks, "withdrawn": now})
    return persist(state, Phase.SCALING_DOWN)


def armed(state: Transaction, event: fx.Persisted, now: float) -> Advance:
    """The intent is durable: last look at window and lease, then apply."""
    state = replace(state, persisting=False)
    if event.error:
        return fail(state, FailureCode.PERSIST_FAILED, event.error)
    state = replace(state, phase=Phase.SCALING_DOWN)
    limits = state.spec.limits
    if state.doomed:
        return fail(state, FailureCode.ENGINE_FAILED, state.doomed)
    if window_left(state, now) < limits.apply_window:
        return fail(state, FailureCode.RECOVERY_WINDOW_EXPIRED, window_text(state, now, limits.apply_window))
    left = min(state.lease_end.values()) - now
    if left < limits.lease_to_apply:
        text = f"{left:.1f} s of the guard lease are left, {limits.lease_to_apply:.1f} s are needed to apply"
        return fail(state, FailureCode.GUARD_FAILED, text)
    return apply_all(state)
