"""What is sent, and what each answer to it means (engine-contract 1.1 to 1.3)."""

import json
from dataclasses import replace

import pytest

from gateway.engines.dialect import Dialect, Order, Reply, Verdict
from gateway.engines.sglang import Sglang
from gateway.engines.vllm_0_33 import Vllm033
from gateway.engines.vllm_v1 import VllmV1
from motor_ft.model.engine import ApplyOutcome, Instruction

A, B, C = Vllm033(), VllmV1(), Sglang()
SCALE_DOWN = Order("rec-17-a1", Instruction.SCALE_DOWN, (1, 3), "10.0.0.5", 29500)
RETRY = Order("rec-17-a1", Instruction.RETRY)


def accepted(request_id: object, message: object = "Request accepted.") -> Reply:
    return Reply(202, json.dumps({"message": message, "request_id": request_id}).encode())


def test_dialect_b_sends_our_id_the_cumulative_set_and_always_the_store_address() -> None:
    assert json.loads(B.encode(SCALE_DOWN)) == {
        "instruction": "scale_down",
        "request_id": "rec-17-a1",
        "params": {"removed_dp_ranks": [1, 3], "dp_master_ip": "10.0.0.5", "dp_store_port": 29500},
    }


def test_dialect_c_sends_our_id_what_is_new_of_the_set_and_no_store_address() -> None:
    expected = {"instruction": "scale_down", "request_id": "rec-17-a1", "params": {"removed_dp_ranks": [1, 3]}}
    assert json.loads(C.encode(SCALE_DOWN)) == expected
    assert json.loads(C.encode(replace(SCALE_DOWN, retired=(1,))))["params"] == {"removed_dp_ranks": [3]}
    assert B.encode(replace(SCALE_DOWN, retired=(1,))) == B.encode(SCALE_DOWN), "vLLM gets all"


def test_a_retry_has_no_params() -> None:
    assert json.loads(B.encode(RETRY)) == {"instruction": "retry", "request_id": "rec-17-a1", "params": {}}
    assert C.encode(RETRY) == B.encode(RETRY)
    assert json.loads(A.encode(RETRY)) == {"instruction": "retry", "params": {}}


def test_dialect_a_never_turns_a_scale_down_into_a_retry() -> None:
    """The hub refuses it before; the bytes would be refused by the engine all the same."""
    assert json.loads(A.encode(SCALE_DOWN))["instruction"] == "scale_down"


@pytest.mark.parametrize("dialect", [B, C])
def test_a_202_that_echoes_our_id_is_acceptance(dialect: Dialect) -> None:
    assert dialect.read_apply(SCALE_DOWN, accepted("rec-17-a1")) == Verdict(ApplyOutcome.ACCEPTED, "", "rec-17-a1")


def test_dialect_a_returns_the_engines_own_id() -> None:
    assert A.read_apply(RETRY, accepted("6c0f")) == Verdict(ApplyOutcome.ACCEPTED, "", "6c0f")


def test_a_long_id_is_kept_whole_to_be_compared_with_what_a_later_reading_shows() -> None:
    long = Order("r" * 128, Instruction.RETRY)
    assert B.read_apply(long, accepted(long.request_id)).engine_request_id == long.request_id


@pytest.mark.parametrize("dialect", [B, C])
def test_a_202_for_another_id_is_unknown_and_names_both(dialect: Dialect) -> None:
    verdict = dialect.read_apply(SCALE_DOWN, accepted("rec-16"))
    assert verdict.outcome is ApplyOutcome.UNKNOWN
    assert "rec-16" in verdict.detail
    assert "rec-17-a1" in verdict.detail
    assert verdict.engine_request_id == "rec-16"


@pytest.mark.parametrize(
    "answer",
    [
        accepted(None),
        accepted(7),
        Reply(202, b""),
        Reply(202, b"ok"),
        accepted("x", 1),
        Reply(202, b'{"x":' + b"[" * 100_000),
    ],
    ids=["no id", "a number", "empty", "no JSON", "no text", "too deep"],
)
@pytest.mark.parametrize("dialect", [A, B, C])
def test_a_202_that_is_not_understood_is_unknown(dialect: Dialect, answer: Reply) -> None:
    assert dialect.read_apply(RETRY, answer).outcome is ApplyOutcome.UNKNOWN


@pytest.mark.parametrize("status", [200, 201, 204, 502, 504])
def test_an_answer_that_leaves_open_whether_something_runs_is_unknown(status: int) -> None:
    assert B.read_apply(SCALE_DOWN, Reply(status, b"{}")).outcome is ApplyOutcome.UNKNOWN


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (400, {"error": {"message": "Invalid JSON format", "type": "Bad Request", "code": 400}}, "Invalid JSON format"),
        (400, {"error": {"message": "unhashable type: 'list'", "type": "BadRequestError"}}, "unhashable type: 'list'"),
        (400, {"detail": "'instruction' is required."}, "'instruction' is required."),
        (422, {"detail": ["Unsupported Media Type: Only 'application/json' is allowed"]}, "Unsupported Media Type"),
        (401, {"error": "Unauthorized"}, "Unauthorized"),
        (404, {"detail": "Not Found"}, "Not Found"),
        (307, "", "HTTP 307"),
        (409, {"message": "ft_operation_in_progress"}, "HTTP 409: ft_operation_in_progress"),
        (500, "Internal Server Error", "Internal Server Error"),
        (503, {"error": {"message": "not now"}}, "not now"),
    ],
)
def test_every_definite_answer_but_202_is_a_refusal_in_the_engines_words(status: int, body: object, text: str) -> None:
    verdict = B.read_apply(SCALE_DOWN, Reply(status, json.dumps(body).encode()))
    assert verdict.outcome is ApplyOutcome.REFUSED
    assert text in verdict.detail
    assert str(status) in verdict.detail
