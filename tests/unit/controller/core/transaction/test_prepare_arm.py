"""Freeze, withdraw, write the intent, look once more (recovery.md section 5, steps 6 to 8)."""

import pytest

from controller.core import effects as fx
from controller.core.errors import FailureCode
from controller.core.phases import Phase
from controller.core.transaction import Outcome, Step
from motor_ft.model.engine import EngineStatus, EvidenceSource, FtState
from tests.unit.controller.core.fleet import read
from tests.unit.controller.core.transaction.world import POD_1, POD_2, START, Run, spec

HEALTHY, UNHEALTHY, DEAD, DIAGNOSING, UNKNOWN = EngineStatus
EXIT, REPORTED, UNREACHABLE = EvidenceSource
DOWN = Phase.SCALED_DOWN_RUNNING


# --- freeze ---


def test_the_plan_is_cumulative_and_names_the_engines_that_were_read() -> None:
    run = Run(spec({2: REPORTED}, dead_committed=[1], previous_phase=DOWN)).to(Step.FREEZING)
    plan = run.state.plan
    assert plan is not None
    assert (plan.removed, plan.survivors) == ((1, 2), ((0, "e0"), (3, "e3")))
    assert run.take(fx.Guard) == [fx.Guard(POD_1, 85.0, plan), fx.Guard(POD_2, 85.0, plan)]


def test_a_renewal_refused_by_one_means_no_withdrawal_and_no_apply() -> None:
    run = Run(spec()).to(Step.FREEZING)
    first, second = run.take(fx.Guard)
    run.drop(first)
    assert run.at(Step.FREEZING)
    run.reply(second)
    run.fails(FailureCode.GUARD_FAILED, f"{POD_1}: GUARD_HELD")
    assert run.never(fx.Withdraw)


@pytest.mark.parametrize("step", [Step.FREEZING, Step.WITHDRAWING, Step.ARMING])
@pytest.mark.parametrize("source", EvidenceSource)
def test_a_survivor_that_dies_after_the_freeze_ends_it_without_an_apply(source: EvidenceSource, step: Step) -> None:
    """The plan is frozen: it can no longer be absorbed."""
    run = Run(spec()).to(step)
    run.die(2, source)
    assert run.at(step)
    run.fails(FailureCode.ENGINE_FAILED, f"rank 2 died ({source}) after the plan was frozen")
    assert run.never(fx.Apply)


@pytest.mark.parametrize("step", [Step.FREEZING, Step.WITHDRAWING, Step.ARMING])
def test_a_removed_rank_that_dies_once_more_ends_nothing(step: Step) -> None:
    run = Run(spec()).to(step)
    run.die(1)
    run.ends(Outcome.SUCCEEDED)


@pytest.mark.parametrize("step", [Step.FREEZING, Step.WITHDRAWING, Step.ARMING])
@pytest.mark.parametrize(
    ("status", "ft_state"),
    [
        (EngineStatus.HEALTHY, FtState.NONE),
        (EngineStatus.DIAGNOSING, FtState.NONE),
        (EngineStatus.UNHEALTHY, FtState.RECOVERING),
        (EngineStatus.UNHEALTHY, FtState.FAILED),
        (EngineStatus.DEAD, FtState.NONE),
    ],
)
def test_a_survivor_that_is_not_ready_any_more_after_the_freeze_means_no_apply(
    status: EngineStatus, ft_state: FtState, step: Step
) -> None:
    """UNHEALTHY ranks are the only ones that may receive apply."""
    run = Run(spec()).to(step)
    run.reading(2, status, ft_state)
    run.push(2)
    assert run.at(step)
    run.fails(FailureCode.ENGINE_FAILED, "after the plan was frozen")
    assert run.never(fx.Apply)


@pytest.mark.parametrize("step", [Step.FREEZING, Step.WITHDRAWING, Step.ARMING])
@pytest.mark.parametrize(
    ("rank", "status", "observation"),
    [
        (2, EngineStatus.UNHEALTHY, 99),
        (2, EngineStatus.UNKNOWN, 99),
        (2, EngineStatus.HEALTHY, 1),
        (1, EngineStatus.HEALTHY, 99),
    ],
)
def test_a_push_that_is_ready_unread_old_or_of_a_removed_rank_ends_nothing(
    rank: int, status: EngineStatus, observation: int, step: Step
) -> None:
    run = Run(spec()).to(step)
    run.feed(fx.Pushed(read(rank, status, observation=observation)))
    run.ends(Outcome.SUCCEEDED)


# --- withdraw and arm ---


def test_withdraw_not_confirmed_means_no_apply() -> None:
    run = Run(spec()).to(Step.WITHDRAWING)
    assert run.state.withdrawn
    run.drop(run.take(fx.Withdraw)[0])
    run.fails(FailureCode.WITHDRAW_UNCONFIRMED)
    assert Phase.SCALING_DOWN not in [effect.phase for effect in run.of(fx.Persist)]


def test_an_intent_that_is_not_written_means_no_apply() -> None:
    run = Run(spec()).to(Step.ARMING)
    run.drop(run.take(fx.Persist)[0])
    run.fails(FailureCode.PERSIST_FAILED)
    assert run.state.phase is Phase.DECIDING


def arm(run: Run, *, now: float) -> Run:
    """The last look happens at this time."""
    (written,) = run.to(Step.ARMING).take(fx.Persist)
    run.now = now
    run.reply(written)
    return run


@pytest.mark.parametrize(("left", "applies"), [(20.0, True), (19.75, False)])
def test_apply_needs_20_s_of_the_recovery_window(left: float, applies: bool) -> None:
    run = arm(Run(spec(unhealthy_since=START - 80)), now=START + 40 - left)
    if applies:
        run.ends(Outcome.SUCCEEDED)
    else:
        run.fails(FailureCode.RECOVERY_WINDOW_EXPIRED, "19.8 s of the engines' recovery window are left, 20 s")


@pytest.mark.parametrize(("left", "applies"), [(40.0, True), (39.75, False)])
def test_apply_needs_as_much_lease_as_execution_renewal_and_commit_take(left: float, applies: bool) -> None:
    """The lease counts from when the request left us, not from its answer."""
    run = Run(spec(recovery_timeout=500.0)).to(Step.FREEZING)
    first, second = run.take(fx.Guard)
    run.now += 3
    run.feed(run.good(first, START))
    run.reply(second)
    arm(run, now=START + 85 - left)
    if applies:
        run.ends(Outcome.SUCCEEDED)
    else:
        run.fails(FailureCode.GUARD_FAILED, "39.8 s of the guard lease are left, 40.0 s are needed")
