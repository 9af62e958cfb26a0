"""Messages of what operators ask: explanations and events."""

from collections.abc import Iterator

from google.protobuf.duration_pb2 import Duration

from controller.convert import PHASE, gate_to_pb, timestamp_to_pb
from controller.core.correlation import Concern
from controller.core.decision import Snapshot
from controller.core.evidence import Evidence
from controller.core.explain import Explanation
from controller.core.history import Event, EventKind
from controller.core.topology import Participant
from motor_ft.v1 import controller_pb2
from motor_ft.v1.common_pb2 import EVIDENCE_SOURCE_UNSPECIFIED
from motor_ft.wire.convert import duration_to_pb
from motor_ft.wire.enums import ENGINE_STATUS, EVIDENCE_SOURCE, EnumMap
from motor_ft.wire.hardware import FAULT_LEVEL, hardware_fault_to_pb

EVENT_KIND = EnumMap(EventKind, controller_pb2.EventKind)


def event_to_pb(event: Event, now: float) -> controller_pb2.Event:
    """Return one event."""
    return controller_pb2.Event(
        sequence=event.sequence,
        instance_id=event.instance_id,
        kind=EVENT_KIND.to_pb(event.kind),
        time=timestamp_to_pb(event.wall),
        age=duration_to_pb(now - event.at),
        text=event.text,
        attributes=event.attributes,
    )


def explanation_to_pb(explanation: Explanation) -> controller_pb2.ExplainResponse:
    """Return a decision and what it looks at."""
    decision, now = explanation.decision, explanation.now
    return controller_pb2.ExplainResponse(
        decision=controller_pb2.Decision(
            action=decision.action,
            reason=decision.reason,
            row=decision.row,
            look_again_in=_until(decision.look_again, now),
            stop=decision.stop,
            isolate=decision.isolate,
        ),
        snapshot=_snapshot(explanation),
        gate=gate_to_pb(explanation.gate),
        participants=map(_participant, explanation.participants),
        topology_problem=explanation.topology_problem,
        blockers=explanation.blockers,
    )


def _snapshot(explanation: Explanation) -> controller_pb2.DecisionSnapshot:
    known, now = explanation.facts.snapshot, explanation.now
    window_opened = known.hardware.hardware_first
    window_ends = None if window_opened is None else window_opened + known.correlation_window_sec
    return controller_pb2.DecisionSnapshot(
        phase=PHASE.to_pb(known.phase),
        ready=known.ready,
        in_service=known.in_service,
        strategy=known.strategy or "",
        automation_paused=bool(known.paused),
        automation_stopped=known.automation_stopped,
        superseded=known.superseded,
        enabled_strategies=sorted(known.enabled),
        scale_down_enabled=known.scale_down_enabled,
        active_dp_ranks=sorted(known.active),
        ranks=_ranks(known, explanation.facts.evidence, now),
        collecting_for=_since(known.collecting_since, now),
        collection_left=_until(known.deadline, now),
        hardware=[_concern(each, known) for each in known.hardware.concerns.values()],
        correlation_left=_until(window_ends, now),
        hardware_noticed=known.hardware.noticed,
        hardware_problems=explanation.facts.hardware_problems,
        tried_strategies=sorted(known.tried),
        missing_pods=sorted(known.missing),
    )


def _ranks(known: Snapshot, evidence: Evidence, now: float) -> Iterator[controller_pb2.RankEvidence]:
    for rank, shown in evidence.shown().items():
        slot = evidence.slot(rank)
        if rank in known.active:
            yield controller_pb2.RankEvidence(
                dp_rank=rank,
                status=ENGINE_STATUS.to_pb(shown),
                source=EVIDENCE_SOURCE.to_pb(slot.dead_source) if slot.dead_source else EVIDENCE_SOURCE_UNSPECIFIED,
                baseline=rank in evidence.ignored,
                unhealthy_for=_since(slot.first_unhealthy, now),
                dead_for=_since(slot.first_dead, now),
                engine_incarnation=slot.incarnation,
                detail=slot.detail,
            )


def _concern(concern: Concern, known: Snapshot) -> controller_pb2.HardwareConcern:
    return controller_pb2.HardwareConcern(
        fault=hardware_fault_to_pb(concern.fault),
        level=FAULT_LEVEL.to_pb(concern.level),
        dp_ranks=sorted(concern.ranks or ()),
        mapped=concern.ranks is not None,
        unhandled=concern in known.hardware.unhandled(known.active),
    )


def _participant(participant: Participant) -> controller_pb2.Participant:
    return controller_pb2.Participant(
        pod_name=participant.pod_name,
        node_manager_address=participant.address,
        survivors=participant.survivors,
        removed=participant.removed,
    )


def _since(at: float | None, now: float) -> Duration | None:
    return None if at is None else duration_to_pb(now - at)


def _until(at: float | None, now: float) -> Duration | None:
    """Never negative: what is over is over."""
    return None if at is None else duration_to_pb(max(0.0, at - now))
