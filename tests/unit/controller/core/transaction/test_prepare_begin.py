"""Duplicates, gate, topology, window and guards: before any engine is asked (recovery.md section 5, steps 1 to 4)."""

from dataclasses import replace

import pytest

from controller.core import effects as fx
from controller.core.errors import FailureCode
from controller.core.phases import Phase
from controller.core.transaction import Outcome, Spec, Step
from motor_ft.model.engine import EngineStatus, EvidenceSource
from tests.unit.controller.core.fleet import CAPABILITY, pod
from tests.unit.controller.core.transaction.world import POD_1, POD_2, START, TWO_PODS, Run, spec

HEALTHY, UNHEALTHY, DEAD, DIAGNOSING, UNKNOWN = EngineStatus
EXIT, REPORTED, UNREACHABLE = EvidenceSource
DOWN = Phase.SCALED_DOWN_RUNNING


# --- dedupe ---


def test_candidates_that_are_all_committed_already_are_a_success_without_side_effects() -> None:
    run = Run(spec({1: REPORTED}, dead_committed=[1], previous_phase=DOWN))
    assert run.state.outcome is Outcome.SUCCEEDED
    assert run.effects == []


def test_the_same_in_another_phase_is_a_failure_without_side_effects() -> None:
    run = Run(spec({1: REPORTED}, dead_committed=[1]))
    run.fails(FailureCode.DUPLICATE_REQUEST, "ranks [1] are already removed")
    assert run.effects == []


@pytest.mark.parametrize("previous_phase", [Phase.NORMAL, DOWN])
@pytest.mark.parametrize("candidates", [{}, {9: EXIT}, {1: EXIT, 9: EXIT}])
def test_an_empty_or_foreign_context_is_not_a_duplicate(
    candidates: dict[int, EvidenceSource], previous_phase: Phase
) -> None:
    """One new DEAD at least, and of a rank that is active."""
    run = Run(spec(candidates, dead_committed=[1], previous_phase=previous_phase))
    run.fails(FailureCode.TOPOLOGY_INVALID, "none is an active rank")
    assert run.effects == []


def test_one_new_candidate_among_committed_and_foreign_ones_is_the_only_one_removed() -> None:
    start = spec({1: EXIT, 2: REPORTED, 9: EXIT}, dead_committed=[1], previous_phase=DOWN)
    run = Run(start)
    assert run.state.removed == {2}
    run.ends(Outcome.SUCCEEDED)
    assert {order.removed for order in (effect.order for effect in run.of(fx.Apply))} == {(1, 2)}


# --- gate, topology, window ---


def test_deciding_is_written_before_anything_is_done() -> None:
    run = Run(spec())
    assert run.effects == [fx.Persist(Phase.DECIDING)]
    run.drop(run.take(fx.Persist)[0])
    run.fails(FailureCode.PERSIST_FAILED, "STORE_UNAVAILABLE")
    assert run.effects == [fx.Persist(Phase.DECIDING)]
    assert run.state.phase is Phase.NORMAL


@pytest.mark.parametrize(
    ("changed", "reasons"),
    [
        (spec(scale_down_enabled=False), "FEATURE_DISABLED"),
        (spec(dict.fromkeys(range(4), EXIT)), "NO_SURVIVOR"),
        (
            spec(pods=(TWO_PODS[0], pod(2, [2, 3], capability=replace(CAPABILITY, eplb=False)))),
            "EPLB_REQUIRED, CAPABILITY_MISMATCH",
        ),
        (spec(pods=(TWO_PODS[0], pod(2, [2, 3], capability=None))), "CAPABILITY_MISSING"),
    ],
    ids=["off", "no survivor", "mismatch", "missing"],
)
def test_a_closed_gate_guards_nobody_and_shows_every_reason(changed: Spec, reasons: str) -> None:
    run = Run(changed)
    run.fails(FailureCode.GATE_REFUSED, reasons)
    assert run.never(fx.Guard)
    assert run.state.gate is not None
    assert [str(reason) for reason in run.state.gate.reasons] == reasons.split(", ")
    assert run.state.phase is Phase.DECIDING


def test_an_open_gate_is_shown_too() -> None:
    run = Run(spec()).to(Step.GUARDING)
    assert run.state.gate is not None
    assert run.state.gate.allowed


def test_a_hole_in_the_topology_guards_nobody() -> None:
    run = Run(spec(pods=(pod(1, [0, 1]), pod(2, [1, 2]))))
    run.fails(FailureCode.TOPOLOGY_INVALID, "ranks [1] have no routable endpoint, or more than one")
    assert run.never(fx.Guard)


def test_a_death_before_the_topology_was_looked_at_does_not_hide_its_hole() -> None:
    run = Run(spec(pods=(pod(1, [0, 1, 2]), pod(2, [1]))))
    run.die(2)
    run.fails(FailureCode.TOPOLOGY_INVALID)


@pytest.mark.parametrize(("since", "begins"), [(START - 85, True), (START - 85.001, False)])
def test_begin_needs_35_s_of_the_120_s_since_the_first_survivor_noticed(since: float, begins: bool) -> None:
    run = Run(replace(spec(), unhealthy_since={0: START, 2: since, 3: START, 1: 0.0}))
    if begins:
        run.to(Step.GUARDING)
    else:
        run.fails(FailureCode.RECOVERY_WINDOW_EXPIRED, "35.0 s of the engines' recovery window are left, 35 s")
        assert run.never(fx.Guard)


def test_survivors_that_never_said_since_when_have_the_whole_window() -> None:
    Run(replace(spec(), unhealthy_since={})).ends(Outcome.SUCCEEDED)


# --- guard ---


def groups() -> Spec:
    """Two routable ranks and one headless endpoint over three pods; rank 1 dies."""
    return spec(pods=(pod(1, [0]), pod(2, [1]), pod(3, [], headless=[1])))


def test_every_owner_of_an_active_rank_is_guarded_at_once_headless_and_dead_only_too() -> None:
    run = Run(groups()).to(Step.GUARDING)
    assert run.take(fx.Guard) == [fx.Guard(f"10.0.0.{number}:9000", 85.0) for number in (1, 2, 3)]


def test_groups_only_survivors_are_asked_and_applied_and_each_pod_retires_its_own() -> None:
    run = Run(groups())
    run.ends(Outcome.SUCCEEDED)
    survivor = "10.0.0.1:9000"
    assert [effect.address for effect in run.of(fx.Query)] == [survivor] * 2
    assert [effect.address for effect in run.of(fx.Watch)] == [survivor]
    assert [effect.address for effect in run.of(fx.Apply)] == [survivor]
    assert [(effect.address[-6], effect.commit, effect.retired) for effect in run.of(fx.Finalize)] == [
        ("1", True, ()),
        ("2", True, (1,)),
        ("3", True, (1,)),
    ]


def test_a_guard_refused_by_one_means_zero_applies_and_everyone_aborted() -> None:
    """The one that refused too: an abort goes to everybody a Guard was sent to."""
    run = Run(spec()).to(Step.GUARDING)
    first, second = run.take(fx.Guard)
    run.drop(second)
    assert run.at(Step.GUARDING)
    run.reply(first)
    run.fails(FailureCode.GUARD_FAILED, f"{POD_2}: GUARD_HELD")
    assert run.never(fx.Apply, fx.Query)
    assert run.of(fx.Finalize) == [fx.Finalize(POD_1, commit=False), fx.Finalize(POD_2, commit=False)]


def test_an_abort_that_nobody_answers_well_is_not_repeated() -> None:
    run = Run(spec()).to(Step.GUARDING)
    for guard in run.take(fx.Guard):
        run.drop(guard)
    for abort in run.take(fx.Finalize):
        run.drop(abort)
    run.fails(FailureCode.GUARD_FAILED)
    assert len(run.of(fx.Finalize)) == 2
