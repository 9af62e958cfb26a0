"""Only what recovery.md section 3 calls durable is in a record."""

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from controller.core.phases import Phase
from controller.core.records import MAX_GENERATION, IdentityRecord, RuntimeRecord
from motor_ft.model.topology import Role
from tests.unit.controller.core.fleet import pod

RUNTIME = RuntimeRecord(Phase.NORMAL, 7, (0, 1, 2, 3), dead_committed=(2,))


def test_the_durable_fields_are_those_five_and_no_more() -> None:
    assert [field.name for field in fields(RuntimeRecord)] == [
        "phase",
        "generation",
        "original_dp_ranks",
        "dead_committed",
        "fallback_strategy",
    ]


def test_the_fallback_is_reconfiguration_unless_another_one_was_stored() -> None:
    assert RUNTIME.fallback_strategy == "instance_reconfiguration"


def test_disabled_cannot_be_stored() -> None:
    with pytest.raises(ValueError, match="never stored"):
        RUNTIME.at(Phase.DISABLED)


@pytest.mark.parametrize(
    "change",
    [
        {"generation": -1},
        {"generation": MAX_GENERATION + 1},
        {"original_dp_ranks": ()},
        {"original_dp_ranks": (0, 2)},
        {"original_dp_ranks": (1, 0)},
        {"dead_committed": (4,)},
        {"dead_committed": (0, 1, 2, 3)},
    ],
    ids=str,
)
def test_what_no_controller_writes_is_no_record(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        replace(RUNTIME, **change)


def test_another_phase_changes_nothing_else() -> None:
    moved = RUNTIME.at(Phase.DECIDING)
    assert moved.phase is Phase.DECIDING
    assert moved.at(Phase.NORMAL) == RUNTIME


def test_a_caller_cannot_edit_a_record_that_it_fetched() -> None:
    identity = IdentityRecord(7, "job", "model", "vllm", Role.UNION, 4, 1, (pod(1, [0]),))
    for record, name in ((RUNTIME, "phase"), (identity, "ready")):
        with pytest.raises(FrozenInstanceError):
            setattr(record, name, None)
