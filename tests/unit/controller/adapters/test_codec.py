"""The stored form of records."""

import json
from dataclasses import replace
from typing import Any

import pytest

from controller.core.assembly import identity
from controller.core.phases import Phase
from controller.core.ports import Stored, Unreadable
from controller.core.records import IdentityRecord, RuntimeRecord
from controller.store.codec import Kind, Row, UnreadableError, decode, encode, gather
from motor_ft.model.topology import Role
from tests.unit.controller.core.fleet import pod

RUNTIME = RuntimeRecord(Phase.SCALED_DOWN_RUNNING, 3, (0, 1, 2), dead_committed=(1,))


def test_only_the_durable_fields_of_a_runtime_are_stored() -> None:
    """Nothing else of a transaction survives a restart (recovery.md section 3)."""
    assert json.loads(encode(RUNTIME)) == {
        "version": 1,
        "record": {
            "phase": "SCALED_DOWN_RUNNING",
            "generation": 3,
            "original_dp_ranks": [0, 1, 2],
            "dead_committed": [1],
            "fallback_strategy": "instance_reconfiguration",
        },
    }


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"version":1}',
        b'{"version":"1","record":{}}',
        b'{"version":1,"record":{"phase":"NORMAL"}}',
        b'{"version":1,"record":{"phase":"ASLEEP","generation":1,"original_dp_ranks":[0]}}',
        b'{"version":1,"record":{"phase":"DISABLED","generation":1,"original_dp_ranks":[0]}}',
        b'{"version":1,"record":{"phase":"NORMAL","generation":true,"original_dp_ranks":[0]}}',
        b'{"version":1,"record":{"phase":"NORMAL","generation":-1,"original_dp_ranks":[0]}}',
        b'{"version":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"version":1,"record":{"phase":"NORMAL","generation":1,"original_dp_ranks":["\xff"]}}',
    ],
)
def test_a_damaged_body_is_unreadable_never_guessed(body: bytes) -> None:
    with pytest.raises(UnreadableError):
        decode(body, RuntimeRecord)


def test_an_identity_of_an_older_controller_has_no_hardware_baseline_and_is_neither_paused_nor_isolated() -> None:
    identity = IdentityRecord(7, "job", "model", "vllm", Role.UNION, 1, 1, (), ready=True, baseline=(0,))
    stored = json.loads(encode(identity))
    for newer in ("hardware_baseline", "paused", "isolated", "dissolved"):
        del stored["record"][newer]
    assert decode(json.dumps(stored).encode(), IdentityRecord) == identity


@pytest.mark.parametrize("newer", [{"isolated": True}, {"dissolved": True}, {"gone_at": 1.0}])
def test_an_older_controller_cannot_read_what_it_would_publish_and_must_not(newer: dict[str, Any]) -> None:
    record = IdentityRecord(7, "job", "model", "vllm", Role.UNION, 1, 1, (), ready=True)
    withheld = replace(record, **newer)
    assert [json.loads(encode(each))["version"] for each in (RUNTIME, record, withheld)] == [1, 1, 2]
    assert decode(encode(withheld), IdentityRecord) == withheld


def test_an_identity_of_another_instance_is_reported_and_the_others_load() -> None:
    """What no Controller has written is not acted on, and keeps none from starting."""
    whole = identity(7, [pod(1, [0, 1, 2, 3])])
    loaded = gather(Row(Kind.IDENTITY, number, 1, encode(whole)) for number in (7, 8))
    assert loaded.identities == {7: Stored(whole, 1)}
    assert loaded.unreadable == {8: Unreadable("identity record it: is not that of instance 8 with all its ranks", 1)}
