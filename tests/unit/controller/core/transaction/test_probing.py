"""One completion of every survivor between HEALTHY and the commit (recovery.md section 5, step 9; pitfall 37)."""

import pytest

from controller.core import effects as fx
from controller.core.errors import FailureCode
from controller.core.phases import Phase
from controller.core.probe import CompletionProbe
from controller.core.transaction import Outcome, Spec, Step
from motor_ft.model.engine import EngineStatus, EvidenceSource, ProbeOutcome, RankProbe
from tests.unit.controller.core.transaction.world import LIMITS, POD_1, POD_2, START, Run, retry, spec

AUTO, ON, OFF = CompletionProbe
SERVED, FAILED, NOT_SERVED_HERE = ProbeOutcome
BOTH = pytest.mark.parametrize(
    "start", [spec(completion_probe=AUTO), retry(completion_probe=AUTO)], ids=["down", "retry"]
)


@BOTH
def test_every_survivor_is_asked_once_at_the_same_time_and_then_it_goes_on(start: Spec) -> None:
    run = Run(start).to(Step.PROBING)
    survivors = {POD_1: (0,), POD_2: (2, 3)} if not start.retries else {POD_1: (0, 1), POD_2: (2, 3)}
    assert run.take(fx.Probe) == [fx.Probe(at, ranks, LIMITS.execution_deadline) for at, ranks in survivors.items()]
    for address, ranks in survivors.items():
        assert run.at(Step.PROBING)
        run.feed(fx.Probed(address, tuple(RankProbe(rank, SERVED) for rank in ranks)))
    run.ends(Outcome.SUCCEEDED)
    assert run.state.marks["probed"] == START


@BOTH
def test_a_survivor_that_does_not_serve_ends_it_before_anything_is_committed(start: Spec) -> None:
    """HEALTHY and completions that fail: not believed, and nobody is asked a second time."""
    run = Run(start).to(Step.PROBING)
    first, second = run.take(fx.Probe)
    run.reply(first)
    run.feed(fx.Probed(second.address, (RankProbe(2, SERVED), RankProbe(3, FAILED, "HTTP 500"))))
    run.fails(FailureCode.ENGINE_FAILED, "rank 3 serves nothing: HTTP 500")
    assert not any(effect.commit for effect in run.of(fx.Finalize))
    assert Phase.POST_SCALE_CLEANUP not in [effect.phase for effect in run.of(fx.Persist)]


def test_an_answer_that_does_not_come_ends_it_as_well() -> None:
    run = Run(spec(completion_probe=AUTO)).to(Step.PROBING)
    run.drop(run.take(fx.Probe)[0])
    run.fails(FailureCode.ENGINE_FAILED, f"{POD_1}: no answer")


@pytest.mark.parametrize("mode", [AUTO, ON])
def test_an_engine_that_serves_no_completions_is_skipped_unless_the_probe_is_on(mode: CompletionProbe) -> None:
    run = Run(spec(completion_probe=mode)).to(Step.PROBING)
    for probe in run.take(fx.Probe):
        run.feed(fx.Probed(probe.address, tuple(RankProbe(rank, NOT_SERVED_HERE, "404") for rank in probe.ranks)))
    if mode is AUTO:
        run.ends(Outcome.SUCCEEDED)
    else:
        run.fails(FailureCode.ENGINE_FAILED, "rank 0 serves nothing: 404")


def test_switched_off_nobody_is_asked() -> None:
    run = Run(spec(completion_probe=OFF))
    run.ends(Outcome.SUCCEEDED)
    assert run.never(fx.Probe)


def test_it_has_what_is_left_of_the_execution_deadline_and_is_over_exactly_then() -> None:
    run = Run(spec(completion_probe=ON)).hang().to(Step.POLLING)
    run.answer(run.owed[0])
    run.now += 10
    for rank in (0, 2, 3):
        run.reading(rank, EngineStatus.HEALTHY)
    run.to(Step.PROBING)
    first, second = run.take(fx.Probe)
    assert first.timeout_sec == second.timeout_sec == LIMITS.execution_deadline - (run.now - START)
    run.reply(first)
    run.tick()
    run.fails(FailureCode.RECOVERY_TIMEOUT, f"no completion in time from {POD_2}")
    assert run.now == START + LIMITS.execution_deadline


def test_survivors_that_are_healthy_too_late_to_be_asked_are_a_timeout() -> None:
    run = Run(spec(completion_probe=ON)).to(Step.POLLING)
    run.now += LIMITS.execution_deadline
    while run.at(Step.POLLING):
        run.answer(run.owed[0])
    run.fails(FailureCode.RECOVERY_TIMEOUT, "no time is left for a completion")
    assert run.never(fx.Probe)


def test_a_survivor_that_dies_meanwhile_ends_it() -> None:
    run = Run(spec(completion_probe=ON)).to(Step.PROBING)
    run.die(1, EvidenceSource.PROCESS_EXIT)
    assert run.at(Step.PROBING)
    run.die(2, EvidenceSource.PROCESS_EXIT)
    run.fails(FailureCode.ENGINE_FAILED, "rank 2 died")
