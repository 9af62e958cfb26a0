"""What reporters say, free of transport (protocol.md section 2)."""

from dataclasses import dataclass

from motor_ft.model.engine import EngineObservation, EvidenceSource
from motor_ft.model.hardware import FaultKey, HardwareFault, SourceState
from motor_ft.model.topology import Endpoint, EndpointStatus, Registration


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a stream. ``incarnation_number`` grows with every start of the reporter."""

    reporter_id: str
    incarnation: str
    incarnation_number: int
    highest_epoch: int | None
    previous_instance_id: int | None
    registration: Registration


@dataclass(frozen=True, slots=True)
class AdapterHello:
    """First message of a stream of hardware faults; belongs to no instance."""

    reporter_id: str
    incarnation: str
    incarnation_number: int
    highest_epoch: int | None


@dataclass(frozen=True, slots=True)
class EndpointState:
    """State of one endpoint in a heartbeat or snapshot."""

    rank: int
    status: EndpointStatus
    headless: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The reporter lives."""

    endpoints: tuple[EndpointState, ...]


@dataclass(frozen=True, slots=True)
class EngineFault:
    """An engine is not healthy; without ``source`` it is shown, never judged. ``age_sec`` on the reporter's clock."""

    observation: EngineObservation
    source: EvidenceSource | None
    age_sec: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineHealthy:
    """An engine is healthy again."""

    observation: EngineObservation


@dataclass(frozen=True, slots=True)
class ProcessDeath:
    """A process of an engine ended."""

    rank: int
    incarnation: str
    pid: int
    detail: str
    age_sec: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Complete current state of a NodeManager; replaces all that it said before."""

    endpoints: tuple[EndpointState, ...]
    faults: tuple[EngineFault, ...]
    deaths: tuple[ProcessDeath, ...]
    healthy: tuple[EngineHealthy, ...]
    retired: tuple[int, ...]
    ready: bool
    registered: tuple[Endpoint, ...]


Report = Heartbeat | EngineFault | EngineHealthy | ProcessDeath | Snapshot


@dataclass(frozen=True, slots=True)
class HardwareCleared:
    """A hardware fault has ended."""

    key: FaultKey


@dataclass(frozen=True, slots=True)
class HardwareSnapshot:
    """All that an adapter knows; replaces all that it said before. What its ``sources`` with a problem do not report
    is not known to be healthy."""

    faults: tuple[HardwareFault, ...]
    sources: tuple[SourceState, ...]


HardwareReport = Heartbeat | HardwareFault | HardwareCleared | HardwareSnapshot
"""What an adapter of hardware faults says; its heartbeats name no endpoints."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer to Hello; durations in seconds."""

    instance_id: int
    controller_epoch: int
    generation: int
    heartbeat_interval_sec: float
    heartbeat_ttl_sec: float
    enable_dp_scale_down_proxy: bool
    poll_interval_sec: float
    status_unreachable_threshold: int
    engine_request_timeout_sec: float


@dataclass(frozen=True, slots=True)
class Directive:
    """Something that a reporter shall do; ``freeze_suicide_sec`` None leaves it as it is, 0 thaws."""

    controller_epoch: int
    fast_poll: bool | None = None
    send_snapshot: bool = False
    freeze_suicide_sec: float | None = None


@dataclass(frozen=True, slots=True)
class SoftwareFault:
    """One report over the unary RPC behind the REST route of RFC section 4.4."""

    instance_id: int | None
    pod_ip: str
    node_manager_port: int
    rank: int
    observation: EngineObservation
