"""The static gate: may engines of this instance be told to do this at all? (RFC section 5, step 2)"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from motor_ft.model.engine import Instruction
from motor_ft.model.topology import FtCapability


class GateReason(StrEnum):
    """Every static reason. Fused MC2 and the number of experts left are none."""

    FEATURE_DISABLED = "FEATURE_DISABLED"
    ENGINE_FT_REQUIRED = "ENGINE_FT_REQUIRED"
    ENGINE_SCALE_DOWN_UNSUPPORTED = "ENGINE_SCALE_DOWN_UNSUPPORTED"
    EXTERNAL_LB_REQUIRED = "EXTERNAL_LB_REQUIRED"
    AUTO_RECOVERY_CONFLICT = "AUTO_RECOVERY_CONFLICT"
    EPLB_REQUIRED = "EPLB_REQUIRED"
    EXPERT_REDUNDANCY_REQUIRED = "EXPERT_REDUNDANCY_REQUIRED"
    NO_SURVIVOR = "NO_SURVIVOR"
    CAPABILITY_MISSING = "CAPABILITY_MISSING"
    CAPABILITY_MISMATCH = "CAPABILITY_MISMATCH"
    DIALECT_CLOSED = "DIALECT_CLOSED"


REMOVAL = frozenset(
    {GateReason.ENGINE_SCALE_DOWN_UNSUPPORTED, GateReason.EPLB_REQUIRED, GateReason.EXPERT_REDUNDANCY_REQUIRED}
)
"""Reasons against removing a rank; a retry, which keeps all of them, is possible in spite of these."""

_CLOSED = frozenset({"sglang"})
"""Dialects that are only read: whatever their capability says, nothing is ordered by itself (docs/adr/0005)."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """``reasons`` in catalog order; allowed without any."""

    reasons: tuple[GateReason, ...]

    @property
    def allowed(self) -> bool:
        """No reason against it."""
        return not self.reasons


def check_gate(
    *,
    scale_down_enabled: bool,
    capabilities: Iterable[FtCapability | None],
    survivors: int,
    instruction: Instruction = Instruction.SCALE_DOWN,
) -> GateResult:
    """Collect every reason; capabilities are those of all pods, None where a pod stated none."""
    stated = list(capabilities)
    found: set[GateReason] = set()
    if not scale_down_enabled:
        found.add(GateReason.FEATURE_DISABLED)
    if survivors < 1:
        found.add(GateReason.NO_SURVIVOR)
    if not stated or None in stated:
        found.add(GateReason.CAPABILITY_MISSING)
    known = {capability for capability in stated if capability is not None}
    if len(known) > 1:
        found.add(GateReason.CAPABILITY_MISMATCH)
    for capability in known:
        found |= _against(capability)
    if instruction is Instruction.RETRY:
        found -= REMOVAL
    return GateResult(tuple(reason for reason in GateReason if reason in found))


def _against(capability: FtCapability) -> set[GateReason]:
    checks = {
        GateReason.ENGINE_FT_REQUIRED: capability.engine_ft,
        GateReason.ENGINE_SCALE_DOWN_UNSUPPORTED: capability.scale_down_supported,
        GateReason.EXTERNAL_LB_REQUIRED: capability.external_lb,
        GateReason.AUTO_RECOVERY_CONFLICT: not capability.auto_recovery,
        GateReason.EPLB_REQUIRED: capability.eplb,
        GateReason.EXPERT_REDUNDANCY_REQUIRED: capability.num_redundant_experts > 0,
        GateReason.DIALECT_CLOSED: capability.dialect not in _CLOSED,
    }
    return {reason for reason, satisfied in checks.items() if not satisfied}
