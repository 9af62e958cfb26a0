"""Limits, the way back, and what every step shares."""

import pytest

from controller.core import effects as fx
from controller.core.errors import FailureCode
from controller.core.phases import Phase
from controller.core.probe import CompletionProbe
from controller.core.transaction import TABLE, Limits, Outcome, Step, Transaction
from controller.core.transaction.state import newer
from motor_ft.model.engine import EngineObservation, EngineStatus, EvidenceSource
from tests.unit.controller.core.fleet import read, unread
from tests.unit.controller.core.transaction.world import POD_1, POD_2, Run, short, spec

HEALTHY, UNHEALTHY = EngineStatus.HEALTHY, EngineStatus.UNHEALTHY


def test_the_lease_covers_both_execution_windows_and_the_requests_and_polls_around_them() -> None:
    assert Limits().lease == 2 * 30 + 4 * 5 + 5
    assert short(poll_interval=7.0).lease == 2 * 30 + 4 * 5 + 7
    assert Limits().lease_to_apply == 30 + 2 * 5


def seen(*readings: EngineObservation) -> EngineObservation:
    """What is known of a rank after these readings."""
    state = Transaction(spec(), Step.POLLING, Phase.SCALING_DOWN, frozenset({1}), frozenset())
    for reading in readings:
        state = newer(state, (reading,))
    return state.seen[0]


def test_only_a_larger_counter_of_the_same_engine_is_later() -> None:
    first = read(0, UNHEALTHY, observation=5)
    assert seen(first, read(0, HEALTHY, observation=4)) == first
    assert seen(first, read(0, HEALTHY, observation=5)) == first
    assert seen(first, read(0, HEALTHY, observation=6)).status is HEALTHY


def test_a_reading_that_never_reached_the_engine_or_is_of_another_one_is_later() -> None:
    first = read(0, HEALTHY, observation=5)
    assert seen(first, unread(0)) == unread(0)
    other = read(0, HEALTHY, observation=1, incarnation="other")
    assert seen(first, other) == other


# --- the way back ---


def test_an_abort_reaches_everybody_and_is_waited_for() -> None:
    run = Run(spec()).to(Step.OBSERVING)
    for query in run.take(fx.Query):
        run.drop(query)
    first, second = run.take(fx.Finalize)
    assert (first, second) == (fx.Finalize(POD_1, commit=False), fx.Finalize(POD_2, commit=False))
    run.reply(second)
    assert run.at(Step.ABORTING)
    run.reply(first)
    assert run.at(Step.DONE)


def test_answers_of_an_earlier_step_mean_nothing_to_an_abort() -> None:
    """A poll that was under way when the transaction failed."""
    run = Run(spec()).hang().to(Step.POLLING)
    queries = run.take(fx.Query)
    run.die(2)
    before = run.state
    for query in queries:
        run.reply(query)
    assert run.state == before
    run.fails(FailureCode.ENGINE_FAILED)


def withdrawn_and_cancelled() -> Run:
    run = Run(spec()).to(Step.WITHDRAWING)
    run.feed(fx.Cancel("every D was withdrawn"))
    return run.to(Step.REVERTING)


def test_what_was_withdrawn_is_published_again_in_the_phase_before() -> None:
    run = withdrawn_and_cancelled()
    assert run.take(fx.Persist) == [fx.Persist(Phase.NORMAL)]
    run.feed(fx.Persisted())
    assert run.take(fx.Publish) == [fx.Publish()]
    assert (run.state.phase, run.state.withdrawn) == (Phase.NORMAL, False)
    run.feed(fx.Published(confirmed=False))
    run.ends(Outcome.CANCELLED)


def test_a_way_back_that_cannot_be_written_is_a_failure() -> None:
    run = withdrawn_and_cancelled()
    run.drop(run.take(fx.Persist)[0])
    run.fails(FailureCode.PERSIST_FAILED)
    assert run.never(fx.Publish)


@pytest.mark.parametrize("step", [step for step in TABLE if step not in {Step.ABORTING, Step.REVERTING, Step.DONE}])
def test_an_event_that_means_nothing_in_a_step_changes_nothing(step: Step) -> None:
    run = Run(spec({1: EvidenceSource.STATUS_UNREACHABLE}, completion_probe=CompletionProbe.ON)).to(step)
    before = run.state
    meaningless: list[fx.Event] = []
    if step is not Step.COMMITTING:
        meaningless.append(fx.Finalized(POD_1, "late", refused=True))
    if step is not Step.APPLYING:
        meaningless.append(fx.Applied(POD_1, error="late"))
    if step is not Step.PROBING:
        meaningless.append(fx.Probed(POD_1, error="late"))
    if step is not Step.PUBLISHING:
        meaningless.append(fx.Published(confirmed=False))
    for event in meaningless:
        run.feed(event)
        assert run.state == before
