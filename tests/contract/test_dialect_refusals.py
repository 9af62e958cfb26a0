"""Every refusal of engine-contract 1.2, sent by a real server in its exact words, is read as REFUSED."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest

from gateway.engines.dialect import Order, Reply, Verdict
from motor_ft.model.engine import ApplyOutcome, Instruction
from tests.integration.gateway.hubs import COMMANDED
from tests.support.engine import FAST, FakeGroup

MEDIA_TYPE = "Unsupported Media Type: Only 'application/json' is allowed"
ORDER = Order("r1", Instruction.RETRY)
VLLM = ("vllm_v1", "vllm_0_33")
FT_OFF = dict.fromkeys(VLLM, "HTTP 404: Not Found") | {"sglang": "HTTP 503: fault tolerance is off"}

EVERY: list[tuple[object, str]] = [
    (b"{", "Invalid JSON format"),
    (b"", "Invalid JSON format"),
    ([], "Request body must be a JSON object."),
    ("retry", "Request body must be a JSON object."),
    ({}, "'instruction' is required."),
    ({"instruction": None}, "'instruction' is required."),
    ({"instruction": ""}, "'instruction' is required."),
    ({"instruction": 0}, "'instruction' is required."),
    ({"instruction": []}, "'instruction' is required."),
    ({"instruction": "x"}, "Invalid instruction: 'x'."),
    ({"instruction": 5}, "Invalid instruction: '5'."),
    ({"instruction": True}, "Invalid instruction: 'True'."),
    ({"instruction": "retry", "params": None}, "'params' must be an object."),
    ({"instruction": "retry", "params": []}, "'params' must be an object."),
]
ONLY_B: list[tuple[object, str]] = [
    ({"instruction": "retry"}, "'request_id' must be a non-empty string."),
    ({"instruction": "scale_down", "request_id": ""}, "'request_id' must be a non-empty string."),
    ({"instruction": "scale_down", "request_id": 7}, "'request_id' must be a non-empty string."),
]
ONLY_C: list[tuple[object, str]] = [
    ({"instruction": "retry", "request_id": None}, "'request_id' must be a string."),
    ({"instruction": "retry", "request_id": 7}, "'request_id' must be a string."),
    ({"instruction": "scale_down"}, "'removed_dp_ranks' must be a list of integers."),
    (
        {"instruction": "scale_down", "params": {"removed_dp_ranks": 1}},
        "'removed_dp_ranks' must be a list of integers.",
    ),
    (
        {"instruction": "scale_down", "params": {"removed_dp_ranks": [True]}},
        "'removed_dp_ranks' must be a list of integers.",
    ),
    (
        {"instruction": "scale_down", "params": {"removed_dp_ranks": [-1]}},
        "'removed_dp_ranks' contains a rank out of range.",
    ),
    (
        {"instruction": "scale_down", "params": {"removed_dp_ranks": [1]}},
        "'removed_dp_ranks' contains a rank out of range.",
    ),
]
ONLY_A: list[tuple[object, str]] = [({"instruction": "scale_down"}, "Invalid instruction: 'scale_down'.")]

CASES = [(name, body, text) for name in COMMANDED for body, text in EVERY]
CASES += [("vllm_v1", body, text) for body, text in ONLY_B]
CASES += [("sglang", body, text) for body, text in ONLY_C]
CASES += [("vllm_0_33", body, text) for body, text in ONLY_A]


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def send(
    session: aiohttp.ClientSession, group: FakeGroup, body: object, media_type: str = "application/json"
) -> Verdict:
    """What the group's dialect makes of the answer to a body that no client of ours would send."""
    dialect = COMMANDED[group.config.dialect]
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    url = group.url(0) + dialect.apply_path
    async with session.post(url, data=data, headers={"Content-Type": media_type}) as answer:
        return dialect.read_apply(ORDER, Reply(answer.status, await answer.read()))


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize(("name", "body", "text"), CASES)
async def test_each_400_is_a_refusal_in_the_engines_words(
    session: aiohttp.ClientSession, name: str, body: object, text: str, bare: bool
) -> None:
    async with FakeGroup(1, name, bare_router=bare) as group:
        verdict = await send(session, group, body)
    assert verdict == Verdict(ApplyOutcome.REFUSED, f"HTTP 400: {text}")


@pytest.mark.parametrize("name", VLLM)
@pytest.mark.parametrize(("bare", "status"), [(False, 400), (True, 422)])
async def test_a_wrong_media_type_is_a_refusal(
    session: aiohttp.ClientSession, name: str, bare: bool, status: int
) -> None:
    async with FakeGroup(1, name, bare_router=bare) as group:
        verdict = await send(session, group, {}, "text/plain")
    assert verdict.outcome is ApplyOutcome.REFUSED
    assert verdict.detail.startswith(f"HTTP {status}: ")
    assert verdict.detail.endswith(MEDIA_TYPE)


@pytest.mark.parametrize("name", VLLM)
@pytest.mark.parametrize(
    ("body", "text"),
    [({"instruction": ["retry"]}, "unhashable type: 'list'"), (b'"\xff"', "codec can't decode")],
)
async def test_refusals_of_the_other_type_are_read_too(
    session: aiohttp.ClientSession, name: str, body: object, text: str
) -> None:
    async with FakeGroup(1, name) as group:
        verdict = await send(session, group, body)
    assert verdict.outcome is ApplyOutcome.REFUSED
    assert text in verdict.detail


@pytest.mark.parametrize(("name", "text"), FT_OFF.items())
async def test_without_fault_tolerance_an_order_is_refused(
    session: aiohttp.ClientSession, name: str, text: str
) -> None:
    async with FakeGroup(1, name, fault_tolerance=False) as group:
        verdict = await send(session, group, {"instruction": "retry"})
    assert verdict == Verdict(ApplyOutcome.REFUSED, text)


async def test_c_refuses_every_order_while_one_runs(session: aiohttp.ClientSession) -> None:
    """Of the same id too, and it starts nothing."""
    async with FakeGroup(2, "sglang", timings=replace(FAST, round_time=30)) as group:
        await group.inject(1, "step_exception")
        await group.until(lambda: set(group.statuses().values()) == {"unhealthy"})
        retry = {"instruction": "retry", "request_id": "r1"}
        assert (await send(session, group, retry)).outcome is ApplyOutcome.ACCEPTED
        for request_id in ("r1", "r2"):
            verdict = await send(session, group, retry | {"request_id": request_id})
            assert verdict == Verdict(ApplyOutcome.REFUSED, "HTTP 409: ft_operation_in_progress")
