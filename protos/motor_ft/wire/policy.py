"""What applies to each method: the one declared table (protocol.md section 3).

A method that is not in it is not served.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto


class Lease(Enum):
    """Which lease a command needs."""

    NONE = auto()
    LIVE = auto()
    """The live guard of the same id, epoch, generation and plan."""
    OWNER = auto()
    """The id that owns the guard, or owned it last when nobody else took over."""


@dataclass(frozen=True, slots=True)
class MethodPolicy:
    """What a call passes before its servicer sees it."""

    command: bool = False
    """The request has a ``header``: validated, then fenced. A unary command outlives its caller."""
    dedupe: bool = False
    """The same request id gets the first answer again."""
    lease: Lease = Lease.NONE
    authenticated: bool = False
    """Only for callers that the server's authorizer knows."""
    leader: bool = False
    """Only where this Controller leads; a servicer that refuses in words of its own does not have it."""


PolicyTable = Mapping[str, MethodPolicy]

_OPEN = MethodPolicy()
_FENCED = MethodPolicy(command=True)
_OWN_NODE_MANAGER = MethodPolicy(authenticated=True)
_LEADER = MethodPolicy(leader=True)
_ORDER = MethodPolicy(command=True, dedupe=True, leader=True)
"""An operator's: by request id, whichever of these methods it was for."""

POLICIES: PolicyTable = {
    "/motor_ft.v1.NodeManagerService/Guard": _FENCED,
    "/motor_ft.v1.NodeManagerService/Status": _FENCED,
    "/motor_ft.v1.NodeManagerService/Apply": MethodPolicy(command=True, dedupe=True, lease=Lease.LIVE),
    "/motor_ft.v1.NodeManagerService/Finalize": MethodPolicy(command=True, dedupe=True, lease=Lease.OWNER),
    "/motor_ft.v1.NodeManagerService/WatchStatus": _FENCED,
    "/motor_ft.v1.NodeManagerService/Probe": _FENCED,
    # Idempotent by (instance, generation), not by request id: the servicer's own rule.
    "/motor_ft.v1.NodeLifecycleService/Stop": _FENCED,
    "/motor_ft.v1.NodeLifecycleService/RestartEngines": _FENCED,
    "/motor_ft.v1.FaultReportService/FaultReport": _OPEN,
    "/motor_ft.v1.FaultReportService/ReportSoftwareFault": _LEADER,
    "/motor_ft.v1.ControllerService/GetInstance": _LEADER,
    "/motor_ft.v1.ControllerService/ListInstances": _LEADER,
    "/motor_ft.v1.ControllerService/WatchInstances": _LEADER,
    "/motor_ft.v1.ControllerService/Explain": _LEADER,
    "/motor_ft.v1.ControllerService/ListEvents": _LEADER,
    "/motor_ft.v1.ControllerService/PauseAutomation": _ORDER,
    "/motor_ft.v1.ControllerService/ResumeAutomation": _ORDER,
    "/motor_ft.v1.ControllerService/Reconfigure": _ORDER,
    "/motor_ft.v1.EngineService/GetEngineStatus": _OWN_NODE_MANAGER,
    "/motor_ft.v1.EngineService/WatchEngine": _OWN_NODE_MANAGER,
    "/motor_ft.v1.EngineService/ApplyInstruction": MethodPolicy(command=True, dedupe=True, authenticated=True),
    "/motor_ft.v1.EngineService/ProbeCompletion": _OWN_NODE_MANAGER,
    # Idempotent by (epoch, revision).
    "/motor_ft.v1.CoordinatorService/Refresh": _OPEN,
    "/grpc.health.v1.Health/Check": _OPEN,
    "/grpc.health.v1.Health/List": _OPEN,
    "/grpc.health.v1.Health/Watch": _OPEN,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _OPEN,
}
