"""Only what changes is worth an event."""

from collections.abc import Iterable
from dataclasses import replace

from controller.core import changes
from controller.core.changes import Change
from controller.core.correlation import Concern
from controller.core.decision import Action, Decision
from controller.core.evidence import Evidence, on_death, on_fault, on_healthy
from controller.core.history import EventKind
from controller.core.phases import Phase
from controller.core.reports import EngineFault, EngineHealthy, ProcessDeath
from controller.core.status import InstanceState, InstanceStatus
from motor_ft.model.engine import EngineStatus, EvidenceSource
from motor_ft.model.hardware import FaultLevel, HardwareFault
from motor_ft.model.topology import Role
from tests.unit.controller.core.fleet import read
from tests.unit.controller.core.snapshots import COMPLETE

NOTHING = Evidence()
UNHEALTHY = EngineFault(read(1, EngineStatus.UNHEALTHY), EvidenceSource.ENGINE_REPORTED)
DEAD = EngineFault(read(1, EngineStatus.DEAD, detail="worker lost"), EvidenceSource.ENGINE_REPORTED)

STATUS = InstanceStatus(
    instance_id=7,
    phase=Phase.NORMAL,
    original_dp_ranks=(0, 1),
    request_id="",
    dead_committed=(),
    pending_removed_ranks=(),
    fallback_strategy="instance_reconfiguration",
    gate=None,
    engine_statuses={},
    serving_published=True,
    last_error="",
    can_serve=True,
    generation=1,
    job_name="job",
    model_name="model",
    role=Role.UNION,
    dp_size=2,
    state=InstanceState.ACTIVE,
    pods=(),
)


def told(found: Iterable[Change]) -> list[tuple[EventKind, str]]:
    return [(each.kind, each.text) for each in found]


def test_a_rank_that_fails_dies_and_comes_back_is_told_each_time_once() -> None:
    unhealthy = on_fault(NOTHING, UNHEALTHY, 1.0)
    dead = on_fault(unhealthy, DEAD, 2.0)
    gone = on_death(dead, ProcessDeath(1, "e1", 4711, "exit code -9"), 3.0)
    back = on_healthy(dead, EngineHealthy(read(1, EngineStatus.HEALTHY)), 4.0)
    assert told(changes.of_evidence(NOTHING, unhealthy)) == [(EventKind.EVIDENCE, "rank 1 is UNHEALTHY")]
    assert told(changes.of_evidence(unhealthy, dead)) == [
        (EventKind.EVIDENCE, "rank 1 is DEAD (ENGINE_REPORTED): worker lost")
    ]
    assert told(changes.of_evidence(dead, gone)) == [
        (EventKind.EVIDENCE, "rank 1 is DEAD (PROCESS_EXIT): exit code -9")
    ]
    assert told(changes.of_evidence(dead, back)) == [(EventKind.EVIDENCE, "rank 1 is HEALTHY")]


def test_the_same_report_again_and_a_rank_that_is_well_are_no_events() -> None:
    dead = on_fault(NOTHING, DEAD, 1.0)
    assert told(changes.of_evidence(dead, dead)) == []
    assert told(changes.of_evidence(dead, on_fault(dead, DEAD, 2.0))) == []
    well = on_healthy(NOTHING, EngineHealthy(read(1, EngineStatus.HEALTHY)), 3.0)
    assert told(changes.of_evidence(NOTHING, well)) == []


def test_evidence_names_its_rank_source_and_engine() -> None:
    (found,) = changes.of_evidence(NOTHING, on_fault(NOTHING, DEAD, 1.0))
    assert found.attributes == {
        "rank": 1,
        "status": EngineStatus.DEAD,
        "source": EvidenceSource.ENGINE_REPORTED,
        "engine_incarnation": "e1",
    }


def test_hardware_faults_come_change_and_end() -> None:
    fault = HardwareFault("node-a", "Ascend910-1", "80E18402", FaultLevel.L4)
    mild, grave = Concern(fault, FaultLevel.L4, frozenset({1})), Concern(fault, FaultLevel.L6, None)
    come, changed, over = (
        list(changes.of_concern(before, after)) for before, after in ((None, mild), (mild, grave), (grave, None))
    )
    assert told([*come, *changed, *over]) == [
        (EventKind.HARDWARE, "new: L4 80E18402 on Ascend910-1 of node-a (ranks [1])"),
        (EventKind.HARDWARE, "changed: L6 80E18402 on Ascend910-1 of node-a (no rank to be told)"),
        (EventKind.HARDWARE, "over: L6 80E18402 on Ascend910-1 of node-a (no rank to be told)"),
    ]
    assert (come[0].attributes["ranks"], over[0].attributes["ranks"]) == ([1], None)
    for same in (None, mild):  # a fault that does not touch the instance is none
        assert told(changes.of_concern(same, same)) == []


def test_a_decision_is_told_with_the_gist_of_what_it_looked_at() -> None:
    kind, text, said = changes.of_decision(Decision(Action.DP_SCALE_DOWN, "complete", "6"), COMPLETE)
    assert (kind, text) == (EventKind.DECISION, "dp_scale_down: complete")
    assert said == {
        "action": "dp_scale_down",
        "row": "6",
        "phase": "NORMAL",
        "unhealthy": [0, 2, 3],
        "dead": [1],
        "active": [0, 1, 2, 3],
    }
    isolated = changes.of_decision(Decision(Action.NONE, "hardware", "10", isolate=True), COMPLETE)
    assert isolated.attributes["isolate"] is True


def test_an_instance_that_appears_has_a_life_a_phase_and_is_published() -> None:
    assert told(changes.of_status(None, STATUS)) == [
        (EventKind.LIFE, "the instance is ACTIVE"),
        (EventKind.PHASE, "phase NORMAL, generation 1"),
        (EventKind.SERVING, "the Coordinators route to ranks [0, 1]"),
    ]


def test_an_instance_that_is_only_being_assembled_has_no_phase_yet() -> None:
    empty = replace(STATUS, state=InstanceState.INITIAL, generation=0, serving_published=False)
    assert told(changes.of_status(None, empty)) == [(EventKind.LIFE, "the instance is INITIAL")]


def test_every_move_of_a_status_is_told() -> None:
    after = replace(
        STATUS,
        state=InstanceState.INACTIVE,
        phase=Phase.RECONFIGURING,
        generation=2,
        serving_published=False,
        automation_stopped=True,
        last_error="RECONFIGURATION_FAILED: nobody came",
    )
    assert told(changes.of_status(STATUS, after)) == [
        (EventKind.LIFE, "the instance is INACTIVE"),
        (EventKind.PHASE, "phase RECONFIGURING, generation 2"),
        (EventKind.SERVING, "no new requests any more"),
        (EventKind.ALERT, "automation stopped, a person has to act: RECONFIGURATION_FAILED: nobody came"),
    ]
    assert told(changes.of_status(after, after)) == []


def test_the_second_round_is_told_by_its_generation_alone() -> None:
    """With the feature off the phase shows DISABLED throughout."""
    off = replace(STATUS, phase=Phase.DISABLED)
    assert told(changes.of_status(off, replace(off, generation=2))) == [
        (EventKind.PHASE, "phase DISABLED, generation 2")
    ]
