"""Dialect (c): one server, its orders and its end, as in engine-contract.md sections 1.1 to 1.5 and 2.5."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.engine import FAST, FakeGroup
from tests.support.engine.client import EngineClient

DIALECT = "sglang"
HEALTHY, UNHEALTHY, DEAD = "healthy", "unhealthy", "dead"


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    async with EngineClient(DIALECT) as client:
        yield client


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with FakeGroup(4, DIALECT) as group:
        yield group


async def statuses(group: FakeGroup, *wanted: str) -> None:
    await group.until(lambda: tuple(group.statuses().values()) == wanted)


async def lose(group: FakeGroup, rank: int) -> None:
    """Kill a process; returns when nobody is healthy any more."""
    await group.inject(rank, "worker_kill")
    await group.until(lambda: HEALTHY not in group.statuses().values())


async def body(group: FakeGroup, client: EngineClient) -> Any:
    code, answer = await client.call("GET", f"{group.url(1)}/v1/fault_tolerance/status")
    assert code == 200
    return answer


async def ordered(
    group: FakeGroup, client: EngineClient, instruction: str, request_id: str = "r1", **params: object
) -> str:
    """Give an order and wait for its end; returns the error that it left, empty for none."""
    text = "Request accepted; poll /v1/fault_tolerance/status for updates."
    answer = await client.apply(group.url(0), instruction, request_id, **params)
    assert answer == (202, {"message": text, "request_id": request_id})
    await group.until(lambda: group.rank(0).group.receipt.get("last_ft_request_id") == request_id)
    return str((await body(group, client)).get("ft_error", ""))


def entries(*statuses: str) -> list[dict[str, object]]:
    return [{"id": rank, "status": status} for rank, status in enumerate(statuses)]


async def test_one_server_answers_for_all_ranks(group: FakeGroup, client: EngineClient) -> None:
    assert len({group.url(rank) for rank in range(4)}) == 1
    assert await body(group, client) == {"schema_version": 1, "total_engines": 4, "engines": entries(*[HEALTHY] * 4)}


@pytest.mark.parametrize("process", ["worker_kill", "engine_kill"])
async def test_a_dead_process_pauses_the_others(group: FakeGroup, client: EngineClient, process: str) -> None:
    """Also when nobody sends a request; what is asked meanwhile gets 503."""
    await group.inject(None, "idle")
    await group.inject(3, process)
    await statuses(group, UNHEALTHY, UNHEALTHY, UNHEALTHY, DEAD)
    assert (await body(group, client))["engines"] == entries(UNHEALTHY, UNHEALTHY, UNHEALTHY, DEAD)
    assert await client.complete(group.url(0)) == (503, {"message": "fault_tolerance_paused"})
    assert (await client.call("GET", f"{group.url(0)}/health"))[0] == 200


async def test_a_scale_down_leaves_its_id_and_the_rank_dead(group: FakeGroup, client: EngineClient) -> None:
    await lose(group, 3)
    assert await ordered(group, client, "scale_down", "scale-down-1", removed_dp_ranks=[3]) == ""
    assert await body(group, client) == {
        "schema_version": 1,
        "total_engines": 4,
        "engines": entries(HEALTHY, HEALTHY, HEALTHY, DEAD),
        "last_ft_request_id": "scale-down-1",
    }
    assert (await client.complete(group.url(0)))[0] == 200


async def test_a_second_scale_down_takes_only_the_new_rank(group: FakeGroup, client: EngineClient) -> None:
    """A set that names the first one too is refused, and the older id stays until the operation has ended."""
    await lose(group, 3)
    await ordered(group, client, "scale_down", removed_dp_ranks=[3])
    await lose(group, 2)
    assert (await body(group, client))["last_ft_request_id"] == "r1"
    refused = await ordered(group, client, "scale_down", "r2", removed_dp_ranks=[3, 2])
    assert refused == "scale_down_requires_expected_ranks"
    assert await ordered(group, client, "scale_down", "r3", removed_dp_ranks=[2]) == ""
    await statuses(group, HEALTHY, HEALTHY, DEAD, DEAD)


async def test_a_removed_rank_outlives_the_pause(client: EngineClient) -> None:
    async with FakeGroup(2, DIALECT, timings=replace(FAST, recovery_window=0.3)) as group:
        await lose(group, 1)
        await ordered(group, client, "scale_down", removed_dp_ranks=[1])
        assert group.rank(0).deadline is None
        assert group.rank(1).deadline is None


@pytest.mark.parametrize(
    ("removed", "error"),
    [
        ([], "scale_down_requires_ranks"),
        ([0, 1, 2, 3], "cannot_scale_down_all_expected_ranks"),
    ],
)
async def test_a_set_that_makes_no_sense_is_refused_and_the_pause_goes_on(
    group: FakeGroup, client: EngineClient, removed: list[int], error: str
) -> None:
    await lose(group, 3)
    assert await ordered(group, client, "scale_down", removed_dp_ranks=removed) == error
    await statuses(group, UNHEALTHY, UNHEALTHY, UNHEALTHY, DEAD)


@pytest.mark.parametrize(("instruction", "params"), [("retry", {}), ("scale_down", {"removed_dp_ranks": [3]})])
async def test_without_a_fault_nothing_is_done(
    group: FakeGroup, client: EngineClient, instruction: str, params: dict[str, Any]
) -> None:
    """Also the same order again after it has succeeded: there is no de-duplication."""
    error = f"{instruction}_requires_unresolved_expected_dp_fault"
    assert await ordered(group, client, instruction, **params) == error
    assert set(group.statuses().values()) == {HEALTHY}


async def test_a_retry_needs_every_process(group: FakeGroup, client: EngineClient) -> None:
    await lose(group, 3)
    assert await ordered(group, client, "retry") == "retry_requires_all_expected_processes_alive"


async def test_a_retry_resumes_paused_ranks_and_clears_the_last_error(group: FakeGroup, client: EngineClient) -> None:
    await ordered(group, client, "retry", "r0")
    await group.inject(1, "step_exception")
    await statuses(group, *[UNHEALTHY] * 4)
    assert await ordered(group, client, "retry") == ""
    await statuses(group, *[HEALTHY] * 4)


async def test_an_order_needs_no_id(group: FakeGroup, client: EngineClient) -> None:
    code, answer = await client.post_apply(group.url(0), json={"instruction": "retry"})
    assert (code, answer["request_id"]) == (202, "")


async def test_a_process_that_comes_back_is_healthy_by_itself(group: FakeGroup, client: EngineClient) -> None:
    """Nobody has to ask for it; after a scale-down it is expected again."""
    await lose(group, 3)
    await ordered(group, client, "scale_down", removed_dp_ranks=[3])
    await group.inject(3, "restart")
    await statuses(group, *[HEALTHY] * 4)
    await lose(group, 3)
    assert await ordered(group, client, "scale_down", "r2", removed_dp_ranks=[3]) == ""


@pytest.mark.parametrize("how", ["vote_failure", "worker_kill"])
async def test_a_survivor_that_does_not_answer_ends_the_whole_instance(client: EngineClient, how: str) -> None:
    async with FakeGroup(3, DIALECT, timings=replace(FAST, round_time=0.2)) as group:
        await lose(group, 2)
        assert (await client.apply(group.url(0), "scale_down", "r1", removed_dp_ranks=[2]))[0] == 202
        await group.inject(1, how)
        await group.until(lambda: {group.rank(rank).process.name for rank in range(3)} == {"GONE"})


async def test_a_pause_that_lasts_too_long_ends_the_whole_instance() -> None:
    async with FakeGroup(3, DIALECT, timings=replace(FAST, recovery_window=0.3)) as group:
        await lose(group, 2)
        await group.until(lambda: {group.rank(rank).process.name for rank in range(3)} == {"GONE"})
