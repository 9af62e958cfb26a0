"""What a transaction asks of the world, and what the world answers.

Every effect but Watch and Recycle has exactly one answer.
"""

from dataclasses import dataclass

from controller.core.phases import Phase
from controller.core.ports import ApplyOrder, GuardGrant
from motor_ft.model.command import ScaleDownPlan
from motor_ft.model.engine import EngineObservation, EvidenceSource, RankOutcome, RankProbe


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the runtime record in ``phase``; with ``dead_committed`` also the ranks that are gone → Persisted."""

    phase: Phase
    dead_committed: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """Take or renew a lease → Guarded."""

    address: str
    lease_sec: float
    plan: ScaleDownPlan | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """Read engines anew → Observed."""

    address: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Watch:
    """Feed Pushed events of these ranks until the transaction ends; no answer of its own."""

    address: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take the instance out of the serving view → Withdrawn."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Tell engines, once → Applied."""

    address: str
    order: ApplyOrder


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask engines for one token each, ``timeout_sec`` for all of it → Probed."""

    address: str
    ranks: tuple[int, ...]
    timeout_sec: float


@dataclass(frozen=True, slots=True)
class Finalize:
    """End the transaction at one NodeManager → Finalized."""

    address: str
    commit: bool
    retired: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Recycle:
    """Stop a pod that has no active rank left, once; nobody waits for it and nothing depends on it."""

    address: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish the projection → Published."""


Effect = Persist | Guard | Query | Watch | Withdraw | Apply | Probe | Finalize | Recycle | Publish


@dataclass(frozen=True, slots=True)
class Persisted:
    """Answer to Persist; with ``error`` it is not stored (unknown outcomes have been read back)."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class Guarded:
    """Answer to Guard; ``sent_at`` is when the request left (the lease counts from there)."""

    address: str
    sent_at: float
    grant: GuardGrant | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """Answer to Query."""

    address: str
    observations: tuple[EngineObservation, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Pushed:
    """A reading that came over a watch."""

    observation: EngineObservation


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Answer to Withdraw."""

    confirmed: bool


@dataclass(frozen=True, slots=True)
class Applied:
    """Answer to Apply; with ``error`` what became of it is not known."""

    address: str
    outcomes: tuple[RankOutcome, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Probed:
    """Answer to Probe."""

    address: str
    probes: tuple[RankProbe, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Finalized:
    """Answer to Finalize; ``refused`` means that asking again cannot help."""

    address: str
    error: str = ""
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """Answer to Publish."""

    confirmed: bool


@dataclass(frozen=True, slots=True)
class Died:
    """New evidence that an active rank is D."""

    rank: int
    source: EvidenceSource


@dataclass(frozen=True, slots=True)
class Cancel:
    """Every D was withdrawn, or another strategy goes first; honoured until the SCALING_DOWN write."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """The time that the state asked for has come."""


Answer = Persisted | Guarded | Observed | Withdrawn | Applied | Probed | Finalized | Published
Event = Answer | Pushed | Died | Cancel | Tick
