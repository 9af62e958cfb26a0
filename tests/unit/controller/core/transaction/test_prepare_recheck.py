"""A rank that was only unreachable is asked once more before the plan is frozen (recovery.md section 5, step 5)."""

import pytest

from controller.core import effects as fx
from controller.core.errors import FailureCode
from controller.core.phases import Phase
from controller.core.transaction import Outcome, Step
from motor_ft.model.engine import EngineStatus, EvidenceSource
from tests.unit.controller.core.fleet import pod
from tests.unit.controller.core.transaction.world import POD_1, Run, spec

HEALTHY, UNHEALTHY, DEAD, DIAGNOSING, UNKNOWN = EngineStatus
EXIT, REPORTED, UNREACHABLE = EvidenceSource
DOWN = Phase.SCALED_DOWN_RUNNING


def test_a_rank_that_was_only_unreachable_is_asked_once_more_before_the_freeze() -> None:
    run = Run(spec({1: UNREACHABLE, 2: EXIT})).to(Step.RECHECKING)
    assert run.take(fx.Query) == [fx.Query(POD_1, (1,))]
    run.feed(fx.Observed(POD_1, (run.engines[1].read(),)))
    run.ends(Outcome.SUCCEEDED)
    assert run.of(fx.Apply)[0].order.removed == (1, 2)


@pytest.mark.parametrize("status", [HEALTHY, UNHEALTHY, DIAGNOSING])
def test_if_it_answers_and_is_not_dead_its_d_is_withdrawn_and_nothing_is_applied(status: EngineStatus) -> None:
    run = Run(spec({1: UNREACHABLE, 2: EXIT})).to(Step.OBSERVING)
    run.reading(1, status)
    run.ends(Outcome.CANCELLED)
    assert run.never(fx.Apply, fx.Withdraw)
    assert [(seen.rank, seen.status) for seen in run.state.learned] == [(1, status)]
    assert run.state.cancelled == "ranks [1] answer again"


@pytest.mark.parametrize("lost", [False, True], ids=["dead", "no answer"])
def test_if_it_is_dead_or_its_pod_does_not_answer_it_stays_dead(lost: bool) -> None:
    run = Run(spec({1: UNREACHABLE})).to(Step.OBSERVING)
    run.reading(1, DEAD)
    run.to(Step.RECHECKING)
    (query,) = run.take(fx.Query)
    run.drop(query) if lost else run.reply(query)
    run.ends(Outcome.SUCCEEDED)
    assert run.of(fx.Apply)[0].order.removed == (1,)


def test_every_pod_of_an_unreachable_rank_is_waited_for() -> None:
    run = Run(spec({1: UNREACHABLE, 2: UNREACHABLE})).to(Step.RECHECKING)
    first, second = run.take(fx.Query)
    run.reply(first)
    assert run.at(Step.RECHECKING)
    run.reply(second)
    assert run.at(Step.FREEZING)


def test_a_headless_endpoint_of_it_is_not_asked() -> None:
    run = Run(spec({1: UNREACHABLE}, pods=(pod(1, [0, 1]), pod(2, [], headless=[1])))).to(Step.RECHECKING)
    assert run.take(fx.Query) == [fx.Query(POD_1, (1,))]


@pytest.mark.parametrize("step", [Step.BEGINNING, Step.GUARDING, Step.OBSERVING])
def test_an_unreachable_rank_whose_process_has_ended_since_is_not_asked(step: Step) -> None:
    run = Run(spec({1: UNREACHABLE})).to(step)
    run.die(1)
    run.to(Step.FREEZING)
    assert all(1 not in query.ranks for query in run.of(fx.Query))


def test_an_exit_that_arrives_during_the_recheck_is_not_undone_by_its_answer() -> None:
    run = Run(spec({1: UNREACHABLE})).to(Step.RECHECKING)
    run.reading(1, UNHEALTHY)
    answer = run.good(run.take(fx.Query)[0], run.now)
    run.die(1)
    run.feed(answer)
    run.ends(Outcome.SUCCEEDED)
    assert run.of(fx.Apply)[0].order.removed == (1,)


def test_a_survivor_that_dies_during_the_recheck_joins_the_removal_set() -> None:
    """Its reading of the round before was UNHEALTHY: that does not make it come back."""
    run = Run(spec({1: UNREACHABLE})).to(Step.RECHECKING)
    run.die(2)
    run.ends(Outcome.SUCCEEDED)
    assert run.of(fx.Apply)[0].order.removed == (1, 2)
    assert {seen.rank for seen in run.state.learned} == {0, 3}, "only the survivors, which are healthy"


def test_the_last_survivors_die_during_the_recheck_no_apply() -> None:
    run = Run(spec({1: UNREACHABLE})).to(Step.RECHECKING)
    for rank in (0, 2, 3):
        run.die(rank)
    run.fails(FailureCode.ENGINE_FAILED, "no survivor")


@pytest.mark.parametrize("status", [HEALTHY, DIAGNOSING])
def test_a_survivor_that_is_ready_no_more_during_the_recheck_is_waited_for(status: EngineStatus) -> None:
    """An engine that hangs is asked for seconds: what the survivors were before is old by then."""
    run = Run(spec({1: UNREACHABLE})).to(Step.RECHECKING)
    run.reading(2, status)
    run.push(2)
    run.to(Step.OBSERVING)
    assert [effect.plan for effect in run.of(fx.Guard)] == [None, None]
    run.reading(2, UNHEALTHY)
    run.ends(Outcome.SUCCEEDED)
    assert run.of(fx.Query).count(fx.Query(POD_1, (1,))) == 2, "and the silent rank is asked anew"


def test_a_survivor_that_the_watch_shows_dead_during_the_recheck_is_removed() -> None:
    run = Run(spec({1: UNREACHABLE})).to(Step.RECHECKING)
    run.reading(2, DEAD)
    run.push(2)
    run.ends(Outcome.SUCCEEDED)
    assert run.of(fx.Apply)[0].order.removed == (1, 2)
