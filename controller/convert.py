"""Messages of the Controller's services and the types of its core; every ``*_from_pb`` raises FieldError."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from controller.core.gate import GateResult
from controller.core.phases import Phase
from controller.core.reports import (
    AdapterHello,
    Directive,
    EndpointState,
    EngineFault,
    EngineHealthy,
    HardwareCleared,
    HardwareReport,
    HardwareSnapshot,
    Heartbeat,
    Hello,
    ProcessDeath,
    Report,
    Snapshot,
    SoftwareFault,
    Welcome,
)
from controller.core.status import InstanceState, InstanceStatus, PodStatus
from motor_ft.model.engine import EngineObservation, EngineStatus, EvidenceSource
from motor_ft.model.errors import FieldError
from motor_ft.v1 import common_pb2, controller_pb2, fault_report_pb2
from motor_ft.wire.convert import (
    demand,
    duration_from_pb,
    duration_to_pb,
    endpoint_from_pb,
    endpoint_to_pb,
    natural,
    observation_from_pb,
    ranks_from_pb,
    registration_from_pb,
)
from motor_ft.wire.enums import ENDPOINT_STATUS, ENGINE_STATUS, EVIDENCE_SOURCE, ROLE, EnumMap
from motor_ft.wire.hardware import hardware_cleared_from_pb, hardware_fault_from_pb, source_from_pb

M = TypeVar("M")

PHASE = EnumMap(Phase, controller_pb2.Phase)
INSTANCE_STATE = EnumMap(InstanceState, controller_pb2.InstanceState)

MAX_EPOCH = 2**62
"""A Controller goes above the highest epoch that it hears of, and needs room to go on counting."""

_REPORTERS = frozenset({fault_report_pb2.REPORTER_KIND_NODE_MANAGER, fault_report_pb2.REPORTER_KIND_MINDCLUSTER})

REPORTED_STATUSES = frozenset({EngineStatus.HEALTHY, EngineStatus.UNHEALTHY, EngineStatus.DEAD})
"""What ReportSoftwareFault may say of an engine (RFC section 4.4)."""


def hello_from_pb(message: fault_report_pb2.FaultReportRequest) -> Hello | AdapterHello:
    """Read the first message of a stream."""
    demand(message.HasField("hello"), "report", "the first message of a stream must be hello")
    hello = message.hello
    known_kind = hello.kind in _REPORTERS
    demand(known_kind, "hello.kind", f"must be REPORTER_KIND_NODE_MANAGER or _MINDCLUSTER, not {hello.kind}")
    demand(bool(hello.reporter_id), "hello.reporter_id", "must be present")
    demand(bool(hello.incarnation), "hello.incarnation", "must be present")
    number = hello.incarnation_number
    demand(number > 0, "hello.incarnation_number", f"must be positive, not {number}")
    epoch = natural(hello.highest_epoch, "hello.highest_epoch") if hello.HasField("highest_epoch") else None
    demand(epoch is None or epoch <= MAX_EPOCH, "hello.highest_epoch", f"must be at most {MAX_EPOCH}, not {epoch}")
    if hello.kind == fault_report_pb2.REPORTER_KIND_MINDCLUSTER:
        return AdapterHello(hello.reporter_id, hello.incarnation, number, epoch)
    demand(hello.HasField("registration"), "hello.registration", "must be present")
    previous = hello.previous_instance_id if hello.HasField("previous_instance_id") else None
    return Hello(
        reporter_id=hello.reporter_id,
        incarnation=hello.incarnation,
        incarnation_number=number,
        highest_epoch=epoch,
        previous_instance_id=None if previous is None else natural(previous, "hello.previous_instance_id"),
        registration=registration_from_pb(hello.registration, hello.reporter_id),
    )


def report_from_pb(message: fault_report_pb2.FaultReportRequest) -> Report:
    """Read what a NodeManager says after its Hello."""
    kind = message.WhichOneof("report")
    _check_sequence(message)
    match kind:
        case "heartbeat":
            return Heartbeat(_endpoint_states(message.heartbeat.endpoints, "heartbeat.endpoints"))
        case "engine_fault":
            return _engine_fault(message.engine_fault, "engine_fault")
        case "engine_healthy":
            return _engine_healthy(message.engine_healthy, "engine_healthy")
        case "process_death":
            return _process_death(message.process_death, "process_death")
        case "snapshot":
            return _snapshot(message.snapshot)
        case _:
            raise FieldError({"report": f"must be a report, not {kind or 'absent'}"})


def hardware_report_from_pb(message: fault_report_pb2.FaultReportRequest) -> HardwareReport:
    """Read what an adapter of hardware faults says after its Hello."""
    kind = message.WhichOneof("report")
    _check_sequence(message)
    match kind:
        case "heartbeat":
            return Heartbeat(())
        case "hardware_fault":
            return hardware_fault_from_pb(message.hardware_fault)
        case "hardware_cleared":
            return HardwareCleared(hardware_cleared_from_pb(message.hardware_cleared))
        case "snapshot":
            return _hardware_snapshot(message.snapshot)
        case _:
            raise FieldError({"report": f"must be a report of hardware, not {kind or 'absent'}"})


def _check_sequence(message: fault_report_pb2.FaultReportRequest) -> None:
    """Only a heartbeat has none."""
    beats = message.HasField("heartbeat")
    demand(message.sequence == 0 if beats else message.sequence > 0, "sequence", f"must not be {message.sequence}")


def welcome_to_pb(welcome: Welcome) -> fault_report_pb2.Welcome:
    """Return the answer to Hello."""
    return fault_report_pb2.Welcome(
        instance_id=welcome.instance_id,
        controller_epoch=welcome.controller_epoch,
        generation=welcome.generation,
        heartbeat_interval=duration_to_pb(welcome.heartbeat_interval_sec),
        heartbeat_ttl=duration_to_pb(welcome.heartbeat_ttl_sec),
        enable_dp_scale_down_proxy=welcome.enable_dp_scale_down_proxy,
        poll_interval=duration_to_pb(welcome.poll_interval_sec),
        status_unreachable_threshold=welcome.status_unreachable_threshold,
        engine_request_timeout=duration_to_pb(welcome.engine_request_timeout_sec),
    )


def directive_to_pb(directive: Directive) -> fault_report_pb2.Directive:
    """Return something to do."""
    poll = fault_report_pb2.POLL_MODE_UNSPECIFIED
    if directive.fast_poll is not None:
        poll = fault_report_pb2.POLL_MODE_FAST if directive.fast_poll else fault_report_pb2.POLL_MODE_NORMAL
    freeze = directive.freeze_suicide_sec
    return fault_report_pb2.Directive(
        controller_epoch=directive.controller_epoch,
        poll_mode=poll,
        send_snapshot=directive.send_snapshot,
        freeze_suicide=None if freeze is None else duration_to_pb(freeze),
    )


def software_fault_from_pb(message: fault_report_pb2.ReportSoftwareFaultRequest) -> SoftwareFault:
    """Read one fault of RFC section 4.4."""
    demand(bool(message.pod_ip), "pod_ip", "must be present")
    port = message.node_manager_port
    demand(0 < port < 65536, "node_manager_port", f"must be 1 to 65535, not {port}")
    rank = natural(message.engine_id, "engine_id")
    status = ENGINE_STATUS.from_pb(message.engine_status, "engine_status")
    demand(status in REPORTED_STATUSES, "engine_status", f"must be HEALTHY, DEAD or UNHEALTHY, not {status.name}")
    instance_id = message.instance_id if message.HasField("instance_id") else None
    demand(instance_id is None or instance_id > 0, "instance_id", f"must be positive, not {instance_id}")
    detail = [message.exception_message, *(f"{key}={value}" for key, value in sorted(message.additional_info.items()))]
    observation = EngineObservation(
        rank, status, fault_info=message.exception_type, detail=" ".join(filter(None, detail))
    )
    return SoftwareFault(instance_id, message.pod_ip, port, rank, observation)


def timestamp_to_pb(wall: float) -> Timestamp:
    """Return seconds since the epoch as a Timestamp."""
    timestamp = Timestamp()
    timestamp.FromMicroseconds(round(wall * 1_000_000))
    return timestamp


def gate_to_pb(gate: GateResult) -> controller_pb2.Gate:
    """Return an outcome of the static gate."""
    return controller_pb2.Gate(allowed=gate.allowed, reason_codes=gate.reasons)


def status_to_pb(status: InstanceStatus) -> controller_pb2.Instance:
    """Return what clients see of an instance."""
    return controller_pb2.Instance(
        instance_id=status.instance_id,
        phase=PHASE.to_pb(status.phase),
        original_dp_ranks=status.original_dp_ranks,
        request_id=status.request_id,
        dead_committed=status.dead_committed,
        pending_removed_ranks=status.pending_removed_ranks,
        alive_dp_ranks=status.alive_dp_ranks,
        fallback_strategy=status.fallback_strategy,
        gate=None if status.gate is None else gate_to_pb(status.gate),
        engine_statuses={rank: ENGINE_STATUS.to_pb(seen) for rank, seen in status.engine_statuses.items()},
        serving_published=status.serving_published,
        last_error=status.last_error,
        can_serve=status.can_serve,
        generation=status.generation,
        job_name=status.job_name,
        model_name=status.model_name,
        role=ROLE.to_pb(status.role),
        dp_size=status.dp_size,
        state=INSTANCE_STATE.to_pb(status.state),
        pods=[_pod_to_pb(pod) for pod in status.pods],
        automation_stopped=status.automation_stopped,
        automation_paused=status.automation_paused,
        degraded=status.degraded,
        last_decision=status.last_decision,
        update_time=timestamp_to_pb(status.update_time) if status.update_time else None,
    )


def _pod_to_pb(pod: PodStatus) -> controller_pb2.Pod:
    return controller_pb2.Pod(
        name=pod.pod_name,
        node_name=pod.node_name,
        ip=pod.pod_ip,
        node_manager_address=pod.node_manager_address,
        endpoints=[endpoint_to_pb(endpoint) for endpoint in pod.endpoints],
        connected=pod.connected,
    )


def _snapshot(message: fault_report_pb2.Snapshot) -> Snapshot:
    return Snapshot(
        endpoints=_endpoint_states(message.endpoints, "snapshot.endpoints"),
        faults=tuple(_engine_fault(each, path) for path, each in _paths(message.faults, "snapshot.faults")),
        deaths=tuple(_process_death(each, path) for path, each in _paths(message.deaths, "snapshot.deaths")),
        healthy=tuple(_engine_healthy(each, path) for path, each in _paths(message.healthy, "snapshot.healthy")),
        retired=ranks_from_pb(message.retired_dp_ranks, "snapshot.retired_dp_ranks"),
        ready=message.ready,
        registered=tuple(
            endpoint_from_pb(each, path) for path, each in _paths(message.registered, "snapshot.registered")
        ),
    )


def _hardware_snapshot(message: fault_report_pb2.Snapshot) -> HardwareSnapshot:
    faults, sources = "snapshot.hardware_faults", "snapshot.hardware_sources"
    return HardwareSnapshot(
        faults=tuple(hardware_fault_from_pb(each, path) for path, each in _paths(message.hardware_faults, faults)),
        sources=tuple(source_from_pb(each, path) for path, each in _paths(message.hardware_sources, sources)),
    )


def _endpoint_states(messages: Iterable[common_pb2.EndpointState], path: str) -> tuple[EndpointState, ...]:
    return tuple(
        EndpointState(
            rank=natural(each.dp_rank, f"{where}.dp_rank"),
            status=ENDPOINT_STATUS.from_pb(each.status, f"{where}.status"),
            headless=each.headless,
        )
        for where, each in _paths(messages, path)
    )


def _engine_fault(message: fault_report_pb2.EngineFault, path: str) -> EngineFault:
    observation = observation_from_pb(message.observation, f"{path}.observation")
    demand(observation.status is not EngineStatus.HEALTHY, f"{path}.observation.status", "must not be HEALTHY")
    source: EvidenceSource | None = None
    if message.source != common_pb2.EVIDENCE_SOURCE_UNSPECIFIED:
        source = EVIDENCE_SOURCE.from_pb(message.source, f"{path}.source")
    return EngineFault(observation, source, _age(message.age, f"{path}.age"))


def _engine_healthy(message: fault_report_pb2.EngineHealthy, path: str) -> EngineHealthy:
    observation = observation_from_pb(message.observation, f"{path}.observation")
    demand(observation.status is EngineStatus.HEALTHY, f"{path}.observation.status", "must be HEALTHY")
    return EngineHealthy(observation)


def _process_death(message: fault_report_pb2.ProcessDeath, path: str) -> ProcessDeath:
    return ProcessDeath(
        rank=natural(message.dp_rank, f"{path}.dp_rank"),
        incarnation=message.engine_incarnation,
        pid=message.pid,
        detail=message.detail,
        age_sec=_age(message.age, f"{path}.age"),
    )


def _age(message: Duration, path: str) -> float:
    age = duration_from_pb(message, path)
    demand(age >= 0, path, f"must not be negative, not {age:g} s")
    return age


def _paths(messages: Iterable[M], path: str) -> Iterator[tuple[str, M]]:
    return ((f"{path}[{index}]", message) for index, message in enumerate(messages))
