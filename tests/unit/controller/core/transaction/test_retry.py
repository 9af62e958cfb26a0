"""Fast recovery: all ranks are UNHEALTHY and each is told to retry, once (recovery.md section 8, RFC section 4.3)."""

from dataclasses import replace

import pytest

from controller.core import effects as fx
from controller.core.errors import FailureCode
from controller.core.gate import GateReason
from controller.core.phases import Phase
from controller.core.ports import ApplyOrder
from controller.core.transaction import Outcome, Step
from motor_ft.model.engine import EngineStatus, EvidenceSource, FtState, Instruction
from tests.unit.controller.core.fleet import CAPABILITY, pod
from tests.unit.controller.core.transaction.world import POD_1, POD_2, START, Run, retry

HEALTHY, UNHEALTHY, DEAD, DIAGNOSING, UNKNOWN = EngineStatus
UNSENT = [Step.BEGINNING, Step.GUARDING, Step.OBSERVING, Step.FREEZING, Step.WITHDRAWING]


def test_every_rank_is_told_once_then_the_guards_are_given_back_and_the_phase_before_returns() -> None:
    run = Run(retry())
    run.ends(Outcome.SUCCEEDED)
    told = {effect.address: effect.order for effect in run.of(fx.Apply)}
    plan = run.state.plan
    assert plan is not None
    assert (plan.removed, plan.survivors) == ((), ((0, "e0"), (1, "e1"), (2, "e2"), (3, "e3")))
    order = ApplyOrder(Instruction.RETRY, plan_hash=plan.plan_hash)
    assert told == {POD_1: replace(order, ranks=(0, 1)), POD_2: replace(order, ranks=(2, 3))}
    assert run.of(fx.Finalize) == [fx.Finalize(POD_1, commit=False), fx.Finalize(POD_2, commit=False)]
    assert run.of(fx.Persist) == [fx.Persist(p) for p in (Phase.DECIDING, Phase.SCALING_DOWN, Phase.NORMAL)]
    assert [type(effect) for effect in run.effects if isinstance(effect, fx.Withdraw | fx.Publish)] == [
        fx.Withdraw,
        fx.Publish,
    ]
    assert not run.state.withdrawn
    assert run.state.removed == frozenset()


def test_an_instance_without_some_ranks_stays_without_them() -> None:
    """Nobody is retired by a retry, and the ranks that are gone are neither asked nor told nor in the plan."""
    run = Run(retry(dead_committed=[1]))
    run.ends(Outcome.SUCCEEDED)
    assert {rank for effect in run.of(fx.Apply) for rank in effect.order.ranks} == {0, 2, 3}
    assert {effect.order.removed for effect in run.of(fx.Apply)} == {()}
    assert run.of(fx.Persist)[-1] == fx.Persist(Phase.SCALED_DOWN_RUNNING)


def test_success_teaches_that_the_ranks_are_healthy() -> None:
    """Their own reports may come later; until then all would still be UNHEALTHY, which is what a retry is for."""
    run = Run(retry())
    run.finish()
    assert {seen.rank: seen.status for seen in run.state.learned} == dict.fromkeys(range(4), HEALTHY)


# --- the gate ---


def gated(**changes: bool | int) -> Run:
    capability = replace(CAPABILITY, **changes)  # type: ignore[arg-type]
    return Run(retry(pods=(pod(1, [0, 1], capability=capability), pod(2, [2, 3], capability=capability))))


def test_engines_that_cannot_scale_down_may_retry() -> None:
    """The point of vLLM as released: only retry."""
    gated(scale_down_supported=False, eplb=False, num_redundant_experts=0).ends(Outcome.SUCCEEDED)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"engine_ft": False}, GateReason.ENGINE_FT_REQUIRED),
        ({"external_lb": False}, GateReason.EXTERNAL_LB_REQUIRED),
        ({"auto_recovery": True}, GateReason.AUTO_RECOVERY_CONFLICT),
    ],
)
def test_the_gate_refuses_what_makes_any_command_unsafe(changes: dict[str, bool], reason: GateReason) -> None:
    run = gated(**changes)
    run.fails(FailureCode.GATE_REFUSED, reason)
    assert run.never(fx.Guard, fx.Withdraw)


def test_it_needs_the_feature() -> None:
    Run(retry(scale_down_enabled=False)).fails(FailureCode.GATE_REFUSED, "FEATURE_DISABLED")


# --- before anything is sent ---


@pytest.mark.parametrize("step", UNSENT)
@pytest.mark.parametrize("source", EvidenceSource)
def test_a_death_before_the_write_leaves_the_decision_to_the_table(step: Step, source: EvidenceSource) -> None:
    """Not a failure: nothing was sent, and there is somebody to remove now."""
    run = Run(retry()).to(step)
    run.feed(fx.Died(2, source))
    run.ends(Outcome.CANCELLED)
    assert run.never(fx.Apply)
    assert run.of(fx.Persist)[-1] == fx.Persist(Phase.NORMAL)
    assert bool(run.of(fx.Publish)) is (step is Step.WITHDRAWING)


def test_a_death_while_it_waits_is_honoured_at_once() -> None:
    run = Run(retry())
    run.reading(2, DIAGNOSING)
    run.to(Step.OBSERVING)
    while run.owed:
        run.answer(run.owed[0])
    run.die(1)
    assert run.at(Step.ABORTING)
    run.ends(Outcome.CANCELLED)


@pytest.mark.parametrize("status", [DEAD, HEALTHY])
def test_a_rank_that_reads_dead_or_healthy_cancels_it_and_is_learned(status: EngineStatus) -> None:
    run = Run(retry())
    run.reading(2, status)
    run.ends(Outcome.CANCELLED)
    assert run.never(fx.Apply, fx.Withdraw)
    assert [(seen.rank, seen.status) for seen in run.state.learned] == [(2, status)]


@pytest.mark.parametrize("status", [DEAD, HEALTHY])
@pytest.mark.parametrize("step", [Step.FREEZING, Step.WITHDRAWING])
def test_so_does_one_that_is_pushed_after_the_plan_was_frozen(step: Step, status: EngineStatus) -> None:
    run = Run(retry()).to(step)
    run.reading(2, status)
    run.push(2)
    run.ends(Outcome.CANCELLED)
    assert run.never(fx.Apply)
    assert [(seen.rank, seen.status) for seen in run.state.learned] == [(2, status)]


@pytest.mark.parametrize("status", [DEAD, HEALTHY, DIAGNOSING])
def test_while_scaling_down_is_written_it_is_too_late_for_that(status: EngineStatus) -> None:
    run = Run(retry()).to(Step.ARMING)
    run.reading(2, status)
    run.push(2)
    run.fails(FailureCode.ENGINE_FAILED, f"rank 2 is {status} after the plan was frozen")


@pytest.mark.parametrize(("status", "ft_state"), [(DIAGNOSING, FtState.NONE), (UNHEALTHY, FtState.RECOVERING)])
def test_it_waits_for_a_rank_that_is_not_ready_and_gives_up_at_the_deadline(
    status: EngineStatus, ft_state: FtState
) -> None:
    run = Run(retry())
    run.reading(2, status, ft_state)
    run.fails(FailureCode.APPLY_READY_TIMEOUT)
    assert run.now == START + 30
    assert run.never(fx.Withdraw)


@pytest.mark.parametrize(
    ("status", "ft_state", "error"),
    [(UNKNOWN, FtState.NONE, ""), (UNHEALTHY, FtState.FAILED, "x"), (UNHEALTHY, FtState.NONE, "wait timeout")],
)
def test_a_failed_command_or_an_unreadable_engine_ends_it(status: EngineStatus, ft_state: FtState, error: str) -> None:
    """In dialect (a) a failed command shows only its error: its group may be an epoch apart, which no retry repairs."""
    run = Run(retry())
    run.reading(2, status, ft_state)
    run.engines[2].ft_error = error
    run.fails(FailureCode.ENGINE_FAILED)
    assert run.never(fx.Withdraw)


def test_it_does_not_begin_with_less_than_35_s_of_the_window() -> None:
    run = Run(retry(unhealthy_since=START - 85.1))
    run.fails(FailureCode.RECOVERY_WINDOW_EXPIRED, "35 s are needed")
    assert run.never(fx.Guard)


def test_it_does_not_retry_with_less_than_20_s_of_the_window() -> None:
    run = Run(retry(unhealthy_since=START - 85)).to(Step.ARMING)
    run.now = START + 15.1
    run.fails(FailureCode.RECOVERY_WINDOW_EXPIRED, "20 s are needed")


def test_an_unconfirmed_withdrawal_ends_it() -> None:
    run = Run(retry()).to(Step.WITHDRAWING)
    run.lose(run.owed[0])
    run.fails(FailureCode.WITHDRAW_UNCONFIRMED)


# --- after it was sent ---


@pytest.mark.parametrize("refused", [True, False])
def test_what_one_pod_does_not_accept_fails_for_all(refused: bool) -> None:
    """The ranks that were left out can be an epoch behind: nothing is sent again."""
    run = Run(retry()).to(Step.APPLYING)
    run.lose(run.owed[1], refused=refused)
    run.fails(FailureCode.APPLY_NOT_ACCEPTED)
    assert run.state.phase is Phase.SCALING_DOWN


def hung(last_id: str = "", error: str = "", ft_state: FtState = FtState.NONE) -> Run:
    """Accepted everywhere; rank 2 then reads UNHEALTHY with this receipt."""
    run = Run(retry()).hang().to(Step.POLLING)
    run.reading(2, UNHEALTHY, ft_state, last_id)
    run.engines[2].ft_error = error
    return run


@pytest.mark.parametrize("ft_state", [FtState.NONE, FtState.FAILED])
def test_a_failure_with_our_id_ends_it(ft_state: FtState) -> None:
    """Dialect (a) has no command state: the error and the engine's own id are all that shows it."""
    run = hung("request-1", "wait timeout after 5000ms", ft_state)
    run.fails(FailureCode.ENGINE_FAILED, "rank 2 failed: wait timeout")
    assert run.now < START + 30


@pytest.mark.parametrize("ft_state", [FtState.NONE, FtState.FAILED])
def test_a_failure_of_another_id_is_not_ours(ft_state: FtState) -> None:
    hung("earlier", "wait timeout after 5000ms", ft_state).fails(FailureCode.RECOVERY_TIMEOUT)


def test_a_rank_that_dies_after_the_write_ends_it() -> None:
    for step in (Step.ARMING, Step.APPLYING, Step.POLLING):
        run = Run(retry()).to(step)
        run.die(2)
        run.fails(FailureCode.ENGINE_FAILED)


def test_a_cancel_after_the_write_is_ignored() -> None:
    run = Run(retry()).to(Step.ARMING)
    run.feed(fx.Cancel("pre-empted"))
    run.ends(Outcome.SUCCEEDED)


# --- the end ---


def test_a_guard_that_cannot_be_given_back_changes_nothing() -> None:
    """It ends by itself; the engines have recovered."""
    run = Run(retry()).to(Step.RELEASING)
    run.lose(run.owed[0], refused=True)
    assert run.at(Step.RELEASING)
    run.lose(run.owed[0])
    run.ends(Outcome.SUCCEEDED)


def test_the_phase_before_is_written_until_it_is_stored() -> None:
    run = Run(retry()).to(Step.CLEANING)
    run.lose(run.owed[0])
    run.ends(Outcome.SUCCEEDED)
    assert run.of(fx.Persist)[-2:] == [fx.Persist(Phase.NORMAL)] * 2


def test_a_publication_that_is_not_confirmed_is_pending() -> None:
    run = Run(retry()).to(Step.PUBLISHING)
    run.lose(run.owed[0])
    run.ends(Outcome.SUCCEEDED, FailureCode.PUBLISH_PENDING)


def test_candidates_do_not_make_a_retry_remove_anybody() -> None:
    """A dead rank is found by the readings, before anything is sent."""
    spec = replace(retry(), candidates={1: EvidenceSource.ENGINE_REPORTED})
    run = Run(spec)
    run.ends(Outcome.CANCELLED)
    assert run.never(fx.Apply)
