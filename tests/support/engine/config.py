"""What a fake engine group is: its shape, its dialect and its timings."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum


class Dialect(StrEnum):
    """The HTTP dialects of engine-contract.md section 1 that the fake speaks."""

    V0_33 = "vllm_0_33"
    V1 = "vllm_v1"
    SGLANG = "sglang"

    @property
    def prefix(self) -> str:
        """Path in front of `/status` and `/apply`."""
        return "/fault_tolerance" if self is Dialect.V0_33 else "/v1/fault_tolerance"

    @property
    def instructions(self) -> frozenset[str]:
        return frozenset({"retry"} if self is Dialect.V0_33 else {"retry", "scale_down"})

    @property
    def one_server(self) -> bool:
        """Rank 0 has the HTTP server of all ranks."""
        return self is Dialect.SGLANG


@dataclass(frozen=True, slots=True)
class Timings:
    """Delays in seconds; the defaults are those of a real group (engine-contract.md section 1.6)."""

    detection_delay: float = 30.0
    """From a peer's loss to the failing collective on a survivor."""
    diagnosing: float = 1.0
    """The mask query between `diagnosing` and `unhealthy`, dialect (b)."""
    push_gap: float = 0.01
    """Between two steps an engine makes back to back: aborts, then the push; dead, then `failed`."""
    check_in: float = 10.0
    round_time: float = 1.0
    """The worker command of one recovery round."""
    recovery_window: float = 120.0
    store_timeout: float = 30.0
    """T of the contract: the cpu (gloo) timeout."""
    store_host_grace: float = 1.0
    """How much longer than T the host of a store waits for its clients, dialect (a)."""
    watchdog: float = 5.0
    """From the engine process's end to the API server's."""
    stale_gap: float = 0.0
    """Between the 202 and the first patch of the cached entry, dialect (b)."""
    completion: float = 0.05

    def flags(self) -> list[str]:
        """These timings as flags of `tests.support.engine.group_server`."""
        return [f"--{f.name.replace('_', '-')}={getattr(self, f.name)}" for f in fields(self)]


FAST = Timings(
    detection_delay=0.05,
    diagnosing=0.02,
    push_gap=0.005,
    check_in=2.0,
    round_time=0.02,
    recovery_window=30.0,
    store_timeout=2.0,
    store_host_grace=0.1,
    watchdog=0.5,
    completion=0.005,
)
"""Timings for tests: same order of events, much faster; what only bounds a failure stays generous."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """One engine group. `bare_router` answers errors without the full server's envelope (section 1.2)."""

    dp_size: int
    dialect: Dialect = Dialect.V1
    tp_size: int = 1
    timings: Timings = field(default_factory=Timings)
    api_key: str | None = None
    fault_tolerance: bool = True
    bare_router: bool = False
    model: str = "fake-model"
