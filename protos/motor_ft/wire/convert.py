"""Messages to vocabulary and back.

Every ``*_from_pb`` validates what it reads and raises FieldError with the field's path, starting at ``path``.
"""

import itertools
import math
from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration

from motor_ft.model.command import (
    MAX_OPERATOR_LENGTH,
    MAX_REASON_LENGTH,
    MAX_REQUEST_ID_LENGTH,
    Command,
    OperatorCommand,
    ScaleDownPlan,
    valid_request_id,
)
from motor_ft.model.engine import EngineObservation, EngineStatus, PodEngine, Problem, RankOutcome, RankProbe
from motor_ft.model.errors import FieldError
from motor_ft.model.topology import Device, Endpoint, FtCapability, Registration
from motor_ft.v1 import common_pb2, fault_report_pb2, node_lifecycle_pb2, node_manager_pb2
from motor_ft.wire.enums import APPLY_OUTCOME, ENGINE_STATUS, FT_STATE, PROBE_OUTCOME, PROBLEM, ROLE

_MAX_DURATION_SEC = 315_576_000_000  # 10,000 years, as the well-known type says


def demand(condition: bool, path: str, what: str) -> None:
    """Raise FieldError for the field at ``path`` unless ``condition`` holds."""
    if not condition:
        raise FieldError({path: what})


def natural(value: int, path: str) -> int:
    """Return ``value``; raises FieldError when it is negative."""
    demand(value >= 0, path, f"must not be negative, not {value}")
    return value


def ranks_from_pb(ranks: Iterable[int], path: str, *, empty: bool = True) -> tuple[int, ...]:
    """Read DP ranks: not negative, ascending, each once; none at all only with ``empty``."""
    read = tuple(ranks)
    demand(empty or bool(read), path, "must name at least one rank")
    ascending = all(low < high for low, high in itertools.pairwise(read))
    demand(ascending and min(read, default=0) >= 0, path, f"must be ascending ranks from 0, not {list(read)}")
    return read


def duration_to_pb(sec: float) -> Duration:
    """Return seconds as a Duration; raises ValueError when they are not finite."""
    if not math.isfinite(sec):
        raise ValueError(f"a duration must be finite, not {sec}")
    duration = Duration()
    duration.FromNanoseconds(round(sec * 1_000_000_000))
    return duration


def duration_from_pb(duration: Duration, path: str = "duration") -> float:
    """Return seconds; an absent Duration reads as 0, so ask ``HasField`` where that differs."""
    sec, nanos = duration.seconds, duration.nanos
    valid = abs(sec) <= _MAX_DURATION_SEC and abs(nanos) < 1_000_000_000 and sec * nanos >= 0
    demand(valid, path, f"{sec} s and {nanos} ns are no duration")
    return (sec * 1_000_000_000 + nanos) / 1_000_000_000  # rounded once, so that what was sent is read


def command_to_header(command: Command) -> common_pb2.CommandHeader:
    """Return the header of a command."""
    return common_pb2.CommandHeader(
        instance_id=command.instance_id,
        request_id=command.request_id,
        controller_epoch=command.epoch,
        generation=command.generation,
    )


def command_from_header(header: common_pb2.CommandHeader, path: str = "header") -> Command:
    """Read a header. Over gRPC every command is fenced: epoch and generation must be there (protocol.md 3)."""
    violations = _identity_violations(header)
    if not header.HasField("controller_epoch"):
        violations["controller_epoch"] = "must be present"
    elif header.controller_epoch < 0:
        violations["controller_epoch"] = f"must not be negative, not {header.controller_epoch}"
    if not header.HasField("generation"):
        violations["generation"] = "must be present"
    elif header.generation < 0:
        violations["generation"] = f"must not be negative, not {header.generation}"
    _demand_none(violations, path)
    return Command(header.instance_id, header.request_id, header.controller_epoch, header.generation)


def operator_from_header(header: common_pb2.OperatorHeader, path: str = "header") -> OperatorCommand:
    """Read who orders what, and why; nobody acts without a name and a reason (protocol.md 3)."""
    violations = _identity_violations(header)
    for field, longest in (("operator", MAX_OPERATOR_LENGTH), ("reason", MAX_REASON_LENGTH)):
        text = getattr(header, field)
        if not (0 < len(text.strip()) <= len(text) <= longest and text.isprintable()):
            violations[field] = f"must be 1 to {longest} printable characters"
    expected = header.expected_generation if header.HasField("expected_generation") else None
    if expected is not None and expected < 0:
        violations["expected_generation"] = f"must not be negative, not {expected}"
    _demand_none(violations, path)
    return OperatorCommand(header.instance_id, header.request_id, header.operator, header.reason, expected)


def _identity_violations(header: common_pb2.CommandHeader | common_pb2.OperatorHeader) -> dict[str, str]:
    violations = {}
    if header.instance_id <= 0:
        violations["instance_id"] = f"must be positive, not {header.instance_id}"
    if not valid_request_id(header.request_id):
        violations["request_id"] = f"must be 1 to {MAX_REQUEST_ID_LENGTH} printable ASCII characters"
    return violations


def _demand_none(violations: dict[str, str], path: str) -> None:
    if violations:
        raise FieldError({f"{path}.{field}": what for field, what in violations.items()})


def plan_to_pb(plan: ScaleDownPlan) -> common_pb2.ScaleDownPlan:
    """Return the message of a frozen plan."""
    return common_pb2.ScaleDownPlan(
        removed_dp_ranks=plan.removed,
        survivors=[
            common_pb2.Survivor(dp_rank=rank, engine_incarnation=incarnation) for rank, incarnation in plan.survivors
        ],
        plan_hash=plan.plan_hash,
    )


def plan_from_pb(message: common_pb2.ScaleDownPlan, path: str = "plan") -> ScaleDownPlan:
    """Read a plan. Whether its hash fits instance and generation is for the receiver to say (hash_plan)."""
    removed = ranks_from_pb(message.removed_dp_ranks, f"{path}.removed_dp_ranks")
    survivors = tuple((survivor.dp_rank, survivor.engine_incarnation) for survivor in message.survivors)
    stay = ranks_from_pb((rank for rank, _ in survivors), f"{path}.survivors", empty=False)
    both = sorted(set(removed) & set(stay))
    demand(not both, f"{path}.survivors", f"ranks {both} are removed as well")
    demand(bool(message.plan_hash), f"{path}.plan_hash", "must be present")
    return ScaleDownPlan(removed, survivors, message.plan_hash)


def observation_to_pb(observation: EngineObservation) -> common_pb2.EngineObservation:
    """Return the message of one reading."""
    return common_pb2.EngineObservation(
        dp_rank=observation.rank,
        status=ENGINE_STATUS.to_pb(observation.status),
        ft_state=FT_STATE.to_pb(observation.ft_state),
        fault_info=observation.fault_info,
        last_ft_request_id=observation.last_ft_request_id,
        ft_error=observation.ft_error,
        mask=observation.mask,
        engine_incarnation=observation.incarnation,
        observation=observation.observation,
        problem=PROBLEM.to_pb(observation.problem),
        detail=observation.detail,
    )


def observation_from_pb(message: common_pb2.EngineObservation, path: str = "observation") -> EngineObservation:
    """Read one reading; its status is UNKNOWN exactly when it has a problem."""
    status = ENGINE_STATUS.from_pb(message.status, f"{path}.status")
    problem = PROBLEM.from_pb(message.problem, f"{path}.problem")
    if (status is EngineStatus.UNKNOWN) is (problem is Problem.NONE):
        raise FieldError({f"{path}.problem": "must be set exactly when the status is UNKNOWN"})
    return EngineObservation(
        rank=natural(message.dp_rank, f"{path}.dp_rank"),
        status=status,
        incarnation=message.engine_incarnation,
        observation=natural(message.observation, f"{path}.observation"),
        ft_state=FT_STATE.from_pb(message.ft_state, f"{path}.ft_state"),
        fault_info=message.fault_info,
        last_ft_request_id=message.last_ft_request_id,
        ft_error=message.ft_error,
        mask=tuple(message.mask),
        problem=problem,
        detail=message.detail,
    )


def outcome_to_pb(outcome: RankOutcome) -> common_pb2.RankOutcome:
    """Return the message of one rank's outcome."""
    return common_pb2.RankOutcome(
        dp_rank=outcome.rank,
        outcome=APPLY_OUTCOME.to_pb(outcome.outcome),
        detail=outcome.detail,
        observation=outcome.observation,
        engine_request_id=outcome.engine_request_id,
    )


def outcome_from_pb(message: common_pb2.RankOutcome, path: str = "outcome") -> RankOutcome:
    """Read one rank's outcome."""
    return RankOutcome(
        rank=natural(message.dp_rank, f"{path}.dp_rank"),
        outcome=APPLY_OUTCOME.from_pb(message.outcome, f"{path}.outcome"),
        detail=message.detail,
        observation=natural(message.observation, f"{path}.observation"),
        engine_request_id=message.engine_request_id,
    )


def pod_engine_to_pb(engine: PodEngine) -> node_lifecycle_pb2.PodEngine:
    """Return the message of one engine of a pod."""
    return node_lifecycle_pb2.PodEngine(
        dp_rank=engine.rank,
        engine_incarnation=engine.incarnation,
        status=ENGINE_STATUS.to_pb(engine.status),
        headless=engine.headless,
    )


def pod_engine_from_pb(message: node_lifecycle_pb2.PodEngine, path: str = "engine") -> PodEngine:
    """Read one engine of a pod."""
    demand(bool(message.engine_incarnation), f"{path}.engine_incarnation", "must be present")
    return PodEngine(
        natural(message.dp_rank, f"{path}.dp_rank"),
        message.engine_incarnation,
        ENGINE_STATUS.from_pb(message.status, f"{path}.status"),
        message.headless,
    )


def probe_to_pb(probe: RankProbe) -> node_manager_pb2.RankProbe:
    """Return the message of what one completion showed."""
    return node_manager_pb2.RankProbe(
        dp_rank=probe.rank, outcome=PROBE_OUTCOME.to_pb(probe.outcome), detail=probe.detail
    )


def probe_from_pb(message: node_manager_pb2.RankProbe, path: str = "probe") -> RankProbe:
    """Read what one completion showed."""
    return RankProbe(
        rank=natural(message.dp_rank, f"{path}.dp_rank"),
        outcome=PROBE_OUTCOME.from_pb(message.outcome, f"{path}.outcome"),
        detail=message.detail,
    )


def endpoint_to_pb(endpoint: Endpoint) -> common_pb2.Endpoint:
    """Return the message of one endpoint."""
    return common_pb2.Endpoint(
        dp_rank=endpoint.rank,
        ip=endpoint.ip,
        business_port=endpoint.business_port,
        headless=endpoint.headless,
        devices=[common_pb2.Device(device_id=card.device_id, device_ip=card.device_ip) for card in endpoint.devices],
        engine_incarnation=endpoint.incarnation,
    )


def endpoint_from_pb(message: common_pb2.Endpoint, path: str = "endpoint") -> Endpoint:
    """Read one endpoint."""
    demand(bool(message.ip), f"{path}.ip", "must be present")
    port = message.business_port
    demand(0 < port < 65536, f"{path}.business_port", f"must be 1 to 65535, not {port}")
    return Endpoint(
        rank=natural(message.dp_rank, f"{path}.dp_rank"),
        ip=message.ip,
        business_port=port,
        headless=message.headless,
        devices=tuple(Device(card.device_id, card.device_ip) for card in message.devices),
        incarnation=message.engine_incarnation,
    )


def capability_to_pb(capability: FtCapability) -> common_pb2.FtCapability:
    """Return the message of a pod's capability."""
    return common_pb2.FtCapability(
        dialect=capability.dialect,
        engine_ft=capability.engine_ft,
        scale_down_supported=capability.scale_down_supported,
        external_lb=capability.external_lb,
        auto_recovery=capability.auto_recovery,
        eplb=capability.eplb,
        num_redundant_experts=capability.num_redundant_experts,
        engine_recovery_timeout=duration_to_pb(capability.engine_recovery_timeout_sec),
    )


def capability_from_pb(message: common_pb2.FtCapability, path: str = "capability") -> FtCapability:
    """Read a pod's capability."""
    demand(bool(message.dialect), f"{path}.dialect", "must be present")
    timeout = duration_from_pb(message.engine_recovery_timeout, f"{path}.engine_recovery_timeout")
    demand(timeout >= 0, f"{path}.engine_recovery_timeout", f"must not be negative, not {timeout:g} s")
    return FtCapability(
        dialect=message.dialect,
        engine_ft=message.engine_ft,
        scale_down_supported=message.scale_down_supported,
        external_lb=message.external_lb,
        auto_recovery=message.auto_recovery,
        eplb=message.eplb,
        num_redundant_experts=natural(message.num_redundant_experts, f"{path}.num_redundant_experts"),
        engine_recovery_timeout_sec=timeout,
    )


def registration_to_pb(registration: Registration) -> fault_report_pb2.Registration:
    """Return the message of a registration; the pod's UID travels beside it as ``Hello.reporter_id``."""
    capability = None if registration.capability is None else capability_to_pb(registration.capability)
    return fault_report_pb2.Registration(
        job_name=registration.job_name,
        model_name=registration.model_name,
        engine_type=registration.engine_type,
        role=ROLE.to_pb(registration.role),
        node_name=registration.node_name,
        pod_name=registration.pod_name,
        pod_ip=registration.pod_ip,
        node_manager_address=registration.node_manager_address,
        dp_size=registration.dp_size,
        tp_size=registration.tp_size,
        endpoints=[endpoint_to_pb(endpoint) for endpoint in registration.endpoints],
        capability=capability,
        rest_port=registration.rest_port,
    )


def registration_from_pb(
    message: fault_report_pb2.Registration, pod_uid: str, path: str = "hello.registration"
) -> Registration:
    """Read what the pod ``pod_uid`` brings; every rank is below the DP size and has one endpoint."""
    for field in ("job_name", "pod_name", "pod_ip", "node_manager_address"):
        demand(bool(getattr(message, field)), f"{path}.{field}", "must be present")
    for field in ("dp_size", "tp_size"):
        demand(getattr(message, field) > 0, f"{path}.{field}", "must be positive")
    demand(0 <= message.rest_port < 65536, f"{path}.rest_port", "must be 0 to 65535")
    endpoints = tuple(
        endpoint_from_pb(endpoint, f"{path}.endpoints[{index}]") for index, endpoint in enumerate(message.endpoints)
    )
    ranks = [endpoint.rank for endpoint in endpoints]
    demand(bool(ranks), f"{path}.endpoints", "must name at least one endpoint")
    demand(len(set(ranks)) == len(ranks), f"{path}.endpoints", f"must name each rank once, not {ranks}")
    demand(max(ranks) < message.dp_size, f"{path}.endpoints", f"ranks {ranks} must be below dp_size")
    capability = None
    if message.HasField("capability"):
        capability = capability_from_pb(message.capability, f"{path}.capability")
    return Registration(
        pod_uid=pod_uid,
        job_name=message.job_name,
        model_name=message.model_name,
        engine_type=message.engine_type,
        role=ROLE.from_pb(message.role, f"{path}.role"),
        node_name=message.node_name,
        pod_name=message.pod_name,
        pod_ip=message.pod_ip,
        node_manager_address=message.node_manager_address,
        dp_size=message.dp_size,
        tp_size=message.tp_size,
        endpoints=endpoints,
        capability=capability,
        rest_port=message.rest_port,
    )
