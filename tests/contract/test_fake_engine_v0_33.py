"""Dialect (a): retry and its epochs as in engine-contract.md sections 1.5 and 2.4."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

import pytest

from tests.support.engine import FAST, FakeGroup
from tests.support.engine.client import EngineClient

DIALECT = "vllm_0_33"
SHORT = replace(FAST, check_in=0.5, store_timeout=0.5)
"""For tests in which a round must time out."""


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    async with EngineClient(DIALECT) as client:
        yield client


async def fault(group: FakeGroup) -> None:
    """A step raises on rank 0; everybody turns unhealthy."""
    await group.inject(0, "step_exception")
    await group.until(lambda: set(group.statuses().values()) == {"unhealthy"})


async def retry(group: FakeGroup, client: EngineClient, ranks: Iterable[int]) -> dict[int, str]:
    """Send one retry to each rank; the ids of the 202 answers."""
    ids = {}
    for rank in ranks:
        code, body = await client.apply(group.url(rank), "retry")
        assert code == 202
        ids[rank] = body["request_id"]
    return ids


async def errors(group: FakeGroup, ids: dict[int, str]) -> dict[int, str]:
    """The ft_error of each rank, once its command with this id failed."""
    await group.until(lambda: all(group.entry(r).get("last_ft_request_id") == i for r, i in ids.items()))
    return {rank: str(group.entry(rank)["ft_error"]) for rank in ids}


async def healthy(group: FakeGroup) -> None:
    await group.until(lambda: all(group.entry(r) == {"id": r, "status": "healthy"} for r in (0, 1, 2)))


async def test_a_retry_of_all_ranks_recovers_and_leaves_no_receipt(client: EngineClient) -> None:
    async with FakeGroup(3, DIALECT) as group:
        await fault(group)
        assert group.entry(1) == {"id": 1, "status": "unhealthy", "fault_info": "RuntimeError"}
        await retry(group, client, range(3))
        await healthy(group)


async def test_a_retry_sent_twice_is_refused_and_the_error_stays_on_the_healthy_entry(
    client: EngineClient,
) -> None:
    async with FakeGroup(3, DIALECT) as group:
        await fault(group)
        await retry(group, client, range(3))
        ids = await retry(group, client, [0])  # queues behind the first on the input thread
        assert await errors(group, ids) == {0: "[FT] Rejecting retry on engine 0: status is HEALTHY"}
        assert group.entry(0)["status"] == "healthy"


async def test_a_dead_engine_refuses(client: EngineClient) -> None:
    async with FakeGroup(3, DIALECT) as group:
        await group.inject(1, "worker_kill")
        assert group.entry(1) == {"id": 1, "status": "dead"}
        ids = await retry(group, client, [1])
        assert await errors(group, ids) == {1: "[FT] Rejecting retry on engine 1: status is DEAD"}
        assert group.entry(1)["status"] == "dead"


async def test_a_rank_left_out_lags_one_epoch_until_it_is_retried_alone(client: EngineClient) -> None:
    """Whole-group retries never repair the lag; one retry to the lagging rank alone does."""
    async with FakeGroup(3, DIALECT, timings=SHORT) as group:
        await fault(group)
        failures = await errors(group, await retry(group, client, [0, 1]))
        assert failures[0] == "Timed out after 0.6 seconds waiting for clients. 2/3 clients joined."
        assert failures[1] == "wait timeout after 500ms, keys: /tcp://127.0.0.1:42213/0/0"
        assert [group.rank(r).store_epoch for r in range(3)] == [1, 1, 0]

        failures = await errors(group, await retry(group, client, range(3)))
        connect = "The client socket has timed out after 500ms while trying to connect to (127.0.0.1, 42213)."
        assert failures[2] == connect
        assert [group.rank(r).store_epoch for r in range(3)] == [2, 2, 1]

        await errors(group, await retry(group, client, [2]))
        assert [group.rank(r).store_epoch for r in range(3)] == [2, 2, 2]
        await retry(group, client, range(3))
        await healthy(group)


async def test_rank_0_left_out_leaves_the_others_waiting_for_its_key(client: EngineClient) -> None:
    async with FakeGroup(3, DIALECT, timings=SHORT) as group:
        await fault(group)
        failures = await errors(group, await retry(group, client, [1, 2]))
        assert set(failures.values()) == {"wait timeout after 500ms, keys: /ft_worker_dp_ports_0"}
        await errors(group, await retry(group, client, [0]))
        await retry(group, client, range(3))
        await healthy(group)


async def test_a_late_command_within_the_timeout_completes_the_round(client: EngineClient) -> None:
    async with FakeGroup(3, DIALECT, timings=replace(FAST, store_timeout=5)) as group:
        await fault(group)
        await retry(group, client, [0, 1])
        await group.until(lambda: group.rank(1).store_epoch == 1)
        await retry(group, client, [2])
        await healthy(group)


async def test_the_host_of_the_store_gone(client: EngineClient) -> None:
    async with FakeGroup(3, DIALECT) as group:
        await fault(group)
        await group.inject(0, "engine_kill")
        failures = await errors(group, await retry(group, client, [1, 2]))
        assert {text[:27] for text in failures.values()} == {"Failed to recv, got 0 bytes"}


async def test_a_failing_worker_shows_at_once_and_the_same_retry_may_be_tried_again(
    client: EngineClient,
) -> None:
    async with FakeGroup(3, DIALECT, timings=SHORT) as group:
        await fault(group)
        await group.inject(1, "vote_failure", times=1)
        failures = await errors(group, await retry(group, client, range(3)))
        assert set(failures.values()) == {"One or more workers failed"}
        assert set(group.statuses().values()) == {"unhealthy"}
        await retry(group, client, range(3))
        await healthy(group)


async def test_a_worker_that_dies_while_its_engine_waits_shows_only_in_the_next_retry(
    client: EngineClient,
) -> None:
    async with FakeGroup(3, DIALECT, timings=SHORT) as group:
        await fault(group)
        await group.inject(1, "worker_kill")
        assert group.entry(1)["status"] == "unhealthy"
        failures = await errors(group, await retry(group, client, range(3)))
        assert failures == {0: "One or more workers failed", 1: "Executor failed.", 2: "One or more workers failed"}


async def test_a_gone_engine_process_takes_commands_without_effect(client: EngineClient) -> None:
    async with FakeGroup(2, DIALECT, timings=replace(FAST, watchdog=5)) as group:
        await fault(group)
        entry = group.entry(1)
        await group.inject(1, "window_expiry")
        await retry(group, client, [1])
        assert await client.status(group.url(1)) == entry
        assert (await client.call("GET", f"{group.url(1)}/health"))[0] == 503


async def test_an_integer_past_64_bits_is_accepted_and_lost(client: EngineClient) -> None:
    async with FakeGroup(1, DIALECT) as group:
        await group.inject(0, "step_exception")
        await group.until(lambda: group.statuses()[0] == "unhealthy")
        assert (await client.apply(group.url(0), "retry", big=2**64))[0] == 202
        await group.until(lambda: not [t for t in asyncio.all_tasks() if t.get_name().startswith("apply ")])
        assert group.statuses()[0] == "unhealthy"
        assert (await client.apply(group.url(0), "retry", big=2**64 - 1))[0] == 202
        await group.until(lambda: group.statuses()[0] == "healthy")


async def test_new_requests_hang_while_faulted_until_recovery(client: EngineClient) -> None:
    async with FakeGroup(3, DIALECT) as group:
        await fault(group)
        hanging = asyncio.create_task(client.complete(group.url(1)))
        await group.until(lambda: group.rank(1).completions.pending)
        await retry(group, client, range(3))
        code, body = await hanging
        assert (code, body["choices"][0]["finish_reason"]) == (200, "stop")


async def test_a_hanging_request_gets_500_when_the_window_ends_and_ends_the_server(
    client: EngineClient,
) -> None:
    async with FakeGroup(3, DIALECT, timings=replace(FAST, watchdog=60, recovery_window=0.3)) as group:
        await fault(group)
        code, body = await client.complete(group.url(1))
        assert (code, body["error"]["type"]) == (500, "InternalServerError")
        assert group.rank(1).process.name == "GONE"
