"""What clients see of an instance (RFC section 7)."""

from dataclasses import dataclass, field
from enum import StrEnum

from controller.core.gate import GateResult
from controller.core.phases import Phase
from motor_ft.model.engine import EngineStatus
from motor_ft.model.topology import Endpoint, Role


class InstanceState(StrEnum):
    """Life of an instance (baseline of recovery.md section 4)."""

    INITIAL = "INITIAL"
    ACTIVE = "ACTIVE"
    INACTIVE = "INACTIVE"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class PodStatus:
    """One pod; its endpoints carry the engine incarnations that were last reported."""

    pod_name: str
    node_name: str
    pod_ip: str
    node_manager_address: str
    endpoints: tuple[Endpoint, ...]
    connected: bool


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """The 13 fields of RFC section 7 and what a client of the Controller also wants to know.

    ``update_time`` is wall-clock seconds since the epoch, for display only. It makes no difference, nor does the
    ``revision``.
    """

    instance_id: int
    phase: Phase
    original_dp_ranks: tuple[int, ...]
    request_id: str
    dead_committed: tuple[int, ...]
    pending_removed_ranks: tuple[int, ...]
    fallback_strategy: str
    gate: GateResult | None
    engine_statuses: dict[int, EngineStatus]
    serving_published: bool
    last_error: str
    can_serve: bool
    generation: int
    job_name: str
    model_name: str
    role: Role
    dp_size: int
    state: InstanceState
    pods: tuple[PodStatus, ...]
    automation_stopped: bool = False
    automation_paused: bool = False
    last_decision: str = ""
    degraded: tuple[str, ...] = ()
    update_time: float = field(default=0.0, compare=False)
    revision: int = field(default=0, compare=False)

    @property
    def alive_dp_ranks(self) -> tuple[int, ...]:
        """``original_dp_ranks - dead_committed - pending_removed_ranks``."""
        gone = {*self.dead_committed, *self.pending_removed_ranks}
        return tuple(rank for rank in self.original_dp_ranks if rank not in gone)
