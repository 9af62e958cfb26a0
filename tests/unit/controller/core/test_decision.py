"""The first row of recovery.md section 4 that fits decides; at exactly the deadline the collection is over."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.correlation import Concern, Correlation
from controller.core.decision import Action, Decision, Snapshot, decide
from controller.core.phases import STABLE, Phase
from motor_ft.model.hardware import FaultLevel, HardwareFault
from motor_ft.model.topology import Role
from tests.unit.controller.core.snapshots import (
    CALM,
    COMPLETE,
    NAMED,
    TRANSIENT,
    broken,
    concern,
    faulty,
    hardware,
)


@pytest.mark.parametrize(
    ("blocked", "reason"),
    [
        (replace(COMPLETE, strategy="dp_scale_down"), "strategy dp_scale_down runs"),
        (replace(COMPLETE, automation_stopped=True), "automation is stopped"),
        (replace(COMPLETE, paused="by ann: upgrade"), "automation is paused by ann: upgrade"),
        (replace(COMPLETE, superseded=True), "superseded by a newer instance of the job"),
        (replace(COMPLETE, ready=False), "the instance was never ready"),
        *((replace(COMPLETE, phase=phase), f"phase is {phase}") for phase in Phase if phase not in STABLE),
    ],
)
def test_row_00_nothing_starts_while_the_instance_is_blocked(blocked: Snapshot, reason: str) -> None:
    """Not even when the collection has been over for long."""
    assert decide(blocked, 1e6) == Decision(Action.NONE, reason, "00")


def test_row_00_names_every_block() -> None:
    decision = decide(replace(COMPLETE, superseded=True, ready=False), 100)
    assert decision.reason == "superseded by a newer instance of the job; the instance was never ready"


@pytest.mark.parametrize("phase", sorted(STABLE))
def test_both_stable_phases_decide(phase: Phase) -> None:
    """Round 2 starts from SCALED_DOWN_RUNNING."""
    assert decide(replace(COMPLETE, phase=phase), 100).action is Action.DP_SCALE_DOWN


@pytest.mark.parametrize("software", [CALM, COMPLETE, faulty({0, 1, 2, 3}, set()), faulty(set(), {0, 1, 2, 3})])
@pytest.mark.parametrize("enabled", [True, False])
def test_row_0_faults_that_clear_by_themselves_go_before_everything(software: Snapshot, enabled: bool) -> None:
    """Also where the baseline table decides."""
    snapshot = replace(software, hardware=hardware(TRANSIENT, first=None), scale_down_enabled=enabled)
    why = "hardware faults that clear by themselves: L2 0x08520003 on Ascend910-1 of node-a (ranks [1])"
    assert decide(snapshot, 1e6) == Decision(Action.TOKEN_REINFERENCE, why, "0")


@pytest.mark.parametrize("strategy", ["dp_scale_down", "fast_recovery", "engine_relaunch", "scale_p2d", "partial_loss"])
@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.RECONFIGURING])
def test_row_0_ends_the_strategy_that_runs_first(strategy: str, phase: Phase) -> None:
    running = replace(COMPLETE, hardware=hardware(TRANSIENT), strategy=strategy, phase=phase)
    decision = decide(running, 100)
    assert (decision.action, decision.row, decision.stop) == (Action.TOKEN_REINFERENCE, "0", True)


@pytest.mark.parametrize(
    "barred",
    [
        replace(CALM, strategy="instance_reconfiguration"),
        replace(CALM, strategy="token_reinference"),
        replace(CALM, strategy="engine_relaunch", phase=Phase.RECONFIGURING),
        replace(CALM, automation_stopped=True),
        replace(CALM, paused="by ann"),
        replace(CALM, superseded=True),
        replace(CALM, ready=False),
    ],
)
def test_row_0_never_ends_a_rebuild_and_starts_nothing_that_is_barred(barred: Snapshot) -> None:
    decision = decide(replace(barred, hardware=hardware(TRANSIENT)), 100)
    assert (decision.action, decision.row, decision.stop) == (Action.NONE, "00", False)


@pytest.mark.parametrize(
    "snapshot",
    [
        replace(CALM, hardware=hardware(TRANSIENT), enabled=CALM.enabled - {Action.TOKEN_REINFERENCE}),
        replace(CALM, hardware=hardware(TRANSIENT), tried=frozenset({Action.TOKEN_REINFERENCE})),
        replace(CALM, hardware=hardware(TRANSIENT, done=True)),
        replace(CALM, hardware=hardware(replace(TRANSIENT, ranks=None))),
        replace(CALM, hardware=replace(hardware(TRANSIENT), baseline=frozenset({TRANSIENT.fault.key}))),
        replace(CALM, hardware=hardware(TRANSIENT), active=frozenset({0, 2, 3})),
    ],
    ids=["off", "once in this incident", "waited long enough", "unmappable", "there at READY", "of a removed rank"],
)
def test_row_0_does_not_fit(snapshot: Snapshot) -> None:
    assert decide(snapshot, 100).row == "10"


@pytest.mark.parametrize(
    ("strategy", "fault"), [("token_reinference", TRANSIENT), ("scale_p2d", concern(1)), ("dp_scale_down", concern(1))]
)
def test_row_00_a_strategy_that_waits_for_hardware_ends_with_the_fault(strategy: str, fault: Concern) -> None:
    """Other strategies are about engines."""
    running = replace(COMPLETE, strategy=strategy)
    standing = decide(replace(running, hardware=hardware(fault)), 100)
    assert standing == Decision(Action.NONE, f"strategy {strategy} runs", "00", isolate=strategy == "scale_p2d")
    over = decide(running, 100)
    if strategy == "dp_scale_down":
        assert over == standing
    else:
        why = f"strategy {strategy} runs, and its hardware faults are over"
        assert over == Decision(Action.NONE, why, "00", stop=True)


def test_row_00_goes_before_the_hardware() -> None:
    assert decide(replace(CALM, hardware=broken(1), superseded=True), 1e6).row == "00"


def test_row_1_hardware_of_removed_ranks_is_named_and_starts_nothing() -> None:
    handled = replace(CALM, active=frozenset({0, 2, 3}), hardware=broken(1, first=None))
    decision = decide(handled, 1e6)
    assert (decision.action, decision.row) == (Action.NONE, "10")
    assert decision.reason.endswith(f"; only of removed ranks, so handled: {NAMED}")


@pytest.mark.parametrize("software", [CALM, COMPLETE, faulty({0}, set())])
@pytest.mark.parametrize("first", [None, 10.0])
def test_row_2_hardware_that_cannot_be_mapped_waits_for_nothing(software: Snapshot, first: float | None) -> None:
    """One of several is enough; the engines' evidence does not matter."""
    one, other = broken(1, first=first), broken(0, first=first, known=False)
    both = replace(one, concerns={**one.concerns, **other.concerns})
    decision = decide(replace(software, hardware=both), 10.1)
    assert (decision.action, decision.row) == (Action.INSTANCE_RECONFIGURATION, "2")
    assert "Ascend910-0 of node-a (no rank to be told)" in decision.reason
    assert NAMED not in decision.reason


def test_row_2_hardware_of_an_instance_that_is_not_active_waits_for_nothing() -> None:
    decision = decide(replace(CALM, hardware=broken(1), in_service=False), 10.1)
    reason = f"hardware faults of an instance that is not ACTIVE: {NAMED}"
    assert decision == Decision(Action.INSTANCE_RECONFIGURATION, reason, "2", isolate=True)


def test_row_2_an_instance_that_is_not_active_is_left_alone_without_hardware() -> None:
    assert decide(replace(CALM, in_service=False), 10.1).row == "10"
    assert decide(replace(faulty({0}, {1}), in_service=False), 100).row == "8"


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_row_2_a_decode_instance_takes_the_place_of_a_prefill_instance_once(known: bool, done: bool) -> None:
    """Afterwards it is isolated while the fault stands, and rebuilt when its engines fail as well."""
    decode = replace(CALM, role=Role.DECODE, in_service=False, hardware=hardware(concern(1, known=known), done=done))
    calm, failing = decide(decode, 10.1), decide(replace(decode, dead=frozenset({1})), 10.1)
    assert calm.isolate
    assert failing.isolate
    assert (calm.action, calm.row) == ((Action.NONE, "10") if done else (Action.SCALE_P2D, "2"))
    assert (failing.action, failing.row) == (
        (Action.INSTANCE_RECONFIGURATION if done else Action.SCALE_P2D),
        "2",
    )


def test_row_2_a_decode_instance_is_rebuilt_where_that_is_switched_off_or_its_links_are_down() -> None:
    decode = replace(CALM, role=Role.DECODE, in_service=False, hardware=broken(1))
    off = replace(decode, enabled=decode.enabled - {Action.SCALE_P2D})
    assert decide(off, 10.1).action is Action.INSTANCE_RECONFIGURATION
    cut = replace(decode, hardware=hardware(concern(1, code="81078603")))
    assert decide(cut, 10.1).action is Action.INSTANCE_RECONFIGURATION


def test_hardware_that_engines_are_waited_for_does_not_isolate() -> None:
    """The strategy that comes of it withdraws by itself (RFC section 4.2)."""
    for snapshot in (CALM, COMPLETE, replace(COMPLETE, strategy="dp_scale_down")):
        assert not decide(replace(snapshot, hardware=broken(1)), 10.1).isolate
        assert decide(replace(snapshot, hardware=broken(1, known=False)), 10.1).isolate


@pytest.mark.parametrize("software", [CALM, faulty({0}, set(), since=11), faulty({0, 1, 3}, {2}, since=11)])
def test_rows_3_and_4_hardware_first_waits_for_a_match_until_exactly_the_deadline(software: Snapshot) -> None:
    """A window of 5 s opened at 10 waits at 14.9 and is over at 15.0; a D beside the hardware is no match."""
    snapshot = replace(software, hardware=broken(1))
    waiting, over = decide(snapshot, 14.9), decide(snapshot, 15.0)
    assert waiting == Decision(Action.WAIT, f"up to 5 s for engines to notice the hardware: {NAMED}", "3", 15.0)
    why = f"no engine evidence matched the hardware within 5 s: {NAMED}"
    assert over == Decision(Action.INSTANCE_RECONFIGURATION, why, "4")


@pytest.mark.parametrize(
    ("software", "row"),
    [(COMPLETE, "6"), (faulty({0, 1, 2, 3}, set()), "5"), (faulty({0, 2}, {1}), "8")],
)
@pytest.mark.parametrize(
    "hardware", [broken(1, noticed=True), broken(1, first=None)], ids=["matched", "software first"]
)
def test_with_a_match_or_with_engines_first_their_evidence_decides(
    software: Snapshot, row: str, hardware: Correlation
) -> None:
    assert decide(replace(software, hardware=hardware), 100) == decide(software, 100)
    assert decide(software, 100).row == row


def test_the_hardware_is_never_among_the_ranks_that_are_removed() -> None:
    """Engines first, and they say that 1 is dead: broken hardware of rank 2 changes nothing of it."""
    decision = decide(replace(COMPLETE, hardware=broken(2, first=None)), 100)
    assert decision == Decision(Action.DP_SCALE_DOWN, "DEAD [1], UNHEALTHY [0, 2, 3]: complete", "6")


def test_of_many_faults_some_are_named() -> None:
    many = [HardwareFault("node-a", "", f"{number}", FaultLevel.L4) for number in range(300)]
    concerns = {each.key: Concern(each, FaultLevel.L4, frozenset({0})) for each in many}
    reason = decide(replace(CALM, hardware=Correlation(concerns, hardware_first=10.0)), 11).reason
    assert reason.endswith(" and 296 more")
    assert len(reason) < 400


def test_row_5_all_unhealthy_waits_for_a_dead_rank_and_gives_up_at_the_deadline() -> None:
    """Nothing is guessed from U alone."""
    everyone = faulty({0, 1, 2, 3}, set())
    waiting = decide(everyone, 159.9)
    assert (waiting.action, waiting.row, waiting.look_again) == (Action.WAIT, "5", 160.0)
    over = decide(everyone, 160.0)
    assert (over.action, over.row, over.look_again) == (Action.INSTANCE_RECONFIGURATION, "5", None)
    assert "60 s is over" in over.reason


def test_row_5_all_unhealthy_is_recovered_in_place_once_where_that_is_switched_on() -> None:
    """Also when the collection is over: it was not possible before."""
    everyone = replace(faulty({0, 1, 2, 3}, set()), enabled=CALM.enabled | {Action.FAST_RECOVERY})
    decision = decide(everyone, 160.0)
    assert decision == Decision(Action.FAST_RECOVERY, "every active rank is UNHEALTHY and none is DEAD", "5")
    tried = replace(everyone, tried=frozenset({Action.FAST_RECOVERY}))
    assert decide(tried, 159.9).action is Action.WAIT
    assert decide(tried, 160.0).action is Action.INSTANCE_RECONFIGURATION


def test_row_6_complete_evidence_scales_down_at_once() -> None:
    decision = decide(COMPLETE, 100)
    assert decision == Decision(Action.DP_SCALE_DOWN, "DEAD [1], UNHEALTHY [0, 2, 3]: complete", "6")


def test_row_6_goes_before_the_deadline_of_the_collection() -> None:
    """Evidence that became complete late is still complete."""
    assert decide(COMPLETE, 1000).action is Action.DP_SCALE_DOWN


def test_row_6_one_survivor_is_enough() -> None:
    assert decide(faulty({3}, {0, 1, 2}), 100).action is Action.DP_SCALE_DOWN


def test_row_7_all_dead_is_reconfigured_at_once() -> None:
    decision = decide(faulty(set(), {0, 1, 2, 3}), 100)
    assert (decision.action, decision.row) == (Action.INSTANCE_RECONFIGURATION, "7")


@pytest.mark.parametrize(("unhealthy", "dead"), [({0}, set()), (set(), {1}), ({0, 2}, {1})])
def test_rows_8_and_9_incomplete_evidence_waits_until_exactly_the_deadline(unhealthy: set[int], dead: set[int]) -> None:
    """A dead rank whose survivors stay HEALTHY starts no transaction (RFC section 8, idle service)."""
    incomplete = faulty(unhealthy, dead)
    waiting = decide(incomplete, 159.9)
    assert (waiting.action, waiting.row, waiting.look_again) == (Action.WAIT, "8", 160.0)
    assert str(sorted({0, 1, 2, 3} - unhealthy - dead)) in waiting.reason
    over = decide(incomplete, 160.0)
    assert (over.action, over.row) == (Action.INSTANCE_RECONFIGURATION, "9")


def test_a_window_of_five_seconds_opened_at_ten_waits_at_14_9_and_is_over_at_15_0() -> None:
    short = replace(faulty({0}, {1}, since=10.0), collection_timeout_sec=5.0)
    assert decide(short, 14.9).action is Action.WAIT
    assert decide(short, 15.0).action is Action.INSTANCE_RECONFIGURATION


def test_row_8_without_a_begin_of_the_collection_there_is_no_deadline() -> None:
    decision = decide(replace(faulty({0}, {1}), collecting_since=None), 1e6)
    assert (decision.action, decision.look_again) == (Action.WAIT, None)


def test_row_10_no_fault_no_action() -> None:
    assert decide(CALM, 1e6) == Decision(Action.NONE, "no active rank is UNHEALTHY or DEAD", "10")


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    active = draw(st.frozensets(st.integers(0, 5)))
    status = {rank: draw(st.sampled_from("-UD")) for rank in sorted(active)}
    return Snapshot(
        phase=draw(st.sampled_from([*STABLE, Phase.DECIDING, Phase.RECONFIGURING])),
        ready=draw(st.booleans()),
        strategy=draw(st.sampled_from([None, "dp_scale_down"])),
        automation_stopped=draw(st.booleans()),
        superseded=draw(st.booleans()),
        scale_down_enabled=draw(st.booleans()),
        active=active,
        unhealthy=frozenset(rank for rank in active if status[rank] == "U"),
        dead=frozenset(rank for rank in active if status[rank] == "D"),
        collecting_since=draw(st.none() | st.floats(0, 100)),
        collection_timeout_sec=draw(st.floats(1, 100)),
        in_service=draw(st.booleans()),
        correlation_window_sec=draw(st.floats(1, 100)),
        hardware=draw(st.just(Correlation()) | st.builds(broken, st.integers(0, 5), known=st.booleans())),
        enabled=draw(st.frozensets(st.sampled_from(Action))),
        tried=draw(st.frozensets(st.sampled_from(Action))),
        role=draw(st.sampled_from(Role)),
    )


@given(snapshots(), st.floats(0, 300))
def test_scale_down_needs_every_active_rank_to_be_u_or_d_and_both_to_be_there(snapshot: Snapshot, now: float) -> None:
    decision = decide(snapshot, now)
    assert decision.reason
    if decision.action is Action.DP_SCALE_DOWN:
        assert snapshot.dead
        assert snapshot.unhealthy
        assert snapshot.dead | snapshot.unhealthy == snapshot.active


@given(snapshots(), st.floats(0, 300))
def test_a_wait_names_a_time_in_the_future_and_only_a_wait_does(snapshot: Snapshot, now: float) -> None:
    decision = decide(snapshot, now)
    if decision.look_again is not None:
        assert decision.action is Action.WAIT
        assert decision.look_again > now


@given(snapshots(), st.floats(0, 300), st.floats(0, 300))
def test_time_alone_only_turns_waiting_into_reconfiguration(snapshot: Snapshot, now: float, later: float) -> None:
    """A decision that acts never changes by waiting."""
    first, second = decide(snapshot, now), decide(snapshot, now + later)
    if first.action is Action.WAIT:
        assert second.isolate is first.isolate
        assert second.action in {Action.WAIT, Action.INSTANCE_RECONFIGURATION}
    else:
        assert second == first


@given(snapshots(), st.floats(0, 300))
def test_nothing_is_done_to_an_instance_without_evidence(snapshot: Snapshot, now: float) -> None:
    healthy = replace(snapshot, unhealthy=frozenset(), dead=frozenset(), hardware=Correlation())
    assert decide(healthy, now).action is Action.NONE


@pytest.mark.parametrize(
    ("snapshot", "action"),
    [
        (COMPLETE, Action.DP_SCALE_DOWN),
        (
            replace(COMPLETE, scale_down_enabled=False, enabled=frozenset({Action.ENGINE_RELAUNCH})),
            Action.ENGINE_RELAUNCH,
        ),
        (replace(CALM, missing=frozenset({"a"}), stoppable=frozenset({"b"}), in_service=False), Action.PARTIAL_LOSS),
    ],
)
def test_what_needs_the_store_waits_for_it(snapshot: Snapshot, action: Action) -> None:
    decision = decide(snapshot, 100)
    assert decision.action is action
    why = f"{action} waits for the store, no room; {decision.reason}"
    assert decide(replace(snapshot, store_problem="no room"), 100) == replace(decision, action=Action.WAIT, reason=why)


@pytest.mark.parametrize("snapshot", [CALM, faulty({0, 1, 2, 3}, set()), faulty(set(), {0, 1, 2, 3})])
def test_what_writes_nothing_or_withdraws_first_does_not_wait_for_the_store(snapshot: Snapshot) -> None:
    assert decide(replace(snapshot, store_problem="no room"), 100) == decide(snapshot, 100)
