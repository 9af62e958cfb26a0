"""When a pod that does not work ends itself, so that the cluster starts it again (recovery.md section 8)."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

ROUND_SEC = 3.0
ABNORMAL_ROUNDS = 5


class FreezeSource(StrEnum):
    """Why the pod must not end itself now; each is lifted on its own."""

    GUARD = "guard"
    COLLECTION = "collection"
    RELAUNCH = "relaunch"


@dataclass(frozen=True, slots=True)
class Suicide:
    """Consecutive abnormal rounds; only ``enabled`` where something starts the pod again."""

    enabled: bool
    rounds: int = 0

    @property
    def due(self) -> bool:
        """The pod shall end itself."""
        return self.enabled and self.rounds >= ABNORMAL_ROUNDS

    def after(self, *, abnormal: bool, frozen: Collection[FreezeSource]) -> "Suicide":
        """State after one round; a frozen round starts the count anew."""
        return replace(self, rounds=self.rounds + 1 if abnormal and not frozen else 0)
