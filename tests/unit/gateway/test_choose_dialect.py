"""Which dialect is chosen from the statuses of both paths; when in doubt, none."""

import pytest

from gateway.engines.dialect import UnreadableError
from gateway.engines.dialects import CONFIGURABLE, DIALECTS, choose
from motor_ft.model.engine import Instruction, Problem


def statuses(v1: int, v0_33: int) -> dict[str, int]:
    return {"vllm_v1": v1, "vllm_0_33": v0_33}


def test_the_only_path_that_answers_names_the_dialect() -> None:
    assert choose(statuses(200, 404)) is DIALECTS["vllm_v1"]
    assert choose(statuses(404, 200)) is DIALECTS["vllm_0_33"]


@pytest.mark.parametrize(
    ("found", "problem", "shown"),
    [
        (statuses(200, 200), Problem.PROTOCOL, "vllm_v1 and vllm_0_33"),
        (statuses(404, 404), Problem.HTTP_STATUS, "fault tolerance"),
        (statuses(401, 200), Problem.HTTP_STATUS, "token"),
        (statuses(401, 404), Problem.HTTP_STATUS, "HTTP 401 from /v1/fault_tolerance/status"),
        (statuses(200, 500), Problem.HTTP_STATUS, "HTTP 500"),
        (statuses(503, 404), Problem.HTTP_STATUS, "HTTP 503"),
    ],
)
def test_anything_else_fails_closed_and_says_why(found: dict[str, int], problem: Problem, shown: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        choose(found)
    assert caught.value.problem is problem
    assert shown in caught.value.detail


def test_a_dialect_says_what_it_knows() -> None:
    assert {name: dialect.instructions for name, dialect in CONFIGURABLE.items()} == {
        "vllm_v1": {Instruction.RETRY, Instruction.SCALE_DOWN},
        "vllm_0_33": {Instruction.RETRY},
        "vllm_no_ft": set(),
        "sglang": {Instruction.RETRY, Instruction.SCALE_DOWN},
    }
