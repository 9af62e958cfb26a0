"""``last_error`` is ``CODE: text``, with codes that never change."""

from controller.core.errors import Failure, FailureCode, defect


def test_a_failure_reads_code_then_text() -> None:
    assert str(Failure(FailureCode.GUARD_FAILED, "10.0.0.1:9000: held")) == "GUARD_FAILED: 10.0.0.1:9000: held"


def test_the_codes_of_the_specification_are_there_under_their_own_names() -> None:
    named = {
        "RECOVERY_WINDOW_EXPIRED",
        "TOPOLOGY_INVALID",
        "GUARD_FAILED",
        "APPLY_READY_TIMEOUT",
        "ENGINE_FAILED",
        "WITHDRAW_UNCONFIRMED",
        "PERSIST_FAILED",
        "APPLY_NOT_ACCEPTED",
        "RECOVERY_TIMEOUT",
        "COMMIT_FAILED",
        "PUBLISH_PENDING",
    }
    assert named <= set(FailureCode.__members__)
    assert all(code.name == code.value for code in FailureCode)


def test_a_defect_shows_what_ended_and_nothing_of_the_exception_but_its_kind() -> None:
    failure = defect("the strategy", ValueError("a secret"))
    assert str(failure) == "INTERRUPTED: the strategy ended with an unexpected ValueError, see the log"
