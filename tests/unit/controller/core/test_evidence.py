"""One slot per rank: what counts as U and D, since when, and what takes it back (recovery.md section 2)."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.evidence import (
    Evidence,
    as_baseline,
    forget,
    is_news,
    last_exit,
    on_death,
    on_fault,
    on_healthy,
    on_incarnation,
    recalled,
    relaunching,
    strategy_ended,
    survivor_seen_unhealthy,
)
from controller.core.reports import EngineFault, EngineHealthy, ProcessDeath
from motor_ft.model.engine import EngineStatus, EvidenceSource, Problem
from motor_ft.model.topology import Endpoint
from tests.unit.controller.core.fleet import read, unread

EXIT, REPORTED, UNREACHABLE = EvidenceSource
"""Strongest first."""


def unhealthy(rank: int, *, age: float = 0.0, incarnation: str | None = None) -> EngineFault:
    return EngineFault(read(rank, EngineStatus.UNHEALTHY, incarnation=incarnation), REPORTED, age)


def dead(rank: int, *, age: float = 0.0, incarnation: str | None = None) -> EngineFault:
    return EngineFault(read(rank, EngineStatus.DEAD, incarnation=incarnation), REPORTED, age)


def unreachable(rank: int) -> EngineFault:
    return EngineFault(unread(rank), UNREACHABLE)


def healthy(rank: int, *, incarnation: str | None = None) -> EngineHealthy:
    return EngineHealthy(read(rank, EngineStatus.HEALTHY, incarnation=incarnation))


def exited(rank: int, *, age: float = 0.0, incarnation: str | None = None) -> ProcessDeath:
    return ProcessDeath(rank, f"e{rank}" if incarnation is None else incarnation, 4711, "EngineCore: signal 9", age)


Change = EngineFault | EngineHealthy | ProcessDeath


def feed(evidence: Evidence, report: Change, now: float) -> Evidence:
    match report:
        case EngineFault():
            return on_fault(evidence, report, now)
        case EngineHealthy():
            return on_healthy(evidence, report, now)
        case ProcessDeath():
            return on_death(evidence, report, now)


def after(*reports: Change, start: float = 10.0) -> Evidence:
    """One report a second."""
    evidence = Evidence()
    for second, report in enumerate(reports):
        evidence = feed(evidence, report, start + second)
    return evidence


# --- one slot and its times ---


def test_unhealthy_dead_unhealthy_keeps_one_slot_and_the_first_seen_times() -> None:
    evidence = after(unhealthy(1), dead(1), unhealthy(1))
    assert list(evidence.ranks) == [1]
    assert evidence.unhealthy == {1}
    assert evidence.dead == set()
    assert (evidence.slot(1).first_unhealthy, evidence.slot(1).first_dead) == (10.0, 11.0)
    again = on_fault(evidence, dead(1), 20.0)
    assert (again.slot(1).first_unhealthy, again.slot(1).first_dead) == (10.0, 11.0)


def test_an_age_dates_the_first_time_back_and_a_negative_one_never_forward() -> None:
    assert after(unhealthy(1, age=4.0)).slot(1).first_unhealthy == 6.0
    assert after(dead(1, age=4.0)).slot(1).first_dead == 6.0
    assert after(exited(1, age=4.0)).slot(1).first_dead == 6.0
    assert after(unhealthy(1, age=-4.0)).slot(1).first_unhealthy == 10.0
    assert after(exited(1, age=-4.0)).slot(1).first_dead == 10.0


def test_healthy_withdraws_unhealthy_dead_and_unreachable_and_their_times() -> None:
    for fault in (unhealthy(1), dead(1), unreachable(1)):
        evidence = after(fault, healthy(1))
        slot = evidence.slot(1)
        assert evidence.unhealthy | evidence.dead == set()
        assert (slot.first_unhealthy, slot.first_dead, slot.dead_source, slot.detail) == (None, None, None, "")
        assert on_fault(evidence, fault, 30.0).collecting_since == 30.0


def test_the_recovery_window_runs_from_the_first_u_of_ranks_that_are_u() -> None:
    evidence = after(unhealthy(0), dead(1), unhealthy(2), unhealthy(0))
    assert survivor_seen_unhealthy(evidence, frozenset({0, 1, 3})) == {0: 10.0}


# --- what is evidence, and which source wins ---


def test_a_reading_without_a_source_is_shown_and_never_judged() -> None:
    """DIAGNOSING, or an engine that answers 503: degraded, not U and not D, and no withdrawal either."""
    evidence = after(unhealthy(1), EngineFault(unread(1, Problem.HTTP_STATUS), None))
    assert evidence.unhealthy == {1}
    assert evidence.shown() == {1: EngineStatus.UNKNOWN}
    evidence = after(EngineFault(read(1, EngineStatus.DIAGNOSING), REPORTED))
    assert evidence.unhealthy | evidence.dead == set()
    assert evidence.shown() == {1: EngineStatus.DIAGNOSING}
    assert evidence.collecting_since is None
    assert after(unhealthy(1), EngineFault(read(1, EngineStatus.DIAGNOSING), REPORTED)).unhealthy == {1}


def test_people_see_the_last_status_and_why() -> None:
    """What could not be read or which process ended; the exception that the engine names where there is no more."""
    assert after(unreachable(1)).slot(1).detail == "connection refused"
    assert after(exited(1)).slot(1).detail == "EngineCore: signal 9"
    named = EngineFault(replace(read(1, EngineStatus.UNHEALTHY), fault_info="RuntimeError"), REPORTED)
    assert after(named).slot(1).detail == "RuntimeError"
    assert after(named, healthy(1)).shown() == {1: EngineStatus.HEALTHY}


def test_an_engine_that_cannot_be_reached_is_dead_although_its_status_is_unknown() -> None:
    evidence = after(unreachable(1))
    assert evidence.dead == {1}
    assert evidence.slot(1).dead_source is UNREACHABLE
    assert evidence.shown() == {1: EngineStatus.DEAD}


@pytest.mark.parametrize(
    ("reports", "source"),
    [
        ((dead(1), unreachable(1)), REPORTED),
        ((unreachable(1), dead(1)), REPORTED),
        ((unreachable(1), exited(1)), EXIT),
        ((exited(1), unreachable(1)), EXIT),
        ((exited(1), dead(1)), EXIT),
        ((unhealthy(1), unreachable(1)), UNREACHABLE),
        ((dead(1), unhealthy(1), unreachable(1)), UNREACHABLE),
        ((dead(1), unhealthy(1)), None),
    ],
)
def test_between_sources_of_dead_the_strongest_stays(reports: tuple[Change, ...], source: EvidenceSource) -> None:
    assert after(*reports).slot(1).dead_source is source


def test_a_process_exit_is_not_cancelled_by_a_stale_healthy_or_unhealthy() -> None:
    evidence = after(exited(1), healthy(1), unhealthy(1), healthy(1))
    assert evidence.dead == {1}
    assert evidence.slot(1).first_dead == 10.0
    assert evidence.shown() == {1: EngineStatus.DEAD}


# --- incarnations ---


@pytest.mark.parametrize(
    "reappear",
    [
        lambda e: on_healthy(e, healthy(1, incarnation="new"), 20.0),
        lambda e: on_fault(e, unhealthy(1, incarnation="new"), 20.0),
        lambda e: on_incarnation(e, 1, "new", 20.0),
    ],
    ids=["healthy", "unhealthy", "registered"],
)
def test_an_engine_restarted_behind_our_back_has_lost_its_place(reappear: Callable[[Evidence], Evidence]) -> None:
    evidence = reappear(after(healthy(1)))
    slot = evidence.slot(1)
    assert evidence.dead == {1}
    assert (slot.dead_source, slot.first_dead, slot.incarnation) == (EXIT, 20.0, "new")
    assert "e1 was replaced by new" in slot.detail or slot.detail == ""
    assert on_healthy(evidence, healthy(1, incarnation="new"), 21.0).dead == {1}


def test_the_first_death_of_a_rank_dates_it_whatever_engine_shows_up_later() -> None:
    evidence = on_incarnation(after(dead(1)), 1, "new", 20.0)
    assert evidence.slot(1).first_dead == 10.0


def test_what_a_strategy_has_read_is_news_unless_a_later_reading_was_reported() -> None:
    fresh = after(EngineFault(read(1, EngineStatus.UNHEALTHY, observation=8), REPORTED))
    assert not is_news(fresh, read(1, EngineStatus.HEALTHY, observation=7))
    assert is_news(fresh, read(1, EngineStatus.HEALTHY, observation=8))
    assert is_news(Evidence(), read(1, EngineStatus.HEALTHY, observation=1))
    assert not is_news(fresh, read(1, EngineStatus.HEALTHY, observation=9, incarnation="other"))


def test_reports_come_in_order_whatever_their_counters_say() -> None:
    """A gateway that starts on another machine begins to count anew: its engines must not become invisible."""
    fresh = after(healthy(1), EngineFault(read(1, EngineStatus.UNHEALTHY, observation=8), REPORTED))
    again = feed(fresh, EngineHealthy(read(1, EngineStatus.HEALTHY, observation=2)), 12.0)
    assert again.unhealthy == frozenset()
    assert is_news(again, read(1, EngineStatus.UNHEALTHY, observation=3))


def test_a_new_incarnation_forgets_what_the_old_one_read() -> None:
    evidence = on_incarnation(after(unhealthy(1)), 1, "new", 20.0)
    assert evidence.slot(1).first_unhealthy is None
    assert evidence.slot(1).reading is None


def test_an_unknown_or_the_same_incarnation_changes_nothing() -> None:
    evidence = after(unhealthy(1))
    assert on_incarnation(evidence, 1, "", 20.0) is evidence
    assert on_incarnation(evidence, 1, "e1", 20.0) is evidence
    assert on_fault(evidence, unhealthy(1, incarnation=""), 20.0).slot(1).incarnation == "e1"
    first = on_incarnation(Evidence(), 1, "e1", 20.0)
    assert first.slot(1).incarnation == "e1"
    assert not first.dead


def test_a_death_is_of_the_engine_that_is_known() -> None:
    """A headless endpoint's process names its own incarnation; the rank is gone all the same."""
    assert after(healthy(1), exited(1, incarnation="headless")).slot(1).incarnation == "e1"
    assert after(exited(1, incarnation="e1")).slot(1).incarnation == "e1"


# --- a relaunch ---

ENDED = {1: frozenset({"e1", "headless"}), 2: frozenset({"e2"})}


def test_a_relaunch_leaves_nothing_of_the_engines_that_it_ends() -> None:
    evidence = relaunching(Evidence(), ENDED)
    assert evidence.unhealthy | evidence.dead | evidence.ignored == set()
    assert (evidence.collecting_since, evidence.slot(1).incarnation) == (None, "")


@pytest.mark.parametrize("late", [healthy(1), unhealthy(1), dead(1), exited(1), exited(1, incarnation="headless")])
def test_what_is_still_said_of_an_engine_that_a_relaunch_ended_changes_nothing(late: Change) -> None:
    """Neither while the new ones start nor after that."""
    evidence = relaunching(Evidence(), ENDED)
    assert feed(evidence, late, 20.0) is evidence
    assert on_incarnation(evidence, 1, "e1", 20.0) is evidence
    evidence = strategy_ended(on_incarnation(evidence, 1, "new", 21.0), 30.0)
    assert feed(evidence, late, 31.0) is evidence
    assert on_incarnation(evidence, 1, "e1", 31.0) is evidence


def test_inside_a_relaunch_another_engine_is_no_evidence_however_often_it_changes() -> None:
    """A NodeManager that ends in the middle starts its engines once more."""
    evidence = feed(on_incarnation(relaunching(Evidence(), ENDED), 1, "new", 20.0), exited(1, incarnation="new"), 21.0)
    assert evidence.dead == {1}
    evidence = on_healthy(evidence, healthy(1, incarnation="newer"), 22.0)
    assert evidence.unhealthy | evidence.dead == set()
    assert (evidence.slot(1).incarnation, evidence.slot(1).shown) == ("newer", EngineStatus.HEALTHY)
    assert on_death(evidence, exited(1, incarnation="new"), 23.0) is evidence


def test_after_a_relaunch_another_engine_has_lost_its_place_again() -> None:
    evidence = strategy_ended(on_incarnation(relaunching(Evidence(), ENDED), 1, "new", 20.0), 30.0)
    assert on_incarnation(evidence, 1, "newer", 31.0).dead == {1}
    assert on_death(evidence, exited(1, incarnation="new"), 31.0).dead == {1}


# --- collection ---


def test_the_collection_starts_with_the_first_fault_and_is_not_extended() -> None:
    assert after(healthy(0), unhealthy(1), unhealthy(2), dead(3)).collecting_since == 11.0


def test_the_collection_ends_when_no_fault_is_left() -> None:
    assert after(unhealthy(1), unhealthy(2), healthy(1)).collecting_since == 10.0
    assert after(unhealthy(1), unhealthy(2), healthy(1), healthy(2)).collecting_since is None


def test_what_is_left_when_a_strategy_ends_is_collected_anew() -> None:
    assert strategy_ended(after(unhealthy(1)), 50.0).collecting_since == 50.0
    assert strategy_ended(after(unhealthy(1), healthy(1)), 50.0).collecting_since is None


def test_committed_ranks_are_forgotten_and_their_collection_with_them() -> None:
    evidence = forget(after(dead(1)), frozenset({1}), 50.0)
    assert evidence.collecting_since is None
    assert evidence.shown() == {}
    assert forget(after(dead(1), unhealthy(2)), frozenset({1}), 50.0).collecting_since == 10.0
    baseline = as_baseline(after(dead(1), dead(2)), 50.0)
    assert forget(baseline, frozenset({1}), 50.0).ignored == {2}


# --- baseline ---


def test_faults_before_ready_are_the_baseline_and_start_nothing() -> None:
    evidence = as_baseline(after(unhealthy(1), dead(2)), 20.0)
    assert evidence.ignored == {1, 2}
    assert evidence.unhealthy | evidence.dead == set()
    assert evidence.collecting_since is None
    assert evidence.shown() == {1: EngineStatus.UNHEALTHY, 2: EngineStatus.DEAD}


def test_the_baseline_is_everything_that_is_there_whenever_it_is_taken() -> None:
    """READY is written first and taken over after the write: by then more may have been there."""
    first = as_baseline(after(unhealthy(1)), 20.0)
    assert as_baseline(on_fault(first, dead(2), 21.0), 22.0).ignored == {1, 2}


def test_a_fault_of_the_baseline_that_clears_and_returns_is_new() -> None:
    evidence = on_healthy(as_baseline(after(unhealthy(1)), 20.0), healthy(1), 21.0)
    evidence = on_fault(evidence, unhealthy(1), 22.0)
    assert evidence.unhealthy == {1}
    assert evidence.collecting_since == 22.0


def test_a_process_that_ends_is_never_of_the_baseline() -> None:
    """Nor is an engine that is replaced, whatever its rank was at READY."""
    evidence = as_baseline(after(unhealthy(1), unhealthy(2)), 20.0)
    evidence = on_incarnation(on_death(evidence, exited(1), 21.0), 2, "another", 22.0)
    assert evidence.dead == {1, 2}
    assert evidence.ignored == set()
    assert evidence.collecting_since == 21.0


def test_a_fault_outside_the_baseline_is_new() -> None:
    evidence = on_fault(as_baseline(after(unhealthy(1)), 20.0), unhealthy(2), 21.0)
    assert evidence.unhealthy == {2}


def test_processes_that_ended_on_the_way_to_ready_are_no_fault_of_the_engines_that_are_ready() -> None:
    evidence = as_baseline(after(exited(1), healthy(1)), 20.0)
    assert evidence.ignored | evidence.dead == set()
    assert last_exit(evidence) == -math.inf
    again = on_death(evidence, exited(1), 30.0)
    assert (again.slot(1).first_dead, last_exit(again)) == (30.0, 30.0)


# --- properties ---

RANKS = st.integers(0, 2)
INCARNATIONS = st.sampled_from(["", "a", "b"])
REPORTS = st.one_of(
    st.builds(unhealthy, RANKS, age=st.floats(0, 5), incarnation=INCARNATIONS),
    st.builds(dead, RANKS, age=st.floats(0, 5), incarnation=INCARNATIONS),
    st.builds(unreachable, RANKS),
    st.builds(healthy, RANKS, incarnation=INCARNATIONS),
    st.builds(exited, RANKS, incarnation=INCARNATIONS),
)


@given(st.lists(REPORTS, max_size=20))
def test_a_rank_is_at_most_one_of_u_and_d_and_is_dated_since(reports: list[Change]) -> None:
    evidence = after(*reports)
    assert not evidence.unhealthy & evidence.dead
    for rank in evidence.unhealthy:
        first = evidence.slot(rank).first_unhealthy
        assert first is not None
        assert first <= 10.0 + len(reports)
    for rank in evidence.dead:
        assert evidence.slot(rank).first_dead is not None
        assert evidence.slot(rank).dead_source is not None


@given(st.lists(REPORTS, max_size=20))
def test_something_is_collected_exactly_while_there_is_a_fault(reports: list[Change]) -> None:
    """And its begin is the first fault of the unbroken series of faults."""
    evidence, since = Evidence(), None
    for second, report in enumerate(reports):
        evidence = feed(evidence, report, float(second))
        since = None if not (evidence.unhealthy or evidence.dead) else float(second) if since is None else since
        assert evidence.collecting_since == since


@given(st.lists(REPORTS, max_size=20), st.lists(REPORTS, max_size=20))
def test_after_a_process_exit_no_report_brings_the_rank_back(before: list[Change], later: list[Change]) -> None:
    evidence = after(*before, exited(1), *later)
    assert 1 in evidence.dead
    assert evidence.slot(1).dead_source is EXIT


@given(st.lists(REPORTS, max_size=20))
def test_a_report_about_one_rank_leaves_the_others_alone(reports: list[Change]) -> None:
    evidence = after(*reports)
    changed = on_fault(evidence, unhealthy(9), 99.0)
    assert {rank: slot for rank, slot in changed.ranks.items() if rank != 9} == evidence.ranks


def test_after_a_restart_of_the_controller_only_another_engine_of_the_routable_endpoint_is_dead() -> None:
    engines = [
        Endpoint(0, "10.0.0.1", 8000, incarnation="e0"),
        Endpoint(1, "10.0.0.1", 8001, incarnation="e1"),
        Endpoint(1, "10.0.0.2", 8001, headless=True, incarnation="h1"),
    ]
    evidence = recalled(engines, [0])
    assert evidence == Evidence(evidence.ranks, frozenset({0}))
    for rank in (0, 1):
        evidence = on_incarnation(evidence, rank, f"e{rank}", 1.0)
    assert not evidence.dead
    assert on_incarnation(evidence, 1, "another", 1.0).slot(1).dead_source is EXIT
