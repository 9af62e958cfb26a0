"""The fake Coordinator over HTTP: it logs what it was told, and really routes to the engines of its view."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.support.coordinator import FakeCoordinator
from tests.support.engine import FakeGroup
from tests.support.engine.client import EngineClient
from tests.support.processes import Running, python_module


def instance(group: FakeGroup, *ranks: int) -> dict[str, object]:
    endpoints = {str(rank): {"id": rank, "ip": "127.0.0.1", "business_port": str(group.port(rank))} for rank in ranks}
    return {"id": 1, "job_name": "job-0", "role": "union", "endpoints": {"127.0.0.1": endpoints}}


@pytest.fixture
async def coordinator() -> AsyncIterator[FakeCoordinator]:
    async with FakeCoordinator() as coordinator:
        yield coordinator


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    async with EngineClient() as client:
        yield client


async def refresh(client: EngineClient, coordinator: FakeCoordinator, event: str, *instances: dict[str, object]) -> int:
    body = {"event": event, "instances": [*instances]}
    return (await client.call("POST", f"{coordinator.url}/instances/refresh", json=body))[0]


async def test_completions_go_round_robin_to_the_published_ranks_only(
    coordinator: FakeCoordinator, client: EngineClient
) -> None:
    async with FakeGroup(4) as group:
        assert await refresh(client, coordinator, "add", instance(group, 0, 2, 3)) == 200
        answers = [await client.complete(coordinator.url) for _ in range(6)]
        texts = [body["choices"][0]["text"] for _, body in answers]
        assert texts == [f"served by rank {rank}" for rank in (0, 2, 3, 0, 2, 3)]
        assert [(c.endpoint, c.status, c.finish_reason) for c in coordinator.completions][:2] == [
            (0, 200, "stop"),
            (2, 200, "stop"),
        ]
        await group.inject(2, "frontend_kill")
        assert [(await client.complete(coordinator.url))[0] for _ in range(3)] == [200, 502, 200]


async def test_readiness_and_completions_follow_the_view(coordinator: FakeCoordinator, client: EngineClient) -> None:
    ready = f"{coordinator.url}/readiness?status=normal"
    assert await client.call("GET", ready) == (200, {"ready": False})
    assert (await client.complete(coordinator.url))[0] == 503
    async with FakeGroup(1) as group:
        await refresh(client, coordinator, "set", instance(group, 0))
        assert await client.call("GET", ready) == (200, {"ready": True})
        assert (await client.complete(coordinator.url))[0] == 200


async def test_every_view_is_logged_with_its_answer(coordinator: FakeCoordinator, client: EngineClient) -> None:
    async with FakeGroup(2) as group:
        codes = [
            await refresh(client, coordinator, "add", instance(group, 0, 1)),
            await refresh(client, coordinator, "del", instance(group, 0)),
            await refresh(client, coordinator, "del", instance(group, 0, 1)),
            await refresh(client, coordinator, "del", instance(group, 0, 1)),
            (await client.call("POST", f"{coordinator.url}/instances/refresh", data=b"{"))[0],
        ]
        assert codes == [200, 409, 200, 404, 400]
        log = (await client.call("GET", f"{coordinator.admin_url}/_fake/views"))[1]
        assert [(view["event"], view["status"]) for view in log] == [
            ("add", 200),
            ("del", 409),
            ("del", 200),
            ("del", 404),
            (None, 400),
        ]
        assert log[0]["instances"] == [instance(group, 0, 1)]


async def test_injections(coordinator: FakeCoordinator, client: EngineClient) -> None:
    inject = f"{coordinator.admin_url}/_fake/inject"
    async with FakeGroup(1) as group:
        view = instance(group, 0)
        await client.call("POST", inject, json={"name": "error", "status": 503, "times": 1})
        assert [await refresh(client, coordinator, "set", view) for _ in range(2)] == [503, 200]

        await client.call("POST", inject, json={"name": "down"})
        with pytest.raises(aiohttp.ClientConnectionError):
            await refresh(client, coordinator, "set", view)
        await client.call("POST", inject, json={"name": "up"})
        assert coordinator.serving() == {1: [0]}

        await client.call("POST", inject, json={"name": "forget"})
        assert coordinator.serving() == {}

        await coordinator.inject("slow", seconds=30)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(refresh(client, coordinator, "set", view), 0.5)
        assert coordinator.serving() == {1: [0]}
        assert (await client.call("POST", inject, json={"name": "boom"}))[0] == 400


async def test_as_a_process_it_tells_its_addresses_and_ends_cleanly(client: EngineClient) -> None:
    async with Running(python_module("tests.support.coordinator")) as process:
        ready = await process.line(r"READY coordinator=(\S+) admin=(\S+)")
        assert await client.call("GET", f"{ready[1]}/readiness") == (200, {"ready": False})
        assert await client.call("GET", f"{ready[2]}/_fake/view") == (200, {})
        port = ready[1].rpartition(":")[2]
        async with Running(python_module("tests.support.coordinator", f"--port={port}")) as second:
            await second.line("fake coordinator: cannot listen: .*address already in use")
            assert await second.wait() == 2
        assert await process.stop() == 0
