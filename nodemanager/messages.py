"""What the pod says on the FaultReport stream, as messages; ages are counted when a message is made."""

from collections.abc import Iterable

from motor_ft.model.engine import EngineStatus
from motor_ft.model.topology import Registration
from motor_ft.v1 import common_pb2, fault_report_pb2
from motor_ft.v1.fault_report_pb2 import FaultReportRequest
from motor_ft.wire.convert import duration_to_pb, endpoint_to_pb, observation_to_pb, registration_to_pb
from motor_ft.wire.enums import ENDPOINT_STATUS, EVIDENCE_SOURCE
from nodemanager.core.health import DeathReport, EngineReport, RankHealth
from nodemanager.core.state import NodeState
from nodemanager.pod import Pod, Report


def hello(registration: Registration, incarnation: str, state: NodeState) -> FaultReportRequest:
    """Who reports; carries no sequence, because every stream begins with one."""
    return FaultReportRequest(
        hello=fault_report_pb2.Hello(
            kind=fault_report_pb2.REPORTER_KIND_NODE_MANAGER,
            reporter_id=registration.pod_uid,
            incarnation=incarnation,
            incarnation_number=state.starts,
            highest_epoch=state.fence.epoch,
            previous_instance_id=state.instance_id,
            registration=registration_to_pb(registration),
        )
    )


def heartbeat(pod: Pod) -> FaultReportRequest:
    """Every endpoint that is not retired, dead ones included; with scale-down off the retired ones too."""
    return FaultReportRequest(heartbeat=fault_report_pb2.Heartbeat(endpoints=_endpoints(pod.beat())))


def report(sequence: int, item: Report, pod: Pod, state: NodeState, now: float) -> FaultReportRequest:
    """One numbered report; a snapshot is taken here."""
    if isinstance(item, DeathReport):
        return FaultReportRequest(sequence=sequence, process_death=_death(item, now))
    if not isinstance(item, EngineReport):
        return FaultReportRequest(sequence=sequence, snapshot=_snapshot(pod, state, now))
    if item.observation.status is EngineStatus.HEALTHY:
        return FaultReportRequest(sequence=sequence, engine_healthy=_healthy(item))
    return FaultReportRequest(sequence=sequence, engine_fault=_fault(item, now))


def _snapshot(pod: Pod, state: NodeState, now: float) -> fault_report_pb2.Snapshot:
    health = pod.health()
    reports = [rank.report for rank in health if rank.report is not None]
    return fault_report_pb2.Snapshot(
        endpoints=_endpoints(health),
        faults=[_fault(item, now) for item in reports if item.observation.status is not EngineStatus.HEALTHY],
        healthy=[_healthy(item) for item in reports if item.observation.status is EngineStatus.HEALTHY],
        deaths=[_death(death, now) for rank in health for death in rank.deaths],
        retired_dp_ranks=sorted(state.retired),
        ready=state.ready,
        registered=map(endpoint_to_pb, pod.endpoints()),
    )


def _endpoints(health: Iterable[RankHealth]) -> list[common_pb2.EndpointState]:
    return [
        common_pb2.EndpointState(
            dp_rank=known.rank, status=ENDPOINT_STATUS.to_pb(known.status), headless=known.headless
        )
        for known in health
    ]


def _fault(item: EngineReport, now: float) -> fault_report_pb2.EngineFault:
    return fault_report_pb2.EngineFault(
        observation=observation_to_pb(item.observation),
        source=EVIDENCE_SOURCE.to_pb(item.source) if item.source else common_pb2.EVIDENCE_SOURCE_UNSPECIFIED,
        age=duration_to_pb(now - item.since),
    )


def _healthy(item: EngineReport) -> fault_report_pb2.EngineHealthy:
    return fault_report_pb2.EngineHealthy(observation=observation_to_pb(item.observation))


def _death(item: DeathReport, now: float) -> fault_report_pb2.ProcessDeath:
    return fault_report_pb2.ProcessDeath(
        dp_rank=item.rank,
        engine_incarnation=item.incarnation,
        pid=item.pid,
        detail=item.detail,
        age=duration_to_pb(now - item.at),
    )
