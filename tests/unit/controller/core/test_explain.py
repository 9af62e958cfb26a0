"""What would be decided now, with all that stands in the way."""

from dataclasses import replace

import pytest

from controller.core.decision import Action, Decision
from controller.core.evidence import Evidence, on_fault
from controller.core.explain import Facts, explain
from controller.core.gate import GateReason
from controller.core.reports import EngineFault
from motor_ft.model.engine import EngineStatus, EvidenceSource
from tests.unit.controller.core.fleet import pod, read
from tests.unit.controller.core.snapshots import CALM, COMPLETE, broken

PODS = (pod(1, [0, 1]), pod(2, [2, 3]))


def facts(**changed: object) -> Facts:
    """Of an instance that is well."""
    well = Facts(
        snapshot=CALM,
        evidence=Evidence(),
        pods=PODS,
        recovery_timeout_sec=120.0,
        begin_window_sec=35.0,
        hardware_problems="",
        first=None,
        held=(),
    )
    return replace(well, **changed)  # type: ignore[arg-type]  # by name


def unhealthy(*ranks: int, since: float) -> Evidence:
    evidence = Evidence()
    for rank in ranks:
        seen = EngineFault(read(rank, EngineStatus.UNHEALTHY), EvidenceSource.ENGINE_REPORTED)
        evidence = on_fault(evidence, seen, since)
    return evidence


def test_nothing_stands_in_the_way_of_an_instance_that_is_well() -> None:
    said = explain(facts(), 100.0)
    assert said.decision == Decision(Action.NONE, "no active rank is UNHEALTHY or DEAD", "10")
    assert (said.gate.allowed, said.topology_problem, said.blockers) == (True, "", ())
    assert [(each.pod_name, each.survivors, each.removed) for each in said.participants] == [
        ("pod-1", (0, 1), ()),
        ("pod-2", (2, 3), ()),
    ]


def test_a_scale_down_names_who_stays_and_who_goes() -> None:
    said = explain(facts(snapshot=COMPLETE, evidence=unhealthy(0, 2, 3, since=100.0)), 101.0)
    assert said.decision.action is Action.DP_SCALE_DOWN
    assert [(each.survivors, each.removed) for each in said.participants] == [((0,), (1,)), ((2, 3), ())]
    assert said.blockers == ()


def test_every_reason_of_the_gate_and_of_the_topology_blocks() -> None:
    mute = tuple(replace(each, capability=None) for each in PODS[:1])
    said = explain(facts(pods=mute), 100.0)
    assert said.gate.reasons == (GateReason.CAPABILITY_MISSING,)
    assert said.participants == ()
    assert said.topology_problem == "ranks [2, 3] have no routable endpoint, or more than one"
    assert said.blockers == (
        "gate: CAPABILITY_MISSING",
        "topology: ranks [2, 3] have no routable endpoint, or more than one",
    )


def test_without_a_survivor_the_gate_says_so() -> None:
    said = explain(facts(snapshot=replace(CALM, dead=CALM.active, collecting_since=1.0)), 2.0)
    assert said.decision.action is Action.INSTANCE_RECONFIGURATION
    assert said.gate.reasons == (GateReason.NO_SURVIVOR,)


@pytest.mark.parametrize(("now", "blocked"), [(185.0, False), (186.0, True)])
def test_a_recovery_window_that_is_too_short_blocks(now: float, blocked: bool) -> None:
    """From 35 s left on it is enough."""
    said = explain(facts(snapshot=COMPLETE, evidence=unhealthy(0, 2, 3, since=100.0)), now)
    late = ("34.0 s of the engines' recovery window are left, 35 s are needed",)
    assert said.blockers == (late if blocked else ())


def test_row_00_and_everything_that_holds_the_actor_blocks() -> None:
    said = explain(
        facts(
            snapshot=replace(COMPLETE, automation_stopped=True),
            held=("does not lead",),
            hardware_problems="no adapter",
        ),
        100.0,
    )
    assert said.decision.row == "00"
    assert said.blockers == (
        "does not lead",
        "automation is stopped",
        "hardware evidence may be incomplete: no adapter",
    )


def test_what_comes_before_the_table_is_the_decision() -> None:
    """A reconfiguration that is due, or the wait for pods after a restart, which is in the way as well."""
    due = Decision(Action.INSTANCE_RECONFIGURATION, "interrupted", "due")
    said = explain(facts(snapshot=COMPLETE, first=due), 100.0)
    assert (said.decision, said.blockers) == (due, ())
    start = Decision(Action.WAIT, "waits for pods", "start", 110.0)
    said = explain(facts(snapshot=COMPLETE, first=start), 100.0)
    assert (said.decision, said.blockers) == (start, ("waits for pods",))


def test_hardware_is_correlated_as_the_actor_would_do_now() -> None:
    """After a restart it is not correlated before the pods are heard."""
    said = explain(facts(snapshot=replace(CALM, hardware=broken(1, first=None))), 100.0)
    assert (said.decision.row, said.decision.look_again) == ("3", 105.0)
    assert said.facts.snapshot.hardware.hardware_first == 100.0
