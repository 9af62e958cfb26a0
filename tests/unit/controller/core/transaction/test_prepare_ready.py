"""Survivors that must be UNHEALTHY, and those that die meanwhile (recovery.md section 5, step 5)."""

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


# --- apply-ready ---


def test_survivors_that_are_ready_in_the_first_round_go_on_without_waiting() -> None:
    run = Run(spec()).to(Step.ARMING)
    assert run.now == START
    assert [effect.phase for effect in run.of(fx.Persist)] == [Phase.DECIDING, Phase.SCALING_DOWN]
    assert run.of(fx.Watch) == [fx.Watch(POD_1, (0,)), fx.Watch(POD_2, (2, 3))]


@pytest.mark.parametrize(
    ("status", "ft_state"), [(HEALTHY, FtState.NONE), (DIAGNOSING, FtState.NONE), (UNHEALTHY, FtState.RECOVERING)]
)
def test_a_survivor_that_is_not_ready_is_waited_for_and_then_applied_once(
    status: EngineStatus, ft_state: FtState
) -> None:
    run = Run(spec())
    run.reading(2, status, ft_state)
    run.to(Step.OBSERVING)
    while run.owed:
        run.answer(run.owed[0])
    assert run.state.phase is Phase.WAITING_ENGINE_FAULT
    assert run.state.wake_at == START + 1
    run.tick()
    run.reading(2, UNHEALTHY)
    run.ends(Outcome.SUCCEEDED)
    assert len(run.of(fx.Apply)) == 2
    assert run.of(fx.Persist)[1] == fx.Persist(Phase.WAITING_ENGINE_FAULT)


def test_waiting_is_written_once_however_many_rounds_it_takes() -> None:
    run = Run(spec())
    run.reading(2, HEALTHY)
    run.to(Step.OBSERVING)
    while run.now < START + 5:
        run.answer(run.owed[0]) if run.owed else run.tick()
    run.reading(2, UNHEALTHY)
    run.ends(Outcome.SUCCEEDED)
    assert [effect.phase for effect in run.of(fx.Persist)].count(Phase.WAITING_ENGINE_FAULT) == 1


def test_waiting_that_cannot_be_written_ends_it() -> None:
    run = Run(spec())
    run.reading(2, HEALTHY)
    run.to(Step.OBSERVING)
    while not run.take(fx.Persist):
        run.answer(run.owed[0])
    run.feed(fx.Persisted("STORE_UNAVAILABLE"))
    run.fails(FailureCode.PERSIST_FAILED)


def test_no_wake_up_is_due_while_waiting_is_being_written() -> None:
    run = Run(spec())
    run.reading(2, HEALTHY)
    run.to(Step.OBSERVING)
    while not (written := run.take(fx.Persist)):
        run.answer(run.owed[0])
    assert run.state.wake_at is None
    for nothing in (fx.Tick(), fx.Pushed(read(2, UNHEALTHY, observation=9))):
        run.feed(nothing)
    assert run.owed == []
    run.now += 3
    run.reply(written[0])
    assert run.state.wake_at == run.now + 1


@pytest.mark.parametrize(
    ("since", "deadline"),
    [(START - 5, START + 30), (START - 80, START + 20)],
    ids=["execution deadline", "window left less what apply needs"],
)
def test_waiting_ends_at_the_execution_deadline_or_20_s_before_the_window(since: float, deadline: float) -> None:
    run = Run(spec(unhealthy_since=since))
    run.reading(2, HEALTHY)
    run.fails(FailureCode.APPLY_READY_TIMEOUT, "rank 2 is healthy")
    assert run.now == deadline


def test_the_last_round_is_asked_at_the_deadline_and_still_counts() -> None:
    run = Run(spec())
    run.reading(2, HEALTHY)
    run.to(Step.OBSERVING)
    while run.now < START + 29:
        run.answer(run.owed[0]) if run.owed else run.tick()
    run.to(Step.OBSERVING)
    while run.owed:
        run.answer(run.owed[0])
    assert run.state.wake_at == START + 30
    run.tick()
    run.reading(2, UNHEALTHY)
    run.ends(Outcome.SUCCEEDED)


@pytest.mark.parametrize(
    ("status", "ft_state", "text"),
    [
        (UNHEALTHY, FtState.FAILED, "rank 2 shows a failed command"),
        (HEALTHY, FtState.FAILED, "rank 2 shows a failed command"),
        (UNKNOWN, FtState.NONE, "rank 2 could not be read (unreachable)"),
    ],
)
def test_failed_or_unreadable_before_apply_means_no_apply(status: EngineStatus, ft_state: FtState, text: str) -> None:
    run = Run(spec())
    run.reading(2, status, ft_state)
    run.fails(FailureCode.ENGINE_FAILED, text)
    assert run.never(fx.Apply, fx.Withdraw)
    assert len(run.of(fx.Finalize)) == 2


def test_a_query_error_ends_it_when_the_round_is_over() -> None:
    run = Run(spec()).to(Step.OBSERVING)
    first, second = run.take(fx.Query)
    run.drop(first)
    assert run.at(Step.OBSERVING)
    run.reply(second)
    run.fails(FailureCode.ENGINE_FAILED, f"{POD_1}: no answer")


def test_a_survivor_that_no_answer_is_about_is_not_ready() -> None:
    run = Run(spec()).to(Step.OBSERVING)
    first, second = run.take(fx.Query)
    run.reply(first)
    run.now = run.state.deadline
    run.feed(fx.Observed(second.address, (read(2, UNHEALTHY),)))
    run.fails(FailureCode.APPLY_READY_TIMEOUT, "not read yet")


def test_a_reading_of_an_earlier_round_does_not_stand_in_for_a_missing_one() -> None:
    run = Run(spec())
    run.reading(2, HEALTHY)
    run.to(Step.OBSERVING)
    while run.owed:
        run.answer(run.owed[0])
    run.tick()
    first, second = run.take(fx.Query)
    run.reply(first)
    run.now = run.state.deadline
    run.feed(fx.Observed(second.address, (read(2, UNHEALTHY, observation=9),)))
    run.fails(FailureCode.APPLY_READY_TIMEOUT, "not read yet")


def test_a_reading_of_a_rank_that_nobody_asked_for_removes_nothing() -> None:
    run = Run(spec()).to(Step.OBSERVING)
    first, second = run.take(fx.Query)
    run.reply(first)
    run.feed(fx.Observed(second.address, (read(2, UNHEALTHY), read(3, UNHEALTHY), read(9, DEAD))))
    assert run.state.removed == {1}
    run.ends(Outcome.SUCCEEDED)


def test_a_push_that_shows_something_new_starts_a_round_at_once() -> None:
    """Nothing between our own parts waits for the poll interval."""
    run = Run(spec())
    run.reading(2, HEALTHY)
    run.to(Step.OBSERVING)
    while run.owed:
        run.answer(run.owed[0])
    run.push(2)
    assert run.owed == []
    run.reading(2, UNHEALTHY)
    run.push(2)
    assert len(run.owed) == 2
    run.push(2)
    assert len(run.owed) == 2
    run.ends(Outcome.SUCCEEDED)
    assert run.now == START


# --- late deaths ---


def test_two_of_four_dead_a_third_dies_late_apply_removes_all_and_goes_to_the_rest_only() -> None:
    run = Run(spec({0: REPORTED, 1: EXIT})).to(Step.OBSERVING)
    run.reading(2, DEAD)
    run.ends(Outcome.SUCCEEDED)
    (apply,) = run.of(fx.Apply)
    assert (apply.address, apply.order.ranks, apply.order.removed) == (POD_2, (3,), (0, 1, 2))
    assert run.state.removed == {0, 1, 2}


@pytest.mark.parametrize("step", [Step.BEGINNING, Step.GUARDING, Step.OBSERVING])
@pytest.mark.parametrize("source", [EXIT, REPORTED])
def test_a_survivor_that_dies_before_the_freeze_joins_the_removal_set(source: EvidenceSource, step: Step) -> None:
    run = Run(spec()).to(step)
    run.die(2, source)
    run.ends(Outcome.SUCCEEDED)
    assert [(a.address, a.order.ranks, a.order.removed) for a in run.of(fx.Apply)] == [
        (POD_1, (0,), (1, 2)),
        (POD_2, (3,), (1, 2)),
    ]


def test_a_death_while_nothing_is_asked_starts_a_round_without_the_dead_rank() -> None:
    run = Run(spec())
    run.reading(2, HEALTHY)
    run.to(Step.OBSERVING)
    while run.owed:
        run.answer(run.owed[0])
    run.die(2)
    assert run.take(fx.Query) == [fx.Query(POD_1, (0,)), fx.Query(POD_2, (3,))]


@pytest.mark.parametrize("rank", [0, 1, 9], ids=["committed", "removed", "foreign"])
def test_a_death_of_a_rank_that_is_no_survivor_changes_nothing_and_starts_no_round(rank: int) -> None:
    run = Run(spec(dead_committed=[0], previous_phase=DOWN))
    run.reading(2, HEALTHY)
    run.to(Step.OBSERVING)
    while run.owed:
        run.answer(run.owed[0])
    before = run.state
    run.feed(fx.Died(rank, EXIT))
    assert run.state == before
    assert run.owed == []


def test_an_unreachable_survivor_alone_is_left_to_the_round() -> None:
    """The round asks it anyhow; whether it can be read decides."""
    run = Run(spec()).to(Step.OBSERVING)
    run.feed(fx.Died(2, UNREACHABLE))
    assert run.state.removed == {1}
    run.ends(Outcome.SUCCEEDED)


@pytest.mark.parametrize("step", [Step.BEGINNING, Step.GUARDING, Step.OBSERVING])
def test_nobody_survives_no_apply(step: Step) -> None:
    run = Run(spec()).to(step)
    for rank in (0, 2, 3):
        run.die(rank)
    run.fails(FailureCode.GATE_REFUSED if step is Step.BEGINNING else FailureCode.ENGINE_FAILED)
    assert run.never(fx.Apply)


def test_every_survivor_reads_dead_no_apply() -> None:
    run = Run(spec())
    for rank in (0, 2, 3):
        run.reading(rank, DEAD)
    run.fails(FailureCode.ENGINE_FAILED, "no survivor")
    assert run.never(fx.Apply)


@pytest.mark.parametrize("recovering", [FtState.NONE, FtState.RECOVERING], ids=["healthy", "recovering"])
def test_a_survivor_that_is_ready_no_more_while_another_pod_is_still_read_is_waited_for(recovering: FtState) -> None:
    """Its reading of this round is older than what the watch shows: only the later one counts."""
    run = Run(spec()).to(Step.OBSERVING)
    slow, fast = run.take(fx.Query)
    run.reply(fast)
    run.reading(2, UNHEALTHY if recovering else HEALTHY, recovering)
    run.push(2)
    run.reply(slow)
    assert run.state.phase is Phase.DECIDING
    assert run.never(fx.Withdraw)
    assert [effect.plan for effect in run.of(fx.Guard)] == [None, None]
    run.reading(2, UNHEALTHY)
    run.ends(Outcome.SUCCEEDED)


def test_a_survivor_that_the_watch_shows_dead_while_another_pod_is_still_read_is_removed() -> None:
    run = Run(spec()).to(Step.OBSERVING)
    slow, fast = run.take(fx.Query)
    run.reply(fast)
    run.reading(2, DEAD)
    run.push(2)
    run.reply(slow)
    run.ends(Outcome.SUCCEEDED)
    assert run.of(fx.Apply)[0].order.removed == (1, 2)


def test_what_the_watch_cannot_read_does_not_replace_a_reading_of_the_round() -> None:
    run = Run(spec()).to(Step.OBSERVING)
    slow, fast = run.take(fx.Query)
    run.reply(fast)
    run.reading(2, UNKNOWN)
    run.push(2)
    run.reading(2, UNHEALTHY)
    run.reply(slow)
    run.ends(Outcome.SUCCEEDED)
