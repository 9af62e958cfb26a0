"""What a reading of a survivor means before and after apply (recovery.md section 5, steps 5 and 9)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.verdict import Judgement, Verdict, judge_ready, judge_recovery, still_dead, worst
from motor_ft.model.engine import ApplyOutcome, EngineObservation, EngineStatus, FtState, Problem, RankOutcome
from tests.unit.controller.core.fleet import read, unread

HEALTHY, UNHEALTHY, DEAD, DIAGNOSING, UNKNOWN = EngineStatus
NONE, RECOVERING, FAILED = FtState
GO, WAIT, GONE, OVER = Verdict
OURS = "request-1"
ACCEPTED = RankOutcome(0, ApplyOutcome.ACCEPTED, observation=7, engine_request_id="engine-1")


# --- before apply ---


@pytest.mark.parametrize("state", FtState)
@pytest.mark.parametrize("status", EngineStatus)
def test_only_unhealthy_without_a_command_state_may_receive_apply(status: EngineStatus, state: FtState) -> None:
    verdict = judge_ready(read(0, status, state)).verdict
    assert (verdict is GO) is (status is UNHEALTHY and state is NONE)


@pytest.mark.parametrize(
    ("seen", "verdict", "text"),
    [
        (read(0, HEALTHY), WAIT, "rank 0 is healthy"),
        (read(0, DIAGNOSING), WAIT, "rank 0 is diagnosing"),
        (read(0, UNHEALTHY, RECOVERING), WAIT, "rank 0 is unhealthy recovering"),
        (read(0, UNHEALTHY, FAILED, ft_error="no peer"), OVER, "rank 0 shows a failed command: no peer"),
        (read(0, HEALTHY, FAILED, ft_error="no peer"), OVER, "rank 0 shows a failed command: no peer"),
        (read(0, DEAD), GONE, "rank 0 is dead"),
        (read(0, DEAD, FAILED), GONE, "rank 0 is dead"),
        (unread(0), OVER, "rank 0 could not be read (unreachable): connection refused"),
        (unread(0, Problem.IDENTITY), OVER, "rank 0 could not be read (identity): connection refused"),
    ],
)
def test_before_apply(seen: EngineObservation, verdict: Verdict, text: str) -> None:
    assert judge_ready(seen) == Judgement(verdict, text)


def test_an_error_without_a_command_state_is_a_failed_command_too() -> None:
    """Dialect (a) has no command state."""
    seen = read(0, UNHEALTHY, ft_error="wait timeout")
    assert judge_ready(seen) == Judgement(OVER, "rank 0 shows a failed command: wait timeout")


# --- after apply ---


def recovery(seen: EngineObservation) -> Judgement:
    return judge_recovery(seen, "e0", ACCEPTED, OURS)


def test_a_stale_healthy_is_no_success() -> None:
    """Only a reading whose GET started after this rank's 202 counts (pitfall 1)."""
    assert recovery(read(0, HEALTHY, observation=6)).verdict is WAIT
    assert recovery(read(0, HEALTHY, observation=7)).verdict is WAIT
    assert recovery(read(0, HEALTHY, observation=8)).verdict is GO


def test_a_healthy_without_a_counter_is_never_fresh() -> None:
    assert recovery(read(0, HEALTHY, observation=0)).verdict is WAIT


def test_a_fresh_healthy_is_success_although_recovering_was_never_seen() -> None:
    """Recovering may be missed between two polls (pitfall 3)."""
    assert recovery(read(0, HEALTHY, observation=99)) == Judgement(GO)


@pytest.mark.parametrize("state", [NONE, FAILED])
@pytest.mark.parametrize("last_id", [OURS, "engine-1"])
def test_failed_with_our_id_ends_it_under_either_name_of_the_request(last_id: str, state: FtState) -> None:
    """Where the engine makes the ids, the name is that of its 202, and the error is all that it shows."""
    failed = read(0, UNHEALTHY, state, observation=8, last_id=last_id, ft_error="vote failed")
    assert recovery(failed) == Judgement(OVER, "rank 0 failed: vote failed")


def test_a_healthy_engine_that_has_refused_our_command_is_no_success() -> None:
    refused = read(0, HEALTHY, observation=8, last_id="engine-1", ft_error="status is HEALTHY")
    assert recovery(refused).verdict is OVER
    assert recovery(replace(refused, last_ft_request_id="of somebody else")).verdict is GO


def test_failed_of_an_earlier_id_is_stale_and_ignored() -> None:
    assert recovery(read(0, UNHEALTHY, observation=8, last_id="earlier", ft_error="wait timeout")).verdict is WAIT
    assert recovery(read(0, UNHEALTHY, FAILED, observation=8, last_id="earlier")).verdict is WAIT
    assert recovery(read(0, HEALTHY, FAILED, observation=8, last_id="earlier")).verdict is WAIT


def test_failed_of_ours_that_was_read_before_the_202_is_stale() -> None:
    assert recovery(read(0, UNHEALTHY, FAILED, observation=7, last_id=OURS)).verdict is WAIT


@pytest.mark.parametrize("state", [NONE, RECOVERING])
def test_unhealthy_with_or_without_recovering_keeps_polling(state: FtState) -> None:
    assert recovery(read(0, UNHEALTHY, state, observation=8)).verdict is WAIT


def test_a_dead_survivor_ends_it_and_its_error_is_named_when_there_is_one() -> None:
    assert recovery(read(0, DEAD, observation=8)) == Judgement(OVER, "rank 0 is dead")
    assert recovery(read(0, DEAD, observation=8, ft_error="port taken")) == Judgement(
        OVER, "rank 0 is dead: port taken"
    )
    assert recovery(read(0, DEAD, observation=7)).verdict is WAIT


def test_an_engine_that_cannot_be_read_ends_it_also_when_it_was_never_asked() -> None:
    text = "rank 0 could not be read (unreachable): connection refused"
    assert recovery(unread(0, observation=0)) == Judgement(OVER, text)
    assert recovery(unread(0, observation=8)) == Judgement(OVER, text)
    assert recovery(unread(0, observation=7)).verdict is WAIT


@pytest.mark.parametrize("observation", [0, 1, 8])
def test_an_engine_restarted_behind_our_back_ends_it_whatever_its_counter(observation: int) -> None:
    other = read(0, HEALTHY, observation=observation, incarnation="other")
    assert recovery(other) == Judgement(OVER, "rank 0 is another engine now (other)")


@given(
    st.builds(
        read,
        st.just(0),
        st.sampled_from(EngineStatus),
        st.sampled_from(FtState),
        observation=st.integers(0, 10),
        incarnation=st.sampled_from(["e0", "other"]),
        last_id=st.sampled_from(["", OURS, "engine-1", "earlier"]),
    )
)
def test_success_is_exactly_a_fresh_bare_healthy_of_the_engine_that_was_told(seen: EngineObservation) -> None:
    bare = seen.status is HEALTHY and seen.ft_state is NONE
    assert (recovery(seen).verdict is GO) is (bare and seen.observation > 7 and seen.incarnation == "e0")


# --- groups ---


@pytest.mark.parametrize(("status", "stays"), [(DEAD, True), (UNKNOWN, True), (HEALTHY, False), (UNHEALTHY, False)])
def test_an_unreachable_rank_is_back_only_when_it_answers_and_is_not_dead(status: EngineStatus, stays: bool) -> None:
    assert still_dead(read(1, status)) is stays


def test_a_group_fails_before_it_waits_and_goes_only_with_every_rank() -> None:
    go, wait, over = Judgement(GO), Judgement(WAIT, "w"), Judgement(OVER, "f")
    assert worst({0: go, 1: wait, 2: over, 3: over}, range(4)) == Judgement(OVER, "f; f")
    assert worst({0: go, 1: wait}, range(2)) == wait
    assert worst({0: go}, range(2)) == Judgement(WAIT, "not read yet")
    assert worst({0: go, 1: go, 2: over}, range(2)) == go
