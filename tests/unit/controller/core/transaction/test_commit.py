"""Commit, record, publish: after the first commit nothing is taken back (recovery.md section 5, steps 10 and 11)."""

import pytest

from controller.core import effects as fx
from controller.core.errors import FailureCode
from controller.core.phases import Phase
from controller.core.transaction import Outcome, Step
from motor_ft.model.engine import EvidenceSource
from tests.unit.controller.core.fleet import pod
from tests.unit.controller.core.transaction.world import POD_1, POD_2, START, Run, spec

REPORTED = EvidenceSource.ENGINE_REPORTED
COMMIT_1 = fx.Finalize(POD_1, commit=True, retired=(1,))
COMMIT_2 = fx.Finalize(POD_2, commit=True)
ABORT_1, ABORT_2 = fx.Finalize(POD_1, commit=False), fx.Finalize(POD_2, commit=False)


def lease_end(run: Run, address: str) -> float:
    return run.state.lease_end[address]


# --- renew and commit ---


def test_guards_are_renewed_with_the_plan_before_the_commit() -> None:
    run = Run(spec()).to(Step.RENEWING)
    plan = run.state.plan
    assert run.take(fx.Guard) == [fx.Guard(POD_1, 85.0, plan), fx.Guard(POD_2, 85.0, plan)]


def test_a_renewal_that_fails_leaves_the_lease_that_there_was() -> None:
    run = Run(spec()).to(Step.RENEWING)
    run.now += 3
    first, second = run.take(fx.Guard)
    run.reply(first)
    assert run.at(Step.RENEWING)
    run.drop(second)
    assert (lease_end(run, POD_1), lease_end(run, POD_2)) == (START + 88, START + 85)
    assert run.take(fx.Finalize) == [COMMIT_1, COMMIT_2]
    for commit in (COMMIT_1, COMMIT_2):
        run.reply(commit)
    run.ends(Outcome.SUCCEEDED)


def test_a_fault_between_the_last_poll_and_the_commit_belongs_to_the_next_round() -> None:
    for step in (Step.RENEWING, Step.COMMITTING, Step.RECORDING, Step.CLEANING, Step.PUBLISHING):
        run = Run(spec()).to(step)
        run.feed(fx.Died(2, EvidenceSource.PROCESS_EXIT))
        run.ends(Outcome.SUCCEEDED)
        assert run.state.removed == {1}


def test_a_commit_without_an_answer_is_sent_again_to_that_one_only() -> None:
    run = Run(spec()).to(Step.COMMITTING)
    first, second = run.take(fx.Finalize)
    run.reply(first)
    run.drop(second)
    run.tick()
    assert run.now == START + 1
    assert run.take(fx.Finalize) == [COMMIT_2]
    assert run.state.wake_at is None
    run.reply(COMMIT_2)
    run.ends(Outcome.SUCCEEDED)


def test_while_a_commit_is_under_way_nobody_gets_another_one() -> None:
    run = Run(spec()).to(Step.COMMITTING)
    before = run.state
    run.feed(fx.Tick())
    assert run.state == before
    run.ends(Outcome.SUCCEEDED)


def test_a_commit_that_reaches_one_of_two_is_repeated_until_the_lease_ends_and_then_aborted_there() -> None:
    """No dead_committed, no replay; the instance is reconfigured."""
    run = Run(spec()).to(Step.COMMITTING)
    first, second = run.take(fx.Finalize)
    run.reply(first)
    run.drop(second)
    sent = []
    while run.at(Step.COMMITTING):
        run.tick()
        for commit in run.take(fx.Finalize):
            if not commit.commit:
                assert commit == ABORT_2
                run.reply(commit)
                break
            sent.append(run.now)
            run.drop(commit)
    assert sent == [START + second for second in range(1, 75)]
    run.fails(FailureCode.COMMIT_FAILED)
    assert str(run.state.failure) == f"COMMIT_FAILED: not committed by {POD_2}: {POD_2}: no answer"
    assert run.now == START + 75
    assert Phase.POST_SCALE_CLEANUP not in [effect.phase for effect in run.of(fx.Persist)]
    assert ABORT_1 not in run.of(fx.Finalize)


@pytest.mark.parametrize(("left", "sent"), [(10.25, True), (10.0, False)])
def test_a_commit_is_sent_only_while_the_lease_leaves_time_for_two_requests(left: float, sent: bool) -> None:
    run = Run(spec()).to(Step.RENEWING)
    run.now = START + 85 - left
    for guard in run.take(fx.Guard):
        run.drop(guard)
    assert run.at(Step.COMMITTING) is sent
    if sent:
        run.ends(Outcome.SUCCEEDED)
    else:
        run.fails(FailureCode.COMMIT_FAILED, "the guard lease leaves no time for it")
        assert run.of(fx.Finalize) == [ABORT_1, ABORT_2]


def test_one_lease_that_ends_before_the_first_commit_aborts_everyone() -> None:
    """Nobody retires anything for a commit that cannot succeed everywhere."""
    run = Run(spec()).to(Step.RENEWING)
    first, second = run.take(fx.Guard)
    run.now = START + 80
    run.reply(first)
    run.drop(second)
    run.fails(FailureCode.COMMIT_FAILED, f"not committed by {POD_2}")
    assert run.of(fx.Finalize) == [ABORT_1, ABORT_2]


def test_a_refused_commit_ends_it_as_soon_as_all_have_answered() -> None:
    run = Run(spec()).to(Step.COMMITTING)
    first, second = run.take(fx.Finalize)
    run.drop(second, refused=True)
    assert run.at(Step.COMMITTING)
    run.drop(first)
    run.fails(FailureCode.COMMIT_FAILED, f"not committed by {POD_2}: {POD_2}: no answer; {POD_1}: no answer")
    assert run.of(fx.Finalize)[2:] == [ABORT_1, ABORT_2]
    assert run.now == START


# --- record ---


def test_dead_committed_is_written_with_post_scale_cleanup_after_every_commit() -> None:
    start = spec({2: REPORTED}, dead_committed=[1], previous_phase=Phase.SCALED_DOWN_RUNNING)
    run = Run(start)
    run.ends(Outcome.SUCCEEDED)
    assert run.of(fx.Persist) == [
        fx.Persist(Phase.DECIDING),
        fx.Persist(Phase.SCALING_DOWN),
        fx.Persist(Phase.POST_SCALE_CLEANUP, dead_committed=(1, 2)),
        fx.Persist(Phase.SCALED_DOWN_RUNNING),
    ]


@pytest.mark.parametrize("step", [Step.RECORDING, Step.CLEANING])
def test_a_write_after_the_commit_is_repeated_until_it_is_stored_and_never_aborted(step: Step) -> None:
    run = Run(spec()).to(step)
    for _ in range(100):
        (write,) = run.take(fx.Persist)
        before = run.state
        run.feed(fx.Tick())
        assert run.state == before
        run.drop(write)
        assert run.state.wake_at == run.now + 1
        run.tick()
    run.ends(Outcome.SUCCEEDED)
    assert all(effect.commit for effect in run.of(fx.Finalize))


# --- pods without a rank ---


def recycled(run: Run) -> list[str]:
    run.ends(Outcome.SUCCEEDED)
    return [effect.address for effect in run.of(fx.Recycle)]


def test_a_pod_that_lost_its_last_rank_is_stopped_once_and_nobody_waits_for_it() -> None:
    """After dead_committed is stored, before SCALED_DOWN_RUNNING is."""
    run = Run(spec({2: REPORTED, 3: REPORTED}, recycles=True))
    assert recycled(run) == [POD_2]
    place = run.effects.index(fx.Recycle(POD_2))
    assert run.effects[place - 1] == fx.Persist(Phase.POST_SCALE_CLEANUP, dead_committed=(2, 3))
    assert run.effects[place + 1] == fx.Persist(Phase.SCALED_DOWN_RUNNING)


def test_without_the_switch_no_pod_is_stopped() -> None:
    assert recycled(Run(spec({2: REPORTED, 3: REPORTED}))) == []


def test_a_pod_with_an_active_rank_is_never_stopped_and_a_headless_one_counts() -> None:
    pods = (pod(1, [0, 1]), pod(2, [2], headless=[0]), pod(3, [3], headless=[2]))
    assert recycled(Run(spec({2: REPORTED}, pods=pods, recycles=True))) == []
    assert recycled(Run(spec({2: REPORTED, 3: REPORTED}, pods=pods, recycles=True))) == [pods[2].node_manager_address]


def test_a_pod_is_recyclable_only_when_both_of_its_ranks_are_committed_and_is_not_told_again() -> None:
    """Rank 2 went in round 1, rank 3 goes in round 2, rank 1 in round 3."""
    two = spec({3: REPORTED}, dead_committed=[2], previous_phase=Phase.SCALED_DOWN_RUNNING, recycles=True)
    three = spec({1: REPORTED}, dead_committed=[2, 3], previous_phase=Phase.SCALED_DOWN_RUNNING, recycles=True)
    assert [recycled(Run(start)) for start in (spec({2: REPORTED}, recycles=True), two, three)] == [[], [POD_2], []]


def test_a_stop_is_not_repeated_with_the_write_that_follows_it() -> None:
    run = Run(spec({2: REPORTED, 3: REPORTED}, recycles=True)).to(Step.CLEANING)
    run.drop(run.take(fx.Persist)[0])
    assert recycled(run) == [POD_2]


# --- publish ---


def test_survivors_are_published_last_and_no_longer_withdrawn() -> None:
    run = Run(spec()).to(Step.PUBLISHING)
    assert (run.state.phase, run.state.withdrawn) == (Phase.SCALED_DOWN_RUNNING, False)
    run.ends(Outcome.SUCCEEDED)
    assert run.effects[-1] == fx.Publish()


def test_a_publication_that_is_not_confirmed_takes_nothing_back() -> None:
    run = Run(spec()).to(Step.PUBLISHING)
    run.drop(run.take(fx.Publish)[0])
    run.ends(Outcome.SUCCEEDED, FailureCode.PUBLISH_PENDING)
    assert run.state.phase is Phase.SCALED_DOWN_RUNNING


def test_stages_are_dated_in_their_order() -> None:
    run = Run(spec())
    run.ends(Outcome.SUCCEEDED)
    stages = ["begun", "guarded", "apply_ready", "withdrawn", "applied", "healthy", "committed", "published"]
    assert list(run.state.marks) == stages
