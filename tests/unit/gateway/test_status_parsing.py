"""What a status answer means, and that anything else fails closed (engine-contract 1.4)."""

import json

import pytest

from gateway.engines.dialect import MAX_BODY, Dialect, Reply, UnreadableError
from gateway.engines.sglang import Sglang
from gateway.engines.vllm_0_33 import Vllm033
from gateway.engines.vllm_v1 import VllmV1
from motor_ft.model.engine import EngineObservation, EngineStatus, FtState, Problem

A, B, C = Vllm033(), VllmV1(), Sglang()
MASK = [0, 0, 1, 1, 0, 0, 0, 0]


def reply(*entries: object, status: int = 200, **top: object) -> Reply:
    body = {"schema_version": 1, "total_engines": len(entries), "engines": entries} | top
    return Reply(status, json.dumps(body).encode())


def problem_of(dialect: Dialect, answer: Reply, rank: int = 0) -> tuple[Problem, str]:
    with pytest.raises(UnreadableError) as caught:
        dialect.read_status(rank, answer)
    return caught.value.problem, caught.value.detail


@pytest.mark.parametrize("dialect", [A, B, C])
@pytest.mark.parametrize("status", ["healthy", "unhealthy", "dead"])
def test_every_dialect_reads_the_bare_entry(dialect: Dialect, status: str) -> None:
    expected = EngineObservation(0, EngineStatus(status))
    assert dialect.read_status(0, reply({"id": 0, "status": status})) == expected


@pytest.mark.parametrize("dialect", [A, B])
def test_a_failed_command_leaves_its_id_and_text(dialect: Dialect) -> None:
    text = "[FT] Rejecting retry on engine 0: status is HEALTHY"
    entry = {"id": 0, "status": "healthy", "last_ft_request_id": "6c0f", "ft_error": text}
    seen = dialect.read_status(0, reply(entry))
    assert (seen.last_ft_request_id, seen.ft_error, seen.ft_state) == ("6c0f", text, FtState.NONE)


def test_dialect_b_reads_mask_and_command_state() -> None:
    entry = {
        "id": 0,
        "status": "unhealthy",
        "fault_info": "RuntimeError",
        "mask": MASK,
        "ft_state": "recovering",
        "last_ft_request_id": "rec-17-a1",
    }
    assert B.read_status(0, reply(entry)) == EngineObservation(
        0,
        EngineStatus.UNHEALTHY,
        ft_state=FtState.RECOVERING,
        fault_info="RuntimeError",
        last_ft_request_id="rec-17-a1",
        mask=tuple(MASK),
    )
    assert B.read_status(0, reply({"id": 0, "status": "diagnosing"})).status is EngineStatus.DIAGNOSING


def test_dialect_a_has_neither_diagnosing_nor_masks_nor_states() -> None:
    assert problem_of(A, reply({"id": 0, "status": "diagnosing"}))[0] is Problem.PROTOCOL
    seen = A.read_status(0, reply({"id": 0, "status": "unhealthy", "mask": MASK, "ft_state": "failed"}))
    assert (seen.mask, seen.ft_state) == ((), FtState.NONE)


FOUR = [{"id": rank, "status": status} for rank, status in enumerate(["healthy", "unhealthy", "unhealthy", "dead"])]


def test_dialect_c_reads_the_rank_that_is_asked_among_all() -> None:
    assert [C.read_status(rank, reply(*reversed(FOUR))).status for rank in range(4)] == [
        EngineStatus.HEALTHY,
        EngineStatus.UNHEALTHY,
        EngineStatus.UNHEALTHY,
        EngineStatus.DEAD,
    ]
    assert problem_of(C, reply(*FOUR), rank=4) == (Problem.IDENTITY, "asked rank 4, the answer is about [0, 1, 2, 3]")


def test_dialect_c_shows_what_the_last_order_left_at_every_rank_and_nothing_that_it_does_not_have() -> None:
    entries = [entry | {"ft_error": "x", "mask": MASK, "ft_state": "failed", "fault_info": "x"} for entry in FOUR]
    error = "scale_down_requires_ranks"
    seen = C.read_status(1, reply(*entries, last_ft_request_id="scale-down-2", ft_error=error))
    assert seen == EngineObservation(1, EngineStatus.UNHEALTHY, last_ft_request_id="scale-down-2", ft_error=error)


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (reply(*FOUR, total_engines=5), "5 ranks, but [0, 1, 2, 3]"),
        (reply(*FOUR, total_engines=10**15), "[0, 1, 2, 3]"),
        (reply(*FOUR[:3], FOUR[0]), "[0, 1, 2, 0]"),
        (reply(FOUR[0], {"id": -1, "status": "dead"}), "[0, -1]"),
        (reply(FOUR[0], FOUR[2]), "[0, 2]"),
        (reply(*FOUR, total_engines=None), "total_engines"),
        (reply(*FOUR, last_ft_request_id=17), "last_ft_request_id"),
        (reply(*FOUR, ft_error=["x"]), "ft_error"),
        (reply(*FOUR[:3], {"id": 3, "status": "paused"}), "paused"),
        (reply(*FOUR[:3], {"id": 3, "status": "diagnosing"}), "diagnosing"),
    ],
)
def test_dialect_c_believes_no_rank_when_anything_is_wrong_with_one(answer: Reply, shown: str) -> None:
    problem, detail = problem_of(C, answer)
    assert problem is Problem.PROTOCOL
    assert shown in detail


@pytest.mark.parametrize("dialect", [A, B, C])
def test_unknown_keys_and_nulls_are_ignored(dialect: Dialect) -> None:
    entry = {"id": 0, "status": "healthy", "fault_info": None, "ft_error": None, "dp_rank": 7, "new": {}}
    assert dialect.read_status(0, reply(entry, more=[1])).status is EngineStatus.HEALTHY


@pytest.mark.parametrize("dialect", [A, B, C])
@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (reply({"id": 0, "status": "paused"}), "paused"),
        (reply({"id": 0, "status": "unknown"}), "unknown"),
        (reply({"id": 0, "status": "HEALTHY"}), "HEALTHY"),
        (reply({"id": 0, "status": 1}), "engines[0].status"),
        (reply({"id": 0, "status": None}), "engines[0].status"),
        (reply({"id": 0}), "status"),
        (reply({"status": "dead"}), "id"),
        (reply({"id": "0", "status": "dead"}), "engines[0].id"),
        (reply({"id": True, "status": "dead"}), "engines[0].id"),
        (reply({"id": 0.5, "status": "dead"}), "engines[0].id"),
        (reply("healthy"), "engines[0]"),
        (reply({"id": 0, "status": "dead"}, schema_version=2), "2"),
        (reply({"id": 0, "status": "dead"}, schema_version="1"), "schema_version"),
        (reply({"id": 0, "status": "dead"}, schema_version=True), "schema_version"),
        (reply(engines={"0": "dead"}), "engines"),
        (reply(total_engines="1"), "total_engines"),
        (Reply(200, b"[]"), "[]"),
        (Reply(200, b"null"), "null"),
        (Reply(200, b""), "empty"),
        (Reply(200, b"<html>hello</html>"), "<html>hello"),
        (Reply(200, b'{"schema_version":1'), "truncated"),
        (Reply(200, b"\xff\xfe\x00"), "malformed"),
        (Reply(200, b"[" * 100_000), "[[["),
        (Reply(200, b'{"x":' + b"[" * 100_000), "recursion"),
        (Reply(200, b" " * (MAX_BODY + 1)), str(MAX_BODY)),
    ],
)
def test_what_is_not_the_dialect_is_a_protocol_problem_that_shows_the_raw_value(
    dialect: Dialect, answer: Reply, shown: str
) -> None:
    problem, detail = problem_of(dialect, answer)
    assert problem is Problem.PROTOCOL
    assert shown in detail
    assert len(detail) < 400


@pytest.mark.parametrize("dialect", [A, B])
@pytest.mark.parametrize("extra", [{"fault_info": 3}, {"ft_error": ["x"]}, {"last_ft_request_id": 17}])
def test_the_vllm_dialects_refuse_texts_that_are_none(dialect: Dialect, extra: dict[str, object]) -> None:
    problem, detail = problem_of(dialect, reply({"id": 0, "status": "dead"} | extra))
    assert problem is Problem.PROTOCOL
    assert next(iter(extra)) in detail


@pytest.mark.parametrize(
    "extra", [{"ft_state": "done"}, {"ft_state": 1}, {"mask": [0, 2]}, {"mask": [True]}, {"mask": "01"}]
)
def test_dialect_b_refuses_states_and_masks_that_it_does_not_know(extra: dict[str, object]) -> None:
    assert problem_of(B, reply({"id": 0, "status": "unhealthy"} | extra))[0] is Problem.PROTOCOL


@pytest.mark.parametrize("dialect", [A, B])
@pytest.mark.parametrize(
    "entries",
    [
        [],
        [{"id": 1, "status": "dead"}],
        [{"id": 0, "status": "healthy"}, {"id": 1, "status": "dead"}],
        [{"id": 0, "status": "healthy"}, {"id": 0, "status": "dead"}],
    ],
)
def test_anything_but_the_one_entry_of_the_asked_rank_is_an_identity_problem(
    dialect: Dialect, entries: list[object]
) -> None:
    assert problem_of(dialect, reply(*entries))[0] is Problem.IDENTITY


@pytest.mark.parametrize("dialect", [A, B, C])
@pytest.mark.parametrize(
    ("status", "body", "shown"),
    [
        (503, b'{"message":"fault tolerance is off"}', "HTTP 503: fault tolerance is off"),
        (401, b'{"error":"Unauthorized"}', "HTTP 401: Unauthorized"),
        (404, b'{"detail":"Not Found"}', "HTTP 404: Not Found"),
        (405, b'{"detail":"Method Not Allowed"}', "HTTP 405: Method Not Allowed"),
        (307, b"", "HTTP 307: an empty body"),
        (503, b"<html>", "HTTP 503: <html>"),
        (500, b'{"error":{"message":"boom","code":500}}', "HTTP 500: boom"),
        (204, b"", "HTTP 204"),
        (500, b'{"x":' + b"[" * 100_000, "HTTP 500"),
    ],
)
def test_every_status_but_200_is_an_http_problem_with_the_engines_words(
    dialect: Dialect, status: int, body: bytes, shown: str
) -> None:
    problem, detail = problem_of(dialect, Reply(status, body))
    assert problem is Problem.HTTP_STATUS
    assert shown in detail


def test_texts_of_an_engine_are_bounded() -> None:
    seen = B.read_status(0, reply({"id": 0, "status": "unhealthy", "ft_error": "x" * 100_000}))
    assert len(seen.ft_error) < 2_000
    for dialect in (A, B, C):
        assert len(problem_of(dialect, reply({"id": 0, "status": "x" * 100_000}))[1]) < 2_000
