"""What a decision looks at, and what it says: frozen facts of one instance (recovery.md section 4)."""

from dataclasses import dataclass, field
from enum import StrEnum

from controller.core.correlation import Correlation
from controller.core.phases import Phase
from motor_ft.model.topology import Role


class Action(StrEnum):
    """What to do with an instance."""

    NONE = "none"
    WAIT = "wait"
    TOKEN_REINFERENCE = "token_reinference"
    FAST_RECOVERY = "fast_recovery"
    DP_SCALE_DOWN = "dp_scale_down"
    ENGINE_RELAUNCH = "engine_relaunch"
    SCALE_P2D = "scale_p2d"
    PARTIAL_LOSS = "partial_loss"
    INSTANCE_RECONFIGURATION = "instance_reconfiguration"


PASSIVE = frozenset({Action.NONE, Action.WAIT})
"""Every other action is a strategy."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a decision may look at. ``unhealthy`` and ``dead`` are parts of ``active``; times are monotonic.

    ``in_service``: the instance is ACTIVE, all its active ranks have endpoints that are normal, or it was when its
    faults came (``liveness.Service``). ``enabled`` are the strategies that are switched on, ``tried`` those that have
    started since all active ranks were well. ``missing`` are pods that are silent, ``stoppable`` those that are there
    and were not told to stop for the loss of others; ``dissolved``: some were, and have stopped. ``paused`` says by
    whom and why, empty when automation is not; ``store_problem`` why the store cannot be written, empty when it can.
    """

    phase: Phase
    ready: bool
    strategy: str | None
    automation_stopped: bool
    superseded: bool
    scale_down_enabled: bool
    active: frozenset[int]
    unhealthy: frozenset[int]
    dead: frozenset[int]
    collecting_since: float | None
    collection_timeout_sec: float
    in_service: bool
    correlation_window_sec: float
    hardware: Correlation = field(default_factory=Correlation)
    enabled: frozenset[Action] = frozenset()
    tried: frozenset[Action] = frozenset()
    paused: str = ""
    role: Role = Role.UNION
    missing: frozenset[str] = frozenset()
    stoppable: frozenset[str] = frozenset()
    dissolved: bool = False
    store_problem: str = ""

    @property
    def complete(self) -> bool:
        """Every active rank is either U or D."""
        return self.unhealthy | self.dead == self.active

    @property
    def deadline(self) -> float | None:
        """When the collection is over: at exactly this time it is."""
        return None if self.collecting_since is None else self.collecting_since + self.collection_timeout_sec


@dataclass(frozen=True, slots=True)
class Decision:
    """An action, why, and when to look again (monotonic; None when only new evidence can change it).

    ``stop``: the strategy that runs has to end early; the action, if there is one, comes after it. ``isolate``: the
    instance is not to be served while that is so.
    """

    action: Action
    reason: str
    row: str
    look_again: float | None = None
    stop: bool = False
    isolate: bool = False
