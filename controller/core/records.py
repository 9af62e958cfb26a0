"""The two durable records of an instance (recovery.md section 3): nothing else of a transaction is stored."""

from dataclasses import dataclass, replace

from controller.core.phases import Phase
from motor_ft.model.hardware import FaultKey, FaultLevel
from motor_ft.model.topology import Registration, Role

RECONFIGURATION = "instance_reconfiguration"
MAX_GENERATION = 2**62
"""It only grows, and every message has room for it."""


@dataclass(frozen=True, slots=True)
class RuntimeRecord:
    """What survives a Controller restart of one instance's recovery."""

    phase: Phase
    generation: int
    original_dp_ranks: tuple[int, ...]
    dead_committed: tuple[int, ...] = ()
    fallback_strategy: str = RECONFIGURATION

    def __post_init__(self) -> None:
        if self.phase is Phase.DISABLED:
            raise ValueError("DISABLED is derived from the switches and never stored")
        if not 0 <= self.generation <= MAX_GENERATION:
            raise ValueError(f"generation must be 0 to {MAX_GENERATION}, not {self.generation}")
        ranks = self.original_dp_ranks
        if not ranks or ranks != tuple(range(len(ranks))) or not set(self.dead_committed) < set(ranks):
            text = f"ranks must be 0 to N-1 and those removed some of them, not {ranks}, {self.dead_committed}"
            raise ValueError(text)

    def at(self, phase: Phase) -> "RuntimeRecord":
        """The same record in another phase; the caller checks the move."""
        return replace(self, phase=phase)


@dataclass(frozen=True, slots=True)
class IdentityRecord:
    """Who the instance is: fixed at assembly; ``ready`` and the baselines come at READY.

    ``baseline`` are ranks that had faults by then, ``hardware_baseline`` hardware faults that were there;
    ``hardware_spent`` came later, and what they ask for at their level was done. ``paused`` says by whom automation is
    paused and why, empty when it is not: a failover must not surprise who works on the instance. ``isolated``: nobody
    may be routed to it; ``dissolved``: pods of it are stopped for the loss of others. No Controller publishes either.
    ``gone_at`` is when it was forgotten, in wall-clock seconds, 0 while it lives: what is kept then is who its engines
    were, so that none of them comes back.
    """

    instance_id: int
    job_name: str
    model_name: str
    engine_type: str
    role: Role
    dp_size: int
    tp_size: int
    pods: tuple[Registration, ...]
    ready: bool = False
    baseline: tuple[int, ...] = ()
    hardware_baseline: tuple[FaultKey, ...] = ()
    hardware_spent: tuple[tuple[FaultKey, FaultLevel], ...] = ()
    paused: str = ""
    isolated: bool = False
    dissolved: bool = False
    gone_at: float = 0.0
