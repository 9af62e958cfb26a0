"""What engines and hardware may have."""

ENGINE_TROUBLES = (
    "detection_delay",
    "mask_query_fails",
    "stale_gap",
    "slow_check_in",
    "vote_failure",
    "insufficient_redundancy",
    "drop_after_202",
    "drop_before_reply",
    "apply_error",
    "wrong_id",
    "unknown_status",
    "schema_version",
    "non_json",
    "unauthorized",
    "completions_fail",
    "no_redundant_experts",
)

HARDWARE_FAULTS = (
    "L2 {}",
    "L2 {} 0x00F1FEF5",
    "L3 {}",
    "L4 {}",
    "L4 {}",
    "L5 {}",
    "L5 {}",
    "L6 {}",
    "L6 {} 81078603",
    "L6 {} 80E01801 PreSeparateNPU",
)
"""Level, which card is named, code and raw level where they are not the usual ones."""

HARMLESS = ("L2 card 0x00F1FEF5", "L2 card 0x08520003", "L3 node", "L5 spare", "L6 card 81078603")
"""It clears by itself, it is nobody's, or it may be noise."""
