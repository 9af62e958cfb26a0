"""Identity of a command and the plan that all survivors must agree on (protocol.md section 3)."""

import hashlib
import json
from dataclasses import dataclass

MAX_LEASE_SEC = 3600.0
MAX_REQUEST_ID_LENGTH = 128
MAX_OPERATOR_LENGTH, MAX_REASON_LENGTH = 128, 1000


@dataclass(frozen=True, slots=True)
class Command:
    """Who commands what; ``epoch`` and ``generation`` are None in an unfenced command (the RFC's own REST bodies)."""

    instance_id: int
    request_id: str
    epoch: int | None
    generation: int | None


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """What a person orders for one instance, and why; ``expected_generation`` None means any."""

    instance_id: int
    request_id: str
    operator: str
    reason: str
    expected_generation: int | None = None


@dataclass(frozen=True, slots=True)
class ScaleDownPlan:
    """The frozen plan: cumulative removed ranks, and survivors with the engine incarnation that is meant.

    Under a plan that removes nobody engines may only be told to ``retry``.
    """

    removed: tuple[int, ...]
    survivors: tuple[tuple[int, str], ...]
    plan_hash: str

    @property
    def lowest_survivor(self) -> int:
        """The rank whose node holds the store from now on."""
        return self.survivors[0][0]


def freeze_plan(instance_id: int, generation: int, removed: frozenset[int], survivors: dict[int, str]) -> ScaleDownPlan:
    """Build the one plan of a transaction.

    Raises ValueError without a survivor or when a rank is both removed and a survivor.
    """
    if not survivors:
        raise ValueError("a plan needs a survivor")
    if both := removed & survivors.keys():
        raise ValueError(f"ranks {sorted(both)} are both removed and survivors")
    gone = tuple(sorted(removed))
    stay = tuple(sorted(survivors.items()))
    return ScaleDownPlan(gone, stay, hash_plan(instance_id, generation, gone, stay))


def hash_plan(
    instance_id: int, generation: int, removed: tuple[int, ...], survivors: tuple[tuple[int, str], ...]
) -> str:
    """SHA-256 (hex) that every hop can compute again from what it was sent."""
    text = json.dumps([instance_id, generation, removed, survivors], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def valid_request_id(text: str) -> bool:
    """1 to 128 printable ASCII characters."""
    return 0 < len(text) <= MAX_REQUEST_ID_LENGTH and text.isascii() and text.isprintable()
