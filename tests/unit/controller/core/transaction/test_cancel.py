"""A cancel goes back to the phase before, until SCALING_DOWN is being written (recovery.md section 4)."""

import pytest

from controller.core import effects as fx
from controller.core.phases import Phase
from controller.core.probe import CompletionProbe
from controller.core.transaction import TABLE, Outcome, Step
from motor_ft.model.engine import EngineStatus, EvidenceSource
from tests.unit.controller.core.transaction.world import POD_2, START, Run, spec

HEALTHY, UNHEALTHY, DEAD, DIAGNOSING, UNKNOWN = EngineStatus
EXIT, REPORTED, UNREACHABLE = EvidenceSource
DOWN = Phase.SCALED_DOWN_RUNNING


CANCELLABLE = [Step.BEGINNING, Step.GUARDING, Step.OBSERVING, Step.RECHECKING, Step.FREEZING, Step.WITHDRAWING]


@pytest.mark.parametrize("previous_phase", [Phase.NORMAL, DOWN])
@pytest.mark.parametrize("step", CANCELLABLE)
def test_a_cancel_is_honoured_at_the_next_answer_and_goes_back_to_the_phase_before(
    step: Step, previous_phase: Phase
) -> None:
    """A fault that clears while waiting: guards aborted, republished if it was withdrawn."""
    run = Run(spec({1: UNREACHABLE}, dead_committed=[0], previous_phase=previous_phase)).to(step)
    run.feed(fx.Cancel("every D was withdrawn"))
    run.ends(Outcome.CANCELLED)
    assert run.never(fx.Apply)
    assert run.of(fx.Persist)[-1] == fx.Persist(previous_phase)
    assert run.of(fx.Publish) == ([fx.Publish()] if step is Step.WITHDRAWING else [])
    assert not run.state.withdrawn
    assert all(not effect.commit for effect in run.of(fx.Finalize))


def test_a_cancel_while_nothing_is_asked_is_honoured_at_once() -> None:
    run = Run(spec())
    run.reading(2, HEALTHY)
    run.to(Step.OBSERVING)
    while run.owed:
        run.answer(run.owed[0])
    run.feed(fx.Cancel("every D was withdrawn"))
    assert run.at(Step.ABORTING)
    run.ends(Outcome.CANCELLED)
    assert [effect.phase for effect in run.of(fx.Persist)] == [
        Phase.DECIDING,
        Phase.WAITING_ENGINE_FAULT,
        Phase.NORMAL,
    ]


def test_a_cancel_while_waiting_is_written_is_honoured_when_it_is() -> None:
    run = Run(spec())
    run.reading(2, HEALTHY)
    run.to(Step.OBSERVING)
    while not (written := run.take(fx.Persist)):
        run.answer(run.owed[0])
    run.feed(fx.Cancel("every D was withdrawn"))
    assert run.at(Step.OBSERVING)
    run.reply(written[0])
    assert run.at(Step.ABORTING)
    run.ends(Outcome.CANCELLED)


@pytest.mark.parametrize(
    ("step", "answer"),
    [
        (Step.GUARDING, fx.Guarded(POD_2, START, error="GUARD_HELD")),
        (Step.OBSERVING, fx.Observed(POD_2, error="no answer")),
        (Step.FREEZING, fx.Guarded(POD_2, START, error="GUARD_HELD")),
        (Step.WITHDRAWING, fx.Withdrawn(confirmed=False)),
    ],
)
def test_a_cancel_goes_before_the_failure_of_the_same_step(step: Step, answer: fx.Event) -> None:
    """Who asked to stop does not get the instance reconfigured for a late refusal."""
    run = Run(spec()).to(step)
    run.feed(fx.Cancel("pre-empted"))
    run.owed.pop()
    run.feed(answer)
    run.ends(Outcome.CANCELLED)


@pytest.mark.parametrize("step", [step for step in TABLE if step not in CANCELLABLE])
def test_from_arming_on_a_cancel_is_ignored(step: Step) -> None:
    run = Run(spec(completion_probe=CompletionProbe.ON))
    if step in {Step.ABORTING, Step.REVERTING}:
        run.to(Step.GUARDING).feed(fx.Cancel("in time"))
    run.to(step)
    before = run.state
    run.feed(fx.Cancel("too late"))
    assert run.state == before
