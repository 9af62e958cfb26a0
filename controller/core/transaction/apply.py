"""Apply once, poll, commit, record, publish (recovery.md section 5, steps 8 to 11)."""

from dataclasses import replace

from controller.core import effects as fx
from controller.core.errors import Failure, FailureCode
from controller.core.outcome import Outcome
from controller.core.phases import Phase
from controller.core.ports import ApplyOrder
from controller.core.probe import CompletionProbe
from controller.core.topology import endpoint_ip
from controller.core.transaction.state import (
    Advance,
    Step,
    Transaction,
    answered,
    done,
    fail,
    guard_all,
    guard_answered,
    newer,
    query,
    with_readings,
)
from controller.core.verdict import Judgement, Verdict, judge_recovery, worst
from motor_ft.model.command import ScaleDownPlan
from motor_ft.model.engine import ApplyOutcome


def apply_all(state: Transaction) -> Advance:
    """The one dispatch: the same order to every group of survivors."""
    plan = _plan(state)
    groups = [participant for participant in state.participants if participant.survivors]
    order = ApplyOrder(state.spec.instruction, plan_hash=plan.plan_hash)
    if not state.spec.retries:
        order = replace(
            order,
            removed=plan.removed,
            dp_master_ip=endpoint_ip(state.spec.pods, plan.lowest_survivor),
            dp_store_port=state.dp_store_port,
        )
    state = replace(state, step=Step.APPLYING, waiting=frozenset(group.address for group in groups))
    return state, tuple(fx.Apply(group.address, replace(order, ranks=group.survivors)) for group in groups)


def applied(state: Transaction, event: fx.Applied, now: float) -> Advance:
    """One group has answered; anything but ACCEPTED from every survivor ends the transaction."""
    accepted = {outcome.rank: outcome for outcome in event.outcomes if outcome.outcome is ApplyOutcome.ACCEPTED}
    refused = [
        f"rank {outcome.rank} {outcome.outcome}: {outcome.detail}"
        for outcome in event.outcomes
        if outcome.outcome is not ApplyOutcome.ACCEPTED
    ]
    state = answered(state, event.address, event.error)
    state = replace(state, accepted={**state.accepted, **accepted}, errors=(*state.errors, *refused))
    if state.waiting:
        return state, ()
    missing = sorted(state.survivors - state.accepted.keys())
    if missing or state.errors:
        text = f"not accepted by ranks {missing}: {'; '.join(state.errors)}"
        return fail(state, FailureCode.APPLY_NOT_ACCEPTED, text)
    if state.doomed:
        return fail(state, FailureCode.ENGINE_FAILED, state.doomed)
    deadline = now + state.spec.limits.execution_deadline
    state = replace(state, step=Step.POLLING, deadline=deadline, seen={}, marks={**state.marks, "applied": now})
    return _poll(state, now)


def _poll(state: Transaction, now: float) -> Advance:
    groups = {p.address: p.survivors for p in state.participants if p.survivors and p.address not in state.waiting}
    state = replace(state, wake_at=min(now + state.spec.limits.poll_interval, state.deadline))
    return query(state, groups)


def polled(state: Transaction, event: fx.Observed, now: float) -> Advance:
    """Answer to our own reading."""
    return _judge_recovery(with_readings(state, event), now)


def pushed(state: Transaction, event: fx.Pushed, now: float) -> Advance:
    """A reading that the NodeManager sent by itself."""
    return _judge_recovery(newer(state, (event.observation,)), now)


def poll_again(state: Transaction, event: fx.Tick, now: float) -> Advance:
    """Ask again until the deadline; at exactly the deadline it is over."""
    if now < state.deadline:
        return _poll(state, now)
    return fail(state, FailureCode.RECOVERY_TIMEOUT, _recovery(state).text)


def _judge_recovery(state: Transaction, now: float) -> Advance:
    if state.errors:
        return fail(state, FailureCode.ENGINE_FAILED, "; ".join(state.errors))
    group = _recovery(state)
    if group.verdict is Verdict.FAILED:
        return fail(state, FailureCode.ENGINE_FAILED, group.text)
    if group.verdict is Verdict.WAIT:
        return state, ()
    learned = tuple(state.seen[rank] for rank in sorted(state.survivors))
    state = replace(state, wake_at=None, learned=learned, marks={**state.marks, "healthy": now})
    return _recovered(state) if state.spec.completion_probe is CompletionProbe.OFF else _probe(state, now)


def _probe(state: Transaction, now: float) -> Advance:
    """HEALTHY is what engines say of themselves; each survivor shows it with a completion, all at the same time."""
    left = state.deadline - now
    if left <= 0:
        return fail(state, FailureCode.RECOVERY_TIMEOUT, "no time is left for a completion of each survivor")
    groups = {p.address: p.survivors for p in state.participants if p.survivors}
    state = replace(state, step=Step.PROBING, waiting=frozenset(groups), wake_at=state.deadline)
    return state, tuple(fx.Probe(address, ranks, left) for address, ranks in groups.items())


def probed(state: Transaction, event: fx.Probed, now: float) -> Advance:
    """One group has answered; a survivor that does not serve ends the transaction."""
    state = answered(state, event.address, event.error)
    mode = state.spec.completion_probe
    idle = [f"rank {probe.rank} serves nothing: {probe.detail}" for probe in event.probes if not mode.satisfied(probe)]
    if state.errors or idle:
        return fail(state, FailureCode.ENGINE_FAILED, "; ".join((*state.errors, *idle)))
    if state.waiting:
        return state, ()
    return _recovered(replace(state, wake_at=None, marks={**state.marks, "probed": now}))


def probe_over(state: Transaction, event: fx.Tick, now: float) -> Advance:
    """The deadline of the polls."""
    return fail(state, FailureCode.RECOVERY_TIMEOUT, f"no completion in time from {', '.join(sorted(state.waiting))}")


def _recovered(state: Transaction) -> Advance:
    return _release(state) if state.spec.retries else guard_all(replace(state, step=Step.RENEWING))


def _release(state: Transaction) -> Advance:
    """Nobody was removed, so there is nothing to commit: the guards are given back."""
    addresses = [participant.address for participant in state.participants]
    state = replace(state, step=Step.RELEASING, waiting=frozenset(addresses))
    return state, tuple(fx.Finalize(address, commit=False) for address in addresses)


def released(state: Transaction, event: fx.Finalized, now: float) -> Advance:
    """A guard that could not be given back ends by itself; the engines have recovered all the same."""
    state = replace(state, waiting=state.waiting - {event.address})
    return (state, ()) if state.waiting else _record(replace(state, step=Step.CLEANING))


def _recovery(state: Transaction) -> Judgement:
    incarnations = dict(_plan(state).survivors)
    judgements = {
        rank: judge_recovery(seen, incarnations[rank], state.accepted[rank], state.spec.request_id)
        for rank, seen in state.seen.items()
        if rank in incarnations
    }
    return worst(judgements, sorted(incarnations))


def _plan(state: Transaction) -> ScaleDownPlan:
    assert state.plan is not None, "a transaction past FREEZING has a plan"
    return state.plan


def died_while_polling(state: Transaction, event: fx.Died, now: float) -> Advance:
    """A survivor that dies after apply ends the transaction."""
    if event.rank not in state.survivors:
        return state, ()
    return fail(state, FailureCode.ENGINE_FAILED, f"rank {event.rank} died ({event.source}) after apply")


def renewed(state: Transaction, event: fx.Guarded, now: float) -> Advance:
    """A lease that could not be renewed may still be long enough: the commit finds out."""
    state = replace(guard_answered(state, event), errors=())
    if state.waiting:
        return state, ()
    return _commit_rest(replace(state, step=Step.COMMITTING), now)


def _commit_rest(state: Transaction, now: float) -> Advance:
    """Commit at everybody who has not confirmed yet, while every lease leaves time for an answer."""
    rest = [p for p in state.participants if p.address not in state.committed]
    last_call = now + 2 * state.spec.limits.request_timeout
    late = frozenset(p.address for p in rest if state.lease_end[p.address] <= last_call)
    if late:
        return _commit_failed(replace(state, lost=late))
    state = replace(state, waiting=frozenset(p.address for p in rest), errors=(), wake_at=None)
    return state, tuple(fx.Finalize(p.address, commit=True, retired=p.removed) for p in rest)


def committed(state: Transaction, event: fx.Finalized, now: float) -> Advance:
    """One NodeManager has confirmed, refused (which ends it), or not answered: those are asked again."""
    state = replace(state, waiting=state.waiting - {event.address})
    if not event.error:
        state = replace(state, committed=state.committed | {event.address})
    else:
        lost = state.lost | {event.address} if event.refused else state.lost
        state = replace(state, lost=lost, errors=(*state.errors, f"{event.address}: {event.error}"))
    if state.waiting:
        return state, ()
    if state.lost:
        return _commit_failed(state)
    if all(p.address in state.committed for p in state.participants):
        return _record(replace(state, step=Step.RECORDING, marks={**state.marks, "committed": now}))
    return replace(state, wake_at=now + state.spec.limits.poll_interval), ()


def commit_again(state: Transaction, event: fx.Tick, now: float) -> Advance:
    """The poll interval is over."""
    return (state, ()) if state.waiting else _commit_rest(state, now)


def _commit_failed(state: Transaction) -> Advance:
    why = "; ".join(state.errors) or "the guard lease leaves no time for it"
    return fail(state, FailureCode.COMMIT_FAILED, f"not committed by {', '.join(sorted(state.lost))}: {why}")


def _record(state: Transaction) -> Advance:
    """The engines have changed and nothing is taken back: the write is repeated until it is stored."""
    state = replace(state, persisting=True, wake_at=None)
    if state.step is Step.RECORDING:
        return state, (fx.Persist(Phase.POST_SCALE_CLEANUP, dead_committed=state.cumulative),)
    return state, (fx.Persist(state.spec.serving_phase),)


def record_again(state: Transaction, event: fx.Tick, now: float) -> Advance:
    """The poll interval is over."""
    return (state, ()) if state.persisting else _record(state)


def recorded(state: Transaction, event: fx.Persisted, now: float) -> Advance:
    """RECORDING, then CLEANING, then publish; a write that failed is tried again."""
    state = replace(state, persisting=False)
    if event.error:
        return replace(state, wake_at=now + state.spec.limits.poll_interval), ()
    if state.step is Step.RECORDING:
        state, write = _record(replace(state, step=Step.CLEANING, phase=Phase.POST_SCALE_CLEANUP))
        return state, (*_recycle(state), *write)
    state = replace(state, step=Step.PUBLISHING, phase=state.spec.serving_phase, withdrawn=False)
    return state, (fx.Publish(),)


def _recycle(state: Transaction) -> tuple[fx.Effect, ...]:
    """Pods that lost their last active rank with this transaction; one that was emptied earlier was told then."""
    if not state.spec.recycles:
        return ()
    took_part = {participant.address for participant in state.participants}
    emptied = (pod for pod in state.spec.pods if not {e.rank for e in pod.endpoints} & state.survivors)
    addresses = (pod.node_manager_address for pod in emptied)
    return tuple(fx.Recycle(address) for address in addresses if address in took_part)


def published(state: Transaction, event: fx.Published, now: float) -> Advance:
    """The survivors serve, or will with the next SET."""
    if event.confirmed:
        return done(replace(state, marks={**state.marks, "published": now}), Outcome.SUCCEEDED)
    failure = Failure(FailureCode.PUBLISH_PENDING, "a Coordinator did not confirm the survivors; SET converges")
    return done(replace(state, failure=failure), Outcome.SUCCEEDED)
