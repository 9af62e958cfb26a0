"""Engine states and their transitions (engine-contract.md section 2.2): pure."""

from __future__ import annotations

from enum import Enum, StrEnum, auto

from tests.support.engine.config import Dialect


class Status(StrEnum):
    """What the engine itself believes; the cached entry may lag behind it."""

    HEALTHY = "healthy"
    DIAGNOSING = "diagnosing"
    UNHEALTHY = "unhealthy"
    DEAD = "dead"


class Process(Enum):
    """The processes of one rank: API server (frontend) and EngineCore."""

    RUNNING = auto()
    FROZEN = auto()
    """EngineCore stopped by SIGSTOP; the API server answers."""
    CORE_EXITED = auto()
    """EngineCore gone; the API server answers until its watchdog ends it."""
    GONE = auto()


class Event(Enum):
    STEP_RAISED = auto()
    MASK_KNOWN = auto()
    EXECUTOR_FAILED = auto()
    RECOVERED = auto()
    REMOVAL_FAILED = auto()
    REJOINED = auto()


_COMMON = {
    (Status.HEALTHY, Event.EXECUTOR_FAILED): Status.DEAD,
    (Status.UNHEALTHY, Event.RECOVERED): Status.HEALTHY,
}
_TRANSITIONS = {
    Dialect.V0_33: _COMMON | {(Status.HEALTHY, Event.STEP_RAISED): Status.UNHEALTHY},
    Dialect.SGLANG: _COMMON
    | {
        (Status.HEALTHY, Event.STEP_RAISED): Status.UNHEALTHY,
        (Status.UNHEALTHY, Event.EXECUTOR_FAILED): Status.DEAD,
        (Status.DEAD, Event.REJOINED): Status.HEALTHY,
    },
    Dialect.V1: _COMMON
    | {
        (Status.HEALTHY, Event.STEP_RAISED): Status.DIAGNOSING,
        (Status.DIAGNOSING, Event.MASK_KNOWN): Status.UNHEALTHY,
        (Status.DIAGNOSING, Event.EXECUTOR_FAILED): Status.DEAD,
        (Status.UNHEALTHY, Event.EXECUTOR_FAILED): Status.DEAD,
        (Status.UNHEALTHY, Event.REMOVAL_FAILED): Status.DEAD,
    },
}


def next_status(dialect: Dialect, status: Status, event: Event) -> Status | None:
    """The state after `event`, or None when the engine does not react to it in this state."""
    return _TRANSITIONS[dialect].get((status, event))
