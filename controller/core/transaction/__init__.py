"""The transaction as a pure state machine (RFC section 5, recovery.md section 5).

Its instruction is ``scale_down``, which removes ranks, or ``retry`` (fast recovery, recovery.md section 8), which does
not: all active ranks are UNHEALTHY, each is told to retry, and the instance goes back to the phase before.

``begin`` and ``advance`` return the next state and the effects to perform; a strategy performs them and feeds the
answers back. One request id, one frozen plan, apply at most once, no second attempt. ``TABLE`` says which event means
something in which step; everything else is ignored.
"""

from collections.abc import Callable
from typing import Any

from controller.core import effects as fx
from controller.core.outcome import Outcome
from controller.core.transaction import apply, prepare
from controller.core.transaction.prepare import begin
from controller.core.transaction.state import (
    Advance,
    Limits,
    Spec,
    Step,
    Transaction,
    aborted,
    revert_published,
    reverted,
)

__all__ = ["RETRY_TABLE", "TABLE", "Advance", "Limits", "Outcome", "Spec", "Step", "Transaction", "advance", "begin"]

Handler = Callable[[Transaction, Any, float], Advance]

TABLE: dict[Step, dict[type[fx.Event], Handler]] = {
    Step.BEGINNING: {fx.Persisted: prepare.begun, fx.Died: prepare.late_death, fx.Cancel: prepare.cancelled},
    Step.GUARDING: {fx.Guarded: prepare.guarded, fx.Died: prepare.late_death, fx.Cancel: prepare.cancelled},
    Step.OBSERVING: {
        fx.Observed: prepare.ready_round,
        fx.Persisted: prepare.waiting_persisted,
        fx.Pushed: prepare.observe_push,
        fx.Tick: prepare.observe_again,
        fx.Died: prepare.late_death,
        fx.Cancel: prepare.cancelled,
    },
    Step.RECHECKING: {
        fx.Observed: prepare.rechecked,
        fx.Pushed: prepare.noted,
        fx.Died: prepare.late_death,
        fx.Cancel: prepare.cancelled,
    },
    Step.FREEZING: {
        fx.Guarded: prepare.frozen,
        fx.Pushed: prepare.recanted,
        fx.Died: prepare.doom,
        fx.Cancel: prepare.cancelled,
    },
    Step.WITHDRAWING: {
        fx.Withdrawn: prepare.withdrawn,
        fx.Pushed: prepare.recanted,
        fx.Died: prepare.doom,
        fx.Cancel: prepare.cancelled,
    },
    Step.ARMING: {fx.Persisted: prepare.armed, fx.Pushed: prepare.recanted, fx.Died: prepare.doom},
    Step.APPLYING: {fx.Applied: apply.applied, fx.Died: prepare.doom},
    Step.POLLING: {
        fx.Observed: apply.polled,
        fx.Pushed: apply.pushed,
        fx.Tick: apply.poll_again,
        fx.Died: apply.died_while_polling,
    },
    Step.PROBING: {fx.Probed: apply.probed, fx.Tick: apply.probe_over, fx.Died: apply.died_while_polling},
    Step.RENEWING: {fx.Guarded: apply.renewed},
    Step.COMMITTING: {fx.Finalized: apply.committed, fx.Tick: apply.commit_again},
    Step.RECORDING: {fx.Persisted: apply.recorded, fx.Tick: apply.record_again},
    Step.CLEANING: {fx.Persisted: apply.recorded, fx.Tick: apply.record_again},
    Step.PUBLISHING: {fx.Published: apply.published},
    Step.ABORTING: {fx.Finalized: aborted},
    Step.REVERTING: {fx.Persisted: reverted, fx.Published: revert_published},
    Step.DONE: {},
}

_UNSENT = (Step.BEGINNING, Step.GUARDING, Step.OBSERVING, Step.FREEZING, Step.WITHDRAWING)
_SENT = (Step.ARMING, Step.APPLYING, Step.POLLING, Step.PROBING, Step.CLEANING, Step.PUBLISHING)
_ENDING = (Step.ABORTING, Step.REVERTING, Step.DONE)
RETRY_TABLE: dict[Step, dict[type[fx.Event], Handler]] = {
    **{step: TABLE[step] | {fx.Died: prepare.death_cancels} for step in _UNSENT},
    **{step: TABLE[step] for step in _SENT + _ENDING},
    Step.RELEASING: {fx.Finalized: apply.released},
}
"""A retry goes the same way, but removes nobody: a death that is told before SCALING_DOWN is written cancels it, and
there is nothing to commit."""


def advance(state: Transaction, event: fx.Event, now: float) -> Advance:
    """One step at monotonic time ``now``; an event that means nothing in this step changes nothing."""
    table = RETRY_TABLE if state.spec.retries else TABLE
    handler = table[state.step].get(type(event))
    return handler(state, event, now) if handler else (state, ())
