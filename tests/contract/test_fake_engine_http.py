"""The fake engine's HTTP surface is that of engine-contract.md sections 1.1 to 1.3."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.engine import FakeGroup
from tests.support.engine.client import EngineClient

DIALECTS = ("vllm_0_33", "vllm_v1")
RETRY = {"instruction": "retry", "request_id": "r1"}


def vllm_error(message: str, kind: str = "Bad Request") -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": None, "code": 400}}


@pytest.fixture(params=DIALECTS)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[tuple[FakeGroup, EngineClient]]:
    async with FakeGroup(2, request.param) as group, EngineClient(request.param) as client:
        yield group, client


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "Invalid JSON format"),
        (b"", "Invalid JSON format"),
        (b"[]", "Request body must be a JSON object."),
        (b"{}", "'instruction' is required."),
        (b'{"instruction": null}', "'instruction' is required."),
        (b'{"instruction": ""}', "'instruction' is required."),
        (b'{"instruction": 0}', "'instruction' is required."),
        (b'{"instruction": []}', "'instruction' is required."),
        (b'{"instruction": "x"}', "Invalid instruction: 'x'."),
        (b'{"instruction": 5}', "Invalid instruction: '5'."),
        (b'{"instruction": true}', "Invalid instruction: 'True'."),
        (b'{"instruction": "see /etc/engine.conf"}', "Invalid instruction: 'see <path>'."),
        (b'{"instruction": "retry", "params": null}', "'params' must be an object."),
        (b'{"instruction": "retry", "params": [1]}', "'params' must be an object."),
    ],
)
async def test_every_400_text(engine: tuple[FakeGroup, EngineClient], body: bytes, message: str) -> None:
    group, client = engine
    headers = {"Content-Type": "application/json"}
    assert await client.post_apply(group.url(0), data=body, headers=headers) == (400, vllm_error(message))


async def test_errors_of_another_type_keep_the_code(engine: tuple[FakeGroup, EngineClient]) -> None:
    group, client = engine
    url = group.url(0)
    unhashable = vllm_error("unhashable type: 'list'", "BadRequestError")
    assert await client.post_apply(url, json={"instruction": ["retry"]}) == (400, unhashable)
    headers = {"Content-Type": "application/json"}
    code, body = await client.post_apply(url, data=b'{"instruction": "\xff"}', headers=headers)
    assert (code, body["error"]["type"], body["error"]["code"]) == (400, "BadRequestError", 400)
    assert "codec can't decode" in body["error"]["message"]


async def test_the_media_type_is_checked_before_the_body(engine: tuple[FakeGroup, EngineClient]) -> None:
    group, client = engine
    message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    answer = await client.post_apply(group.url(0), data=b"{", headers={"Content-Type": "text/plain"})
    assert answer == (400, vllm_error(message))


@pytest.mark.parametrize("request_id", [None, "", "  ", 7])
async def test_request_id_is_mandatory_in_v1_and_ignored_in_0_33(request_id: object) -> None:
    body = {"instruction": "retry", "request_id": request_id}
    async with FakeGroup(2, "vllm_v1") as group, EngineClient("vllm_v1") as client:
        expected = vllm_error("'request_id' must be a non-empty string.")
        assert await client.post_apply(group.url(0), json=body) == (400, expected)
    async with FakeGroup(2, "vllm_0_33") as group, EngineClient("vllm_0_33") as client:
        code, reply = await client.post_apply(group.url(0), json=body)
        assert code == 202
        assert reply["request_id"] not in (request_id, "")


async def test_scale_down_without_request_id_probes_the_dialect() -> None:
    """0.33.0 does not know the instruction, #46370 complains about the id; nothing runs."""
    for dialect, message in (
        ("vllm_0_33", "Invalid instruction: 'scale_down'."),
        ("vllm_v1", "'request_id' must be a non-empty string."),
    ):
        async with FakeGroup(2, dialect) as group, EngineClient(dialect) as client:
            assert await client.apply(group.url(0), "scale_down") == (400, vllm_error(message))
            assert group.entry(0) == {"id": 0, "status": "healthy"}


@pytest.mark.parametrize(
    ("dialect", "path"),
    [("vllm_0_33", "/fault_tolerance/status"), ("vllm_v1", "/v1/fault_tolerance/status")],
)
async def test_202_names_the_status_path(dialect: str, path: str) -> None:
    async with FakeGroup(2, dialect) as group, EngineClient(dialect) as client:
        code, body = await client.post_apply(group.url(0), json=RETRY)
        assert (code, body["message"]) == (202, f"Request accepted; poll {path} for updates.")
        assert (body["request_id"] == "r1") is (dialect == "vllm_v1")


async def test_wrong_paths_and_methods_get_the_routers_own_answers(
    engine: tuple[FakeGroup, EngineClient],
) -> None:
    group, client = engine
    url = group.url(0)
    assert await client.call("GET", f"{url}/nothing") == (404, {"detail": "Not Found"})
    assert await client.call("DELETE", f"{url}/v1/models") == (405, {"detail": "Method Not Allowed"})
    assert (await client.call("GET", f"{url}/v1/models/"))[0] == 307


async def test_each_dialect_has_only_its_own_routes() -> None:
    for dialect, foreign in (("vllm_0_33", "/v1/fault_tolerance/status"), ("vllm_v1", "/fault_tolerance/status")):
        async with FakeGroup(1, dialect) as group, EngineClient(dialect) as client:
            assert (await client.call("GET", group.url(0) + foreign))[0] == 404


async def test_without_the_launch_flag_the_routes_do_not_exist() -> None:
    for dialect in DIALECTS:
        async with FakeGroup(1, dialect, fault_tolerance=False) as group, EngineClient(dialect) as client:
            not_found = (404, {"detail": "Not Found"})
            assert await client.post_apply(group.url(0), json=RETRY) == not_found


async def test_the_api_key_guards_v1_only() -> None:
    async with FakeGroup(1, "vllm_v1", api_key="secret") as group, EngineClient("vllm_v1") as client:
        url = f"{group.url(0)}/v1/fault_tolerance/status"
        assert await client.call("GET", url) == (401, {"error": "Unauthorized"})
        key = {"Authorization": "Bearer secret"}
        assert (await client.call("GET", url, headers=key))[0] == 200
        assert (await client.call("GET", f"{group.url(0)}/health"))[0] == 200
    async with FakeGroup(1, "vllm_0_33", api_key="secret") as group, EngineClient("vllm_0_33") as client:
        assert (await client.status(group.url(0)))["status"] == "healthy"


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({"json": {}}, (400, {"detail": "'instruction' is required."})),
        ({"json": {"instruction": {"a": 1}}}, (500, "Internal Server Error")),
        (
            {"data": b"x", "headers": {"Content-Type": "text/plain"}},
            (422, {"detail": ["Unsupported Media Type: Only 'application/json' is allowed"]}),
        ),
    ],
)
async def test_a_bare_router_answers_with_detail(options: dict[str, Any], answer: tuple[int, object]) -> None:
    async with FakeGroup(1, "vllm_v1", bare_router=True) as group, EngineClient("vllm_v1") as client:
        assert await client.post_apply(group.url(0), **options) == answer


async def test_the_ordinary_routes_of_a_healthy_engine(engine: tuple[FakeGroup, EngineClient]) -> None:
    group, client = engine
    url = group.url(1)
    assert await client.call("GET", f"{url}/health") == (200, "")
    assert (await client.call("GET", f"{url}/v1/models"))[1]["data"][0]["id"] == "fake-model"
    assert 'vllm:engine_healthy{engine="1"} 1' in (await client.call("GET", f"{url}/metrics"))[1]
    code, body = await client.complete(url)
    assert (code, body["choices"][0]["finish_reason"]) == (200, "stop")
    assert (await client.call("POST", f"{url}/v1/completions", data=b"x"))[0] == 400


async def test_every_apply_is_logged_with_its_reply(engine: tuple[FakeGroup, EngineClient]) -> None:
    group, client = engine
    await client.post_apply(group.url(1), json={"instruction": "x"})
    (record,) = group.applies(1)
    assert (record.rank, record.status, record.body) == (1, 400, {"instruction": "x"})
    assert record.reply == vllm_error("Invalid instruction: 'x'.")
    assert group.applies(0) == []
    log = (await client.call("GET", f"{group.url(0)}/_fake/log"))[1]
    assert log["applies"][0]["body"] == {"instruction": "x"}
