"""Why a recovery failed; shown as ``CODE: text`` in ``last_error`` (recovery.md section 5, step 2)."""

from dataclasses import dataclass
from enum import StrEnum


class FailureCode(StrEnum):
    """Stable codes of ``last_error``."""

    GATE_REFUSED = "GATE_REFUSED"
    DUPLICATE_REQUEST = "DUPLICATE_REQUEST"
    RECOVERY_WINDOW_EXPIRED = "RECOVERY_WINDOW_EXPIRED"
    TOPOLOGY_INVALID = "TOPOLOGY_INVALID"
    GUARD_FAILED = "GUARD_FAILED"
    APPLY_READY_TIMEOUT = "APPLY_READY_TIMEOUT"
    ENGINE_FAILED = "ENGINE_FAILED"
    WITHDRAW_UNCONFIRMED = "WITHDRAW_UNCONFIRMED"
    PERSIST_FAILED = "PERSIST_FAILED"
    APPLY_NOT_ACCEPTED = "APPLY_NOT_ACCEPTED"
    RECOVERY_TIMEOUT = "RECOVERY_TIMEOUT"
    COMMIT_FAILED = "COMMIT_FAILED"
    PUBLISH_PENDING = "PUBLISH_PENDING"
    FREED_FOR_DECODE = "FREED_FOR_DECODE"
    INTERRUPTED = "INTERRUPTED"
    RELAUNCH_FAILED = "RELAUNCH_FAILED"
    RECONFIGURATION_FAILED = "RECONFIGURATION_FAILED"
    RECONFIGURATION_REQUIRED = "RECONFIGURATION_REQUIRED"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure for people and programs."""

    code: FailureCode
    text: str

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


def defect(what: str, error: BaseException) -> Failure:
    """An unexpected exception of ours, for clients, who see no more of it than its kind."""
    return Failure(FailureCode.INTERRUPTED, f"{what} ended with an unexpected {type(error).__name__}, see the log")
