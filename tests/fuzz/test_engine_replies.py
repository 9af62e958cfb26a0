"""Whatever an engine answers is a reading: one that can be checked against the bytes, or UNKNOWN with its problem."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gateway.engines.completion import judge
from gateway.engines.dialect import Dialect, Order, Reply, UnreadableError
from motor_ft.model.engine import ApplyOutcome, EngineStatus, Instruction, ProbeOutcome, Problem
from tests.fuzz.generators import VALUES, attempt, damaged, encoded, fuzz, spoilt
from tests.integration.gateway.hubs import COMMANDED, Hub, open_hub, order, targets
from tests.integration.gateway.raw_server import Exchange, raw_server

MAX_DETAIL = 4_000
ENTRY = {"id": 0, "status": "healthy", "fault_info": None, "mask": [0, 1], "ft_state": "recovering", "ft_error": "x"}
STATUS = {"schema_version": 1, "total_engines": 1, "engines": [ENTRY]}
WHOLE = STATUS | {
    "total_engines": 3,
    "engines": [{"id": 2, "status": "dead"}, {"id": 0, "status": "unhealthy"}, {"id": 1, "status": "healthy"}],
    "last_ft_request_id": "r1",
    "ft_error": "scale_down_requires_ranks",
}
ACCEPTED = {"message": "Request accepted", "request_id": "r1"}
REFUSED = {"error": {"message": "no", "type": "Bad Request", "param": None, "code": 400}}
COMPLETION = {"id": "cmpl-1", "choices": [{"text": "x", "finish_reason": "length"}]}
GOOD = [STATUS, WHOLE, ACCEPTED, REFUSED, COMPLETION, {"detail": ["no", "really"]}, {"data": [{"id": "model"}]}]
DEEP = b'{"schema_version":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
ORDER = Order("r1", Instruction.SCALE_DOWN, (1,), "127.0.0.1", 29500)


BODIES: SearchStrategy[bytes] = st.one_of(
    st.sampled_from(GOOD).flatmap(damaged).map(encoded),
    st.sampled_from(GOOD).flatmap(lambda good: spoilt(encoded(good))),
    VALUES.map(encoded),
    st.binary(max_size=40),
)
STATUSES = st.sampled_from([200, 200, 200, 202, 202, 204, 307, 400, 401, 404, 405, 500, 502, 503, 504])
REPLIES = st.builds(Reply, STATUSES, BODIES)


def decoded(body: bytes) -> Any:
    """What the standard library makes of it; text that is passed over may be no UTF-8."""
    try:
        return json.loads(body.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None


def says(dialect: Dialect, reply: Reply, status: str) -> bool:
    """Rank 0 has this status, and the answer is about it alone, or about all ranks where one server has them."""
    body = decoded(reply.body)
    engines = body.get("engines") if isinstance(body, dict) and body.get("schema_version") == 1 else None
    entries = {each.get("id"): each.get("status") for each in engines or []}
    whole = entries.keys() == set(range(len(engines or []))) and (dialect.one_server or len(entries) == 1)
    return reply.status == 200 and whole and entries[0] == status


@pytest.mark.parametrize("dialect", COMMANDED.values(), ids=COMMANDED.keys())
@given(reply=REPLIES)
@example(reply=Reply(200, DEEP))
@example(reply=Reply(404, DEEP))
@fuzz(5)
def test_a_status_is_read_as_it_says_or_is_a_problem_of_the_answer(dialect: Dialect, reply: Reply) -> None:
    reading = attempt(lambda: dialect.read_status(0, reply), UnreadableError)
    assert len(reading.detail) < MAX_DETAIL
    if isinstance(reading, UnreadableError):
        assert reading.problem in {Problem.HTTP_STATUS, Problem.PROTOCOL, Problem.IDENTITY}
    else:
        assert reading.problem is Problem.NONE
        assert says(dialect, reply, reading.status)


@pytest.mark.parametrize("dialect", COMMANDED.values(), ids=COMMANDED.keys())
@given(reply=REPLIES)
@example(reply=Reply(202, DEEP))
@example(reply=Reply(400, DEEP))
@fuzz(5)
def test_an_order_counts_as_accepted_only_with_a_202_that_names_its_id(dialect: Dialect, reply: Reply) -> None:
    verdict = dialect.read_apply(ORDER, reply)
    assert len(verdict.detail) < MAX_DETAIL
    if verdict.outcome is ApplyOutcome.ACCEPTED:
        assert reply.status == 202
        assert decoded(reply.body)["request_id"].startswith(verdict.engine_request_id.removesuffix("…"))
    else:
        assert verdict.outcome in {ApplyOutcome.REFUSED, ApplyOutcome.UNKNOWN}


@given(reply=REPLIES)
@example(reply=Reply(200, DEEP))
@fuzz(5)
def test_only_a_completion_shows_that_an_engine_serves(reply: Reply) -> None:
    outcome, detail = judge(reply)
    assert len(detail) < MAX_DETAIL
    if outcome is ProbeOutcome.SERVED:
        assert reply.status == 200
        assert decoded(reply.body)["choices"]


HEADERS = st.sampled_from(
    [
        (),
        ("Location: http://127.0.0.1:1/elsewhere",),
        ("Content-Encoding: gzip",),
        ("Content-Type: text/html; charset=nonsense",),
        ("Set-Cookie: a=b", "Connection: close"),
        ("Transfer-Encoding: chunked",),
        ("Content-Length: 5",),
        ("X: \x00",),
        ("X: " + "x" * 100_000,),
        ("no header",),
    ]
)
ANSWERS = st.tuples(STATUSES | st.sampled_from([0, 99, 1000]), BODIES | st.just(b" " * 10_485_760), HEADERS)
RAW = st.binary(max_size=40) | st.sampled_from(GOOD).map(encoded).flatmap(
    lambda body: spoilt(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
)


class HostileEngine:
    """Answers every request with what the example says: bytes as they are, or a complete answer."""

    def __init__(self) -> None:
        self.says: bytes | tuple[int, bytes, tuple[str, ...]] = b""

    async def serve(self, exchange: Exchange) -> None:
        """Then the connection ends."""
        try:
            if isinstance(self.says, bytes):
                await exchange.send(self.says)
            else:
                status, body, headers = self.says
                await exchange.answer(status, body, *headers)
        finally:
            exchange.close()


@pytest.fixture
def engine() -> HostileEngine:
    return HostileEngine()


@pytest.fixture(params=COMMANDED)
async def hub(engine: HostileEngine, request: pytest.FixtureRequest) -> AsyncIterator[Hub]:
    """Of one hostile engine."""
    async with raw_server(engine.serve) as server, open_hub({0: server.url}, request.param) as hub:
        yield hub


@given(says=RAW | ANSWERS, number=st.uuids().map(str))
@fuzz(1)
async def test_over_http_too_every_request_has_an_outcome_and_no_answer_is_a_dead_engine(
    hub: Hub, engine: HostileEngine, says: bytes | tuple[int, bytes, tuple[str, ...]], number: str
) -> None:
    """Only a connection that ends without an answer may be evidence, and that not as DEAD."""
    engine.says = says
    (reading,) = await hub.observe(targets([0]), 5.0)
    assert (reading.status is EngineStatus.UNKNOWN) is (reading.problem is not Problem.NONE)
    assert reading.status is not EngineStatus.DEAD or b"dead" in repr(says).encode()
    assert reading.problem is not Problem.UNREACHABLE or says == b""
    (outcome,) = await hub.apply(order([0], number, removed=(1,)))
    assert outcome.outcome is not ApplyOutcome.NOT_SENT
    assert (await hub.probe_completion(targets([0])[0], 5.0))[0] is not ProbeOutcome.SERVED or isinstance(says, tuple)
