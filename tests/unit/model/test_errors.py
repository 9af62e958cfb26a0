"""The catalog says for every reason how it shows on each surface (protocol.md section 4)."""

import grpc
import pytest

from motor_ft.model.errors import CATALOG, DOMAIN, FieldError, FtError, Reason


def test_the_catalog_is_complete_and_reasons_never_change_their_name() -> None:
    assert set(CATALOG) == set(Reason)
    assert all(reason.name == reason.value for reason in Reason)
    assert DOMAIN == "motor-ft"


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_grpc_code_that_exists_and_a_rest_status_of_an_error(reason: Reason) -> None:
    kind = CATALOG[reason]
    assert grpc.StatusCode[kind.grpc_code] is not grpc.StatusCode.OK
    assert 400 <= kind.rest_status < 600


@pytest.mark.parametrize(
    ("reason", "code", "rest"),
    [
        (Reason.INVALID_REQUEST, "INVALID_ARGUMENT", 400),
        (Reason.FEATURE_DISABLED, "UNIMPLEMENTED", 404),
        (Reason.UNKNOWN_INSTANCE, "NOT_FOUND", 404),
        (Reason.UNKNOWN_RANK, "NOT_FOUND", 502),
        (Reason.GUARD_HELD, "ABORTED", 502),
        (Reason.GUARD_REQUIRED, "FAILED_PRECONDITION", 502),
        (Reason.STALE_EPOCH, "ABORTED", 502),
        (Reason.REQUEST_ID_REUSED, "ALREADY_EXISTS", 409),
        (Reason.ENGINE_PROTOCOL, "FAILED_PRECONDITION", 502),
        (Reason.OUTCOME_UNKNOWN, "UNAVAILABLE", 502),
        (Reason.NOT_LEADER, "UNAVAILABLE", 503),
        (Reason.UNAUTHENTICATED, "UNAUTHENTICATED", 401),
        (Reason.PERMISSION_DENIED, "PERMISSION_DENIED", 403),
        (Reason.OVERLOADED, "RESOURCE_EXHAUSTED", 429),
        (Reason.FENCING_REQUIRED, "FAILED_PRECONDITION", 409),
    ],
)
def test_the_surfaces_of_the_protocol(reason: Reason, code: str, rest: int) -> None:
    assert CATALOG[reason] == (code, rest)


def test_an_error_carries_reason_text_and_metadata_as_text() -> None:
    error = FtError(Reason.STALE_EPOCH, "epoch 3 is behind 5", got=3, current=5)
    assert str(error) == "STALE_EPOCH: epoch 3 is behind 5"
    assert (error.reason, error.message) == (Reason.STALE_EPOCH, "epoch 3 is behind 5")
    assert error.metadata == {"got": "3", "current": "5"}


def test_bad_fields_are_named_with_their_paths() -> None:
    error = FieldError({"lease": "must be positive", "plan.removed": "is empty"})
    assert error.reason is Reason.INVALID_REQUEST
    assert error.message == "lease: must be positive; plan.removed: is empty"
    assert error.violations["lease"] == "must be positive"
