"""With the feature off the baseline table of recovery.md section 4 decides, alone and without waiting."""

from dataclasses import replace

import pytest

from controller.core.decision import Action, Decision, Snapshot, decide
from motor_ft.model.hardware import FaultLevel
from motor_ft.model.topology import Role
from tests.unit.controller.core.snapshots import CALM, COMPLETE, NAMED, concern, faulty, hardware

OFF = replace(CALM, scale_down_enabled=False)
DECODE = replace(OFF, role=Role.DECODE)
NOW = 1e6
"""No time makes a difference."""


def off(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, scale_down_enabled=False)


@pytest.mark.parametrize("level", [FaultLevel.UNKNOWN, FaultLevel.L1, FaultLevel.L2, FaultLevel.L3])
@pytest.mark.parametrize("enabled", [True, False])
def test_up_to_l3_nothing_is_done(level: FaultLevel, enabled: bool) -> None:
    """Feature on or off."""
    snapshot = replace(CALM, scale_down_enabled=enabled, hardware=hardware(concern(1, level=level), first=None))
    assert decide(snapshot, NOW) == Decision(Action.NONE, "no active rank is UNHEALTHY or DEAD", "10")


@pytest.mark.parametrize("engines", [COMPLETE, faulty({0}, set()), faulty(set(), {1}), faulty(set(), {0, 1, 2, 3})])
def test_l2_faulty_engines_are_relaunched_once_and_then_rebuilt(engines: Snapshot) -> None:
    """At once: there is nothing to collect."""
    relaunch, later = decide(off(engines), 100), decide(off(engines), NOW)
    assert relaunch == later
    ranks = sorted(engines.unhealthy | engines.dead)
    why = f"engines of ranks {ranks} are UNHEALTHY or DEAD"
    assert relaunch == Decision(Action.ENGINE_RELAUNCH, why, "L2")
    tried = replace(off(engines), tried=frozenset({Action.ENGINE_RELAUNCH}))
    assert decide(tried, NOW) == Decision(Action.INSTANCE_RECONFIGURATION, why, "L2")
    switched_off = replace(off(engines), enabled=engines.enabled - {Action.ENGINE_RELAUNCH})
    assert decide(switched_off, NOW) == Decision(Action.INSTANCE_RECONFIGURATION, why, "L2")


@pytest.mark.parametrize("level", [FaultLevel.L4, FaultLevel.L5, FaultLevel.L6])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("role", [Role.PREFILL, Role.UNION])
def test_l4_and_above_isolates_and_does_no_more(level: FaultLevel, known: bool, role: Role) -> None:
    """Also with faulty engines: they fail with their cards."""
    snapshot = replace(OFF, role=role, hardware=hardware(concern(1, level=level, known=known)))
    for each in (snapshot, replace(snapshot, dead=frozenset({1})), replace(snapshot, in_service=False)):
        decision = decide(each, NOW)
        assert (decision.action, decision.row, decision.isolate) == (Action.NONE, "L4", True)
        assert decision.reason.startswith(f"isolated while the hardware has {level} 80E18402 on Ascend910-1")


def test_l4_and_above_of_a_decode_instance_takes_the_place_of_a_prefill_instance_once() -> None:
    fault = concern(1)
    decision = decide(replace(DECODE, hardware=hardware(fault)), NOW)
    assert decision == Decision(Action.SCALE_P2D, f"hardware faults: {NAMED}", "L4", isolate=True)
    done = decide(replace(DECODE, hardware=hardware(fault, done=True)), NOW)
    assert done == Decision(Action.NONE, f"isolated while the hardware has {NAMED}", "L4", isolate=True)
    switched_off = replace(DECODE, hardware=hardware(fault), enabled=DECODE.enabled - {Action.SCALE_P2D})
    assert decide(switched_off, NOW) == done


def test_a_fault_that_has_become_graver_asks_again() -> None:
    before, after = concern(1, level=FaultLevel.L4), concern(1, level=FaultLevel.L6)
    known = replace(hardware(after), spent={before.fault.key: before.level})
    assert decide(replace(DECODE, hardware=known), NOW).action is Action.SCALE_P2D


def test_l6_links_that_are_down_stop_everybody() -> None:
    cut = concern(1, code="0x81078603")
    why = "network links are down: L6 0x81078603 on Ascend910-1 of node-a (ranks [1])"
    decision = decide(replace(DECODE, hardware=hardware(cut)), NOW)
    assert decision == Decision(Action.INSTANCE_RECONFIGURATION, why, "L6", isolate=True)


@pytest.mark.parametrize("level", [FaultLevel.L1, FaultLevel.L5])
def test_links_that_are_down_at_a_lower_level_are_as_any_fault(level: FaultLevel) -> None:
    """Where the policy does not count them they are L1."""
    decision = decide(replace(OFF, hardware=hardware(concern(1, code="81078603", level=level))), NOW)
    assert decision.action is Action.NONE
    assert decision.isolate is (level is FaultLevel.L5)


@pytest.mark.parametrize("snapshot", [OFF, off(COMPLETE)])
def test_faults_of_removed_ranks_and_of_the_baseline_neither_act_nor_isolate(snapshot: Snapshot) -> None:
    gone = replace(snapshot, hardware=hardware(concern(7)))
    old = replace(snapshot, hardware=replace(hardware(concern(1)), baseline=frozenset({concern(1).fault.key})))
    assert decide(gone, NOW) == decide(old, NOW) == decide(snapshot, NOW)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("barred", [{"paused": True}, {"automation_stopped": True}, {"strategy": "scale_p2d"}])
def test_isolation_follows_the_hardware_whatever_else_holds(enabled: bool, barred: dict[str, object]) -> None:
    """It is no strategy, and nobody is to be routed to broken cards because somebody has paused."""
    snapshot = replace(CALM, scale_down_enabled=enabled, hardware=hardware(concern(1, known=False)), **barred)  # type: ignore[arg-type]
    decision = decide(snapshot, NOW)
    assert (decision.action, decision.isolate) == (Action.NONE, True)


LOST = {"missing": frozenset({"pod-2"}), "stoppable": frozenset({"pod-1"})}


@pytest.mark.parametrize("enabled", [True, False])
def test_a_partial_loss_stops_who_still_speaks_feature_on_or_off(enabled: bool) -> None:
    snapshot = replace(CALM, scale_down_enabled=enabled, in_service=False, **LOST)  # type: ignore[arg-type]
    why = "pods ['pod-2'] are gone, ['pod-1'] cannot serve without them"
    assert decide(snapshot, NOW) == Decision(Action.PARTIAL_LOSS, why, "loss")


@pytest.mark.parametrize("enabled", [True, False])
def test_what_is_left_of_a_loss_is_isolated_and_stopped_when_it_comes_back(enabled: bool) -> None:
    snapshot = replace(CALM, scale_down_enabled=enabled, missing=frozenset({"pod-1", "pod-2"}), dissolved=True)
    decision = decide(snapshot, NOW)
    assert (decision.action, decision.isolate) == (Action.NONE, True)
    back = replace(snapshot, missing=frozenset({"pod-1"}), stoppable=frozenset({"pod-2"}))
    assert decide(back, NOW).action is Action.PARTIAL_LOSS


@pytest.mark.parametrize("stoppable", [frozenset[str](), frozenset({"pod-1"})])
def test_a_total_loss_or_none_at_all_stops_nobody(stoppable: frozenset[str]) -> None:
    missing = frozenset[str]() if stoppable else LOST["missing"]
    assert decide(replace(CALM, missing=missing, stoppable=stoppable), NOW).action is Action.NONE


@pytest.mark.parametrize(
    "judged",
    [
        faulty({0}, set()),
        faulty(set(), {1}),
        replace(CALM, hardware=hardware(concern(1), first=100.0)),
    ],
    ids=["U is collected", "D is collected", "hardware waits for engines"],
)
def test_a_partial_loss_is_left_alone_while_faults_are_judged(judged: Snapshot) -> None:
    assert decide(replace(judged, **LOST), 100.0).action is Action.WAIT  # type: ignore[arg-type]


def test_an_isolated_instance_that_loses_pods_is_stopped_too() -> None:
    """A node that dies takes cards and NodeManager with it."""
    decision = decide(replace(OFF, hardware=hardware(concern(1)), **LOST), NOW)  # type: ignore[arg-type]
    assert (decision.action, decision.isolate) == (Action.PARTIAL_LOSS, True)
