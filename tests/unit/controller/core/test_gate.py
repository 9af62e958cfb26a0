"""The static gate names every reason against a scale-down, and nothing else (RFC section 5, step 2)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.gate import REMOVAL, GateReason, GateResult, check_gate
from motor_ft.model.engine import Instruction
from motor_ft.model.topology import FtCapability
from tests.unit.controller.core.fleet import CAPABILITY


def gate(
    *capabilities: FtCapability | None,
    enabled: bool = True,
    survivors: int = 1,
    instruction: Instruction = Instruction.SCALE_DOWN,
) -> GateResult:
    return check_gate(
        scale_down_enabled=enabled, capabilities=capabilities, survivors=survivors, instruction=instruction
    )


def test_one_survivor_and_one_redundant_expert_are_enough() -> None:
    """Redundant experts are not a budget of removable ranks; fused MC2 is not even asked about."""
    allowed = gate(replace(CAPABILITY, num_redundant_experts=1))
    assert allowed == GateResult(())
    assert allowed.allowed


@pytest.mark.parametrize(
    ("capability", "reason"),
    [
        (replace(CAPABILITY, engine_ft=False), GateReason.ENGINE_FT_REQUIRED),
        (replace(CAPABILITY, scale_down_supported=False), GateReason.ENGINE_SCALE_DOWN_UNSUPPORTED),
        (replace(CAPABILITY, external_lb=False), GateReason.EXTERNAL_LB_REQUIRED),
        (replace(CAPABILITY, auto_recovery=True), GateReason.AUTO_RECOVERY_CONFLICT),
        (replace(CAPABILITY, eplb=False), GateReason.EPLB_REQUIRED),
        (replace(CAPABILITY, num_redundant_experts=0), GateReason.EXPERT_REDUNDANCY_REQUIRED),
        (replace(CAPABILITY, dialect="sglang"), GateReason.DIALECT_CLOSED),
        (None, GateReason.CAPABILITY_MISSING),
    ],
)
def test_each_reason_of_a_capability_stands_alone(capability: FtCapability | None, reason: GateReason) -> None:
    refused = gate(capability, capability)
    assert refused.reasons == (reason,)
    assert not refused.allowed


def test_each_reason_of_the_instance_stands_alone() -> None:
    assert gate(CAPABILITY, enabled=False).reasons == (GateReason.FEATURE_DISABLED,)
    assert gate(CAPABILITY, survivors=0).reasons == (GateReason.NO_SURVIVOR,)
    assert gate().reasons == (GateReason.CAPABILITY_MISSING,)


def test_pods_that_disagree_are_a_mismatch_even_when_each_alone_would_pass() -> None:
    other = replace(CAPABILITY, engine_recovery_timeout_sec=60.0)
    assert gate(CAPABILITY, other).reasons == (GateReason.CAPABILITY_MISMATCH,)
    assert gate(CAPABILITY, CAPABILITY).allowed


def test_all_reasons_are_collected_in_the_order_of_the_catalog() -> None:
    worst = replace(
        CAPABILITY,
        dialect="sglang",
        engine_ft=False,
        scale_down_supported=False,
        external_lb=False,
        auto_recovery=True,
        eplb=False,
        num_redundant_experts=0,
    )
    assert gate(worst, CAPABILITY, None, enabled=False, survivors=0).reasons == tuple(GateReason)


def test_a_retry_needs_nothing_that_only_a_removal_needs() -> None:
    released = replace(CAPABILITY, scale_down_supported=False, eplb=False, num_redundant_experts=0)
    assert gate(released, instruction=Instruction.RETRY).allowed
    worst = replace(released, dialect="sglang", engine_ft=False, external_lb=False, auto_recovery=True)
    assert gate(worst, CAPABILITY, None, enabled=False, survivors=0, instruction=Instruction.RETRY).reasons == tuple(
        reason for reason in GateReason if reason not in REMOVAL
    )


CAPABILITIES = st.builds(
    FtCapability,
    dialect=st.sampled_from(["vllm_v1", "sglang"]),
    engine_ft=st.booleans(),
    scale_down_supported=st.booleans(),
    external_lb=st.booleans(),
    auto_recovery=st.booleans(),
    eplb=st.booleans(),
    num_redundant_experts=st.integers(0, 1),
)


@given(st.lists(st.none() | CAPABILITIES, max_size=4), st.none() | CAPABILITIES, st.booleans(), st.integers(0, 2))
def test_another_pod_never_removes_a_reason(
    pods: list[FtCapability | None], one_more: FtCapability | None, enabled: bool, survivors: int
) -> None:
    """Fail closed: what is wrong with one pod stays wrong whatever the others state."""
    before = gate(*pods, enabled=enabled, survivors=survivors)
    after = gate(*pods, one_more, enabled=enabled, survivors=survivors)
    assert not pods or set(before.reasons) <= set(after.reasons)
    assert (gate(*reversed(pods), enabled=enabled, survivors=survivors)) == before
