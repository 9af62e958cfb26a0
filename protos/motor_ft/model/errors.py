"""The error catalog (protocol.md section 4): stable reasons, each with its gRPC code and its REST status."""

from enum import StrEnum
from typing import NamedTuple

DOMAIN = "motor-ft"


class Reason(StrEnum):
    """Why something was refused; texts may change, these may not."""

    INVALID_REQUEST = "INVALID_REQUEST"
    FEATURE_DISABLED = "FEATURE_DISABLED"
    UNKNOWN_INSTANCE = "UNKNOWN_INSTANCE"
    UNKNOWN_RANK = "UNKNOWN_RANK"
    NOT_READY = "NOT_READY"
    STRATEGY_RUNNING = "STRATEGY_RUNNING"
    GUARD_HELD = "GUARD_HELD"
    GUARD_REQUIRED = "GUARD_REQUIRED"
    GUARD_EXPIRED = "GUARD_EXPIRED"
    STALE_REQUEST_ID = "STALE_REQUEST_ID"
    STALE_EPOCH = "STALE_EPOCH"
    STALE_GENERATION = "STALE_GENERATION"
    STALE_INCARNATION = "STALE_INCARNATION"
    STALE_REVISION = "STALE_REVISION"
    FENCING_REQUIRED = "FENCING_REQUIRED"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    PLAN_MISMATCH = "PLAN_MISMATCH"
    TOPOLOGY_MISMATCH = "TOPOLOGY_MISMATCH"
    ENGINE_REFUSED = "ENGINE_REFUSED"
    ENGINE_IDENTITY_MISMATCH = "ENGINE_IDENTITY_MISMATCH"
    ENGINE_PROTOCOL = "ENGINE_PROTOCOL"
    ENGINE_UNREACHABLE = "ENGINE_UNREACHABLE"
    CONTROLLER_UNREACHABLE = "CONTROLLER_UNREACHABLE"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    PORT_UNAVAILABLE = "PORT_UNAVAILABLE"
    RELAUNCH_UNSUPPORTED = "RELAUNCH_UNSUPPORTED"
    NOT_LEADER = "NOT_LEADER"
    EPOCH_BEHIND_FLEET = "EPOCH_BEHIND_FLEET"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    OVERLOADED = "OVERLOADED"
    STORE_CONFLICT = "STORE_CONFLICT"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    INTERNAL = "INTERNAL"


class Kind(NamedTuple):
    """How a reason shows on each surface."""

    grpc_code: str
    rest_status: int


CATALOG: dict[Reason, Kind] = {
    Reason.INVALID_REQUEST: Kind("INVALID_ARGUMENT", 400),
    Reason.FEATURE_DISABLED: Kind("UNIMPLEMENTED", 404),
    Reason.UNKNOWN_INSTANCE: Kind("NOT_FOUND", 404),
    Reason.UNKNOWN_RANK: Kind("NOT_FOUND", 502),
    Reason.NOT_READY: Kind("FAILED_PRECONDITION", 409),
    Reason.STRATEGY_RUNNING: Kind("FAILED_PRECONDITION", 409),
    Reason.GUARD_HELD: Kind("ABORTED", 502),
    Reason.GUARD_REQUIRED: Kind("FAILED_PRECONDITION", 502),
    Reason.GUARD_EXPIRED: Kind("FAILED_PRECONDITION", 502),
    Reason.STALE_REQUEST_ID: Kind("FAILED_PRECONDITION", 502),
    Reason.STALE_EPOCH: Kind("ABORTED", 502),
    Reason.STALE_GENERATION: Kind("ABORTED", 502),
    Reason.STALE_INCARNATION: Kind("ABORTED", 502),
    Reason.STALE_REVISION: Kind("ABORTED", 502),
    Reason.FENCING_REQUIRED: Kind("FAILED_PRECONDITION", 409),
    Reason.REQUEST_ID_REUSED: Kind("ALREADY_EXISTS", 409),
    Reason.PLAN_MISMATCH: Kind("FAILED_PRECONDITION", 502),
    Reason.TOPOLOGY_MISMATCH: Kind("FAILED_PRECONDITION", 502),
    Reason.ENGINE_REFUSED: Kind("FAILED_PRECONDITION", 502),
    Reason.ENGINE_IDENTITY_MISMATCH: Kind("FAILED_PRECONDITION", 502),
    Reason.ENGINE_PROTOCOL: Kind("FAILED_PRECONDITION", 502),
    Reason.ENGINE_UNREACHABLE: Kind("UNAVAILABLE", 502),
    Reason.CONTROLLER_UNREACHABLE: Kind("UNAVAILABLE", 503),
    Reason.OUTCOME_UNKNOWN: Kind("UNAVAILABLE", 502),
    Reason.PORT_UNAVAILABLE: Kind("FAILED_PRECONDITION", 502),
    Reason.RELAUNCH_UNSUPPORTED: Kind("FAILED_PRECONDITION", 502),
    Reason.NOT_LEADER: Kind("UNAVAILABLE", 503),
    Reason.EPOCH_BEHIND_FLEET: Kind("FAILED_PRECONDITION", 503),
    Reason.UNAUTHENTICATED: Kind("UNAUTHENTICATED", 401),
    Reason.PERMISSION_DENIED: Kind("PERMISSION_DENIED", 403),
    Reason.OVERLOADED: Kind("RESOURCE_EXHAUSTED", 429),
    Reason.STORE_CONFLICT: Kind("ABORTED", 409),
    Reason.STORE_UNAVAILABLE: Kind("UNAVAILABLE", 503),
    Reason.SHUTTING_DOWN: Kind("UNAVAILABLE", 503),
    Reason.INTERNAL: Kind("INTERNAL", 500),
}


class FtError(Exception):
    """A refusal with a stable reason, a text that says what, where and what to do, and machine-readable metadata."""

    def __init__(self, reason: Reason, message: str, **metadata: str | int | float) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = {key: str(value) for key, value in metadata.items()}

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class FieldError(FtError):
    """A bad field of a request; ``violations`` maps the field's path to what is wrong with it."""

    def __init__(self, violations: dict[str, str]) -> None:
        text = "; ".join(f"{path}: {what}" for path, what in violations.items())
        super().__init__(Reason.INVALID_REQUEST, text)
        self.violations = violations
