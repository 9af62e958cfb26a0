"""Who has to show a completion, and what it shows (recovery.md sections 5 and 9)."""

import pytest

from controller.core.probe import CompletionProbe
from motor_ft.model.engine import ProbeOutcome, RankProbe
from motor_ft.model.topology import Role

AUTO, ON, OFF = CompletionProbe
SERVED, FAILED, NOT_SERVED_HERE = ProbeOutcome


@pytest.mark.parametrize("role", Role)
def test_auto_means_union_and_nobody_else(role: Role) -> None:
    assert AUTO.of(role) is (AUTO if role is Role.UNION else OFF)
    assert (ON.of(role), OFF.of(role)) == (ON, OFF)


@pytest.mark.parametrize(
    ("mode", "outcome", "satisfied"),
    [
        (AUTO, SERVED, True),
        (AUTO, FAILED, False),
        (AUTO, NOT_SERVED_HERE, True),
        (ON, SERVED, True),
        (ON, FAILED, False),
        (ON, NOT_SERVED_HERE, False),
    ],
)
def test_auto_lets_pass_who_serves_no_completions_and_on_does_not(
    mode: CompletionProbe, outcome: ProbeOutcome, satisfied: bool
) -> None:
    assert mode.satisfied(RankProbe(0, outcome)) is satisfied
