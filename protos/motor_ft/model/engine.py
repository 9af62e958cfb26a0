"""What an engine says of itself, and what it can be told (engine-contract section 1)."""

from dataclasses import dataclass
from enum import StrEnum


class EngineStatus(StrEnum):
    """Status of one engine; the first four are wire values of the engines."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DEAD = "dead"
    DIAGNOSING = "diagnosing"
    UNKNOWN = "unknown"


class FtState(StrEnum):
    """State of the last command inside the engine; ``NONE`` is an absent field."""

    NONE = ""
    RECOVERING = "recovering"
    FAILED = "failed"


class Problem(StrEnum):
    """Why an engine could not be read; only ``UNREACHABLE`` may become evidence (recovery.md section 2)."""

    NONE = ""
    UNREACHABLE = "unreachable"
    HTTP_STATUS = "http_status"
    PROTOCOL = "protocol"
    IDENTITY = "identity"
    LOCAL = "local"


class Instruction(StrEnum):
    """Wire values of ``instruction``."""

    SCALE_DOWN = "scale_down"
    RETRY = "retry"


class ApplyOutcome(StrEnum):
    """What became of one instruction to one rank; ``UNKNOWN`` is never sent again."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    NOT_SENT = "not_sent"


class ProbeOutcome(StrEnum):
    """What one completion showed."""

    SERVED = "served"
    FAILED = "failed"
    NOT_SERVED_HERE = "not_served_here"


@dataclass(frozen=True, slots=True)
class EngineObservation:
    """One reading of one engine.

    ``status`` is ``UNKNOWN`` exactly when ``problem`` is set. ``observation`` is a counter of the incarnation taken
    when the reading started: only a larger one is later.
    """

    rank: int
    status: EngineStatus
    incarnation: str = ""
    observation: int = 0
    ft_state: FtState = FtState.NONE
    fault_info: str = ""
    last_ft_request_id: str = ""
    ft_error: str = ""
    mask: tuple[int, ...] = ()
    problem: Problem = Problem.NONE
    detail: str = ""

    @property
    def command_failed(self) -> bool:
        """The last command failed. Dialect (a) of engine-contract section 1.4 has no ``ft_state``, only the error."""
        return self.ft_state is FtState.FAILED or bool(self.ft_error)

    def content(self) -> tuple[object, ...]:
        """Everything that makes a change worth a report (recovery.md section 8)."""
        return (
            self.status,
            self.incarnation,
            self.ft_state,
            self.fault_info,
            self.last_ft_request_id,
            self.ft_error,
            self.mask,
            self.problem,
        )


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """Outcome of one instruction for one rank; ``observation`` is the counter at the engine's 202."""

    rank: int
    outcome: ApplyOutcome
    detail: str = ""
    observation: int = 0
    engine_request_id: str = ""


@dataclass(frozen=True, slots=True)
class PodEngine:
    """One engine as its pod knows it: ``DEAD`` when a process of it has ended, ``UNKNOWN`` when it was not read yet."""

    rank: int
    incarnation: str
    status: EngineStatus
    headless: bool = False


@dataclass(frozen=True, slots=True)
class RankProbe:
    """What one completion of one rank showed."""

    rank: int
    outcome: ProbeOutcome
    detail: str = ""


class EvidenceSource(StrEnum):
    """Where the evidence that a rank is gone comes from, strongest first."""

    PROCESS_EXIT = "process_exit"
    ENGINE_REPORTED = "engine_reported"
    STATUS_UNREACHABLE = "status_unreachable"

    @property
    def strength(self) -> int:
        """Larger is stronger."""
        return _STRENGTH[self]


_STRENGTH = {
    EvidenceSource.PROCESS_EXIT: 3,
    EvidenceSource.ENGINE_REPORTED: 2,
    EvidenceSource.STATUS_UNREACHABLE: 1,
}
