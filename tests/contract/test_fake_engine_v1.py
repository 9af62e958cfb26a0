"""Dialect (b): the rows of engine-contract.md section 1.5 and the steps of section 2.3."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

import aiohttp
import pytest

from tests.support.engine import FAST, FakeGroup
from tests.support.engine.client import EngineClient
from tests.support.ports import free_port

HEALTHY = "healthy"
SHORT = replace(FAST, check_in=0.5, store_timeout=0.5)
"""For tests in which a round must time out."""


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    async with EngineClient("vllm_v1") as client:
        yield client


async def lose(group: FakeGroup, *ranks: int, among: Iterable[int] = range(4)) -> list[int]:
    """Kill the workers of some ranks; returns the survivors once all are unhealthy."""
    for rank in ranks:
        await group.inject(rank, "worker_kill")
    survivors = [rank for rank in among if rank not in ranks]
    await group.until(lambda: all(group.statuses()[r] == "unhealthy" for r in survivors))
    return survivors


async def scale_down(
    group: FakeGroup, client: EngineClient, ranks: list[int], request_id: str, removed: list[int], **params: object
) -> None:
    for rank in ranks:
        answer = await client.apply(group.url(rank), "scale_down", request_id, removed_dp_ranks=removed, **params)
        assert answer[0] == 202


async def failed(group: FakeGroup, rank: int) -> object:
    """The ft_error of the rank, once it failed."""
    await group.until(lambda: group.entry(rank).get("ft_state") == "failed")
    return group.entry(rank)["ft_error"]


async def all_healthy(group: FakeGroup, ranks: list[int]) -> None:
    await group.until(lambda: all(group.entry(r) == {"id": r, "status": HEALTHY} for r in ranks))


async def test_a_lost_worker_makes_its_rank_dead_and_the_peers_unhealthy_with_a_mask(
    client: EngineClient,
) -> None:
    async with FakeGroup(4, tp_size=2) as group:
        survivors = await lose(group, 1)
        assert await client.status(group.url(1)) == {"id": 1, "status": "dead"}
        mask = [0, 0, 1, 1, 0, 0, 0, 0]
        for rank in survivors:
            expected = {"id": rank, "status": "unhealthy", "fault_info": "RuntimeError", "mask": mask}
            assert await client.status(group.url(rank)) == expected
        pushes = [c.detail["status"] for c in group.journal.changes if c.rank == 0 and c.kind == "push"]  # type: ignore[index]
        assert pushes == ["diagnosing", "unhealthy"]


async def test_scale_down_to_the_survivors_and_a_cumulative_second_round(client: EngineClient) -> None:
    async with FakeGroup(4) as group:
        survivors = await lose(group, 3)
        await scale_down(group, client, survivors, "rec-1", [3])
        await all_healthy(group, survivors)
        survivors = await lose(group, 2, among=survivors)
        await scale_down(group, client, survivors, "rec-2", [3, 2])
        await all_healthy(group, survivors)
        assert group.rank(0).dead_set == {2, 3}
        assert (await client.complete(group.url(1)))[0] == 200


async def test_a_second_round_may_name_only_the_new_rank(client: EngineClient) -> None:
    async with FakeGroup(4) as group:
        for request_id, rank in (("a", 3), ("b", 2)):
            survivors = await lose(group, rank, among=[r for r in range(4) if r not in group.rank(0).dead_set])
            await scale_down(group, client, survivors, request_id, [rank])
            await all_healthy(group, survivors)
        assert group.rank(0).dead_set == {2, 3}


async def test_the_store_master_moves_twice(client: EngineClient) -> None:
    """The master is the lowest alive rank: rank 0 goes, then rank 1; each needs a new address."""
    async with FakeGroup(4) as group:
        survivors = [0, 1, 2, 3]
        for request_id, master in (("a", 0), ("b", 1)):
            survivors = await lose(group, master, among=survivors)
            address = {"dp_master_ip": "127.0.0.1", "dp_store_port": free_port()}
            await scale_down(group, client, survivors, request_id, [*range(master + 1)], **address)
            await all_healthy(group, survivors)
        assert {group.rank(r).store.host_rank for r in survivors} == {2}


async def test_a_store_port_is_taken_while_its_host_lives_and_free_afterwards(client: EngineClient) -> None:
    async with FakeGroup(4) as group:
        survivors = await lose(group, 0)
        port = free_port()
        await scale_down(group, client, survivors, "a", [0], dp_master_ip="127.0.0.1", dp_store_port=port)
        await all_healthy(group, survivors)
        with socket.socket() as probe, pytest.raises(OSError, match="in use"):
            probe.bind(("127.0.0.1", port))
        await group.inject(1, "engine_kill")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


async def test_removing_the_master_needs_an_address(client: EngineClient) -> None:
    async with FakeGroup(4) as group:
        survivors = await lose(group, 0)
        await scale_down(group, client, survivors, "a", [0], dp_master_ip="127.0.0.1")
        for rank in survivors:
            text = "dp_store_port and dp_master_ip required when the store master (rank 0) is removed"
            assert await failed(group, rank) == text
            assert group.statuses()[rank] == "unhealthy"
        await scale_down(group, client, survivors, "b", [0], dp_master_ip="127.0.0.1", dp_store_port=free_port())
        await all_healthy(group, survivors)


async def test_an_address_that_is_not_needed_is_ignored(client: EngineClient) -> None:
    async with FakeGroup(4) as group:
        survivors = await lose(group, 3)
        await scale_down(group, client, survivors, "a", [3], dp_master_ip="203.0.113.1", dp_store_port=1)
        await all_healthy(group, survivors)


@pytest.mark.parametrize("how", ["bound", "injected", "foreign address"])
async def test_a_store_that_cannot_listen_is_a_failure_before_check_in(client: EngineClient, how: str) -> None:
    async with FakeGroup(4, timings=SHORT) as group:
        survivors = await lose(group, 0)
        ip = "203.0.113.1" if how == "foreign address" else "127.0.0.1"
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1] if how == "bound" else free_port()
            if how == "injected":
                await group.inject(None, "port_in_use", port=port)
            await scale_down(group, client, survivors, "a", [0], dp_master_ip=ip, dp_store_port=port)
            assert "The server socket has failed to listen" in str(await failed(group, 1))
            timeout = f"The client socket has timed out after 500ms while trying to connect to ({ip}, {port})."
            assert await failed(group, 2) == timeout
        assert {group.statuses()[r] for r in survivors} == {"unhealthy"}


async def test_healthy_engine_refuses_and_stays_failed_until_the_next_push(client: EngineClient) -> None:
    async with FakeGroup(2) as group:
        await client.apply(group.url(0), "retry", "r1")
        assert await failed(group, 0) == "[FT] Rejecting retry on engine 0: status is HEALTHY"
        assert group.entry(0)["status"] == HEALTHY
        await group.inject(0, "step_exception")
        await group.until(lambda: group.entry(0)["status"] == "unhealthy")
        assert "ft_state" not in group.entry(0)


async def test_dead_engine_refuses(client: EngineClient) -> None:
    async with FakeGroup(2) as group:
        await lose(group, 1, among=[0, 1])
        await client.apply(group.url(1), "scale_down", "r1", removed_dp_ranks=[0])
        assert await failed(group, 1) == "[FT] Rejecting scale_down on engine 1: status is DEAD"
        assert group.entry(1)["status"] == "dead"


async def test_diagnosing_engine_refuses_and_the_later_push_wipes_it(client: EngineClient) -> None:
    async with FakeGroup(1, timings=replace(FAST, diagnosing=1)) as group:
        await group.inject(0, "step_exception")
        await group.until(lambda: group.statuses()[0] == "diagnosing")
        await client.apply(group.url(0), "retry", "r1")
        assert await failed(group, 0) == "[FT] Rejecting retry on engine 0: status is DIAGNOSING"
        await group.until(lambda: group.statuses()[0] == "unhealthy")
        assert group.entry(0).keys() == {"id", "status", "fault_info", "mask"}


async def test_a_command_during_a_round_is_dropped(client: EngineClient) -> None:
    async with FakeGroup(4, timings=replace(FAST, round_time=1)) as group:
        survivors = await lose(group, 3)
        await scale_down(group, client, survivors, "a", [3])
        await group.until(lambda: group.entry(0).get("ft_state") == "recovering")
        for request_id in ("a", "b"):
            answer = await client.apply(group.url(0), "scale_down", request_id, removed_dp_ranks=[3])
            assert answer[0] == 202
        assert group.entry(0)["last_ft_request_id"] == "a"
        await all_healthy(group, survivors)


async def test_the_same_id_after_success_looks_like_a_failure(client: EngineClient) -> None:
    async with FakeGroup(4) as group:
        survivors = await lose(group, 3)
        await scale_down(group, client, survivors, "a", [3])
        await all_healthy(group, survivors)
        await scale_down(group, client, survivors, "a", [3])
        assert await failed(group, 0) == "[FT] Rejecting scale_down on engine 0: status is HEALTHY"


@pytest.mark.parametrize("removed", [[], [4], [-1], [0, 3], [0, 1, 2, 3], ["3"], [3.5]])
async def test_invalid_removed_sets_fail_and_stay_retryable(client: EngineClient, removed: list[object]) -> None:
    async with FakeGroup(4) as group:
        await lose(group, 3)
        await client.apply(group.url(0), "scale_down", "a", removed_dp_ranks=removed)
        expected = f"Invalid removed_dp_ranks {removed} for engine 0 (dp_rank=0, dead_dp_ranks=[])"
        assert await failed(group, 0) == expected
        assert group.statuses()[0] == "unhealthy"


async def test_nothing_new_to_remove_is_invalid(client: EngineClient) -> None:
    async with FakeGroup(4) as group:
        survivors = await lose(group, 3)
        await scale_down(group, client, survivors, "a", [3])
        await all_healthy(group, survivors)
        await lose(group, 2, among=survivors)
        await client.apply(group.url(0), "scale_down", "b", removed_dp_ranks=[3])
        text = "Invalid removed_dp_ranks [3] for engine 0 (dp_rank=0, dead_dp_ranks=[3])"
        assert await failed(group, 0) == text


@pytest.mark.parametrize(
    ("params", "error"),
    [({}, "'removed_dp_ranks'"), ({"removed_dp_ranks": 3}, "'int' object is not iterable")],
)
async def test_unchecked_params_fail_after_the_202(client: EngineClient, params: dict[str, object], error: str) -> None:
    async with FakeGroup(4) as group:
        await lose(group, 3)
        assert (await client.apply(group.url(0), "scale_down", "a", **params))[0] == 202
        assert await failed(group, 0) == error


async def test_dp_size_one_can_only_retry(client: EngineClient) -> None:
    async with FakeGroup(1) as group:
        await group.inject(0, "step_exception")
        await group.until(lambda: group.statuses()[0] == "unhealthy")
        await client.apply(group.url(0), "scale_down", "a", removed_dp_ranks=[0])
        assert str(await failed(group, 0)).startswith("scale_down requires data_parallel_size > 1; ")
        await client.apply(group.url(0), "retry", "b")
        await all_healthy(group, [0])


async def test_a_missing_peer_fails_the_check_in_and_a_fresh_id_works(client: EngineClient) -> None:
    async with FakeGroup(4, timings=SHORT) as group:
        survivors = await lose(group, 3)
        await scale_down(group, client, [0, 1], "a", [3])
        text = (
            "[FT] Not all engines joined recovery round 'a' within 0.5s; "
            "the same request_id must be sent to every engine."
        )
        assert [await failed(group, rank) for rank in (0, 1)] == [text, text]
        assert group.statuses()[2] == "unhealthy"
        await scale_down(group, client, survivors, "b", [3])
        await all_healthy(group, survivors)


async def test_a_reused_id_passes_the_old_check_in_and_is_then_terminal(client: EngineClient) -> None:
    """Keys are never deleted, so absent peers seem to have checked in."""
    async with FakeGroup(4, timings=SHORT) as group:
        await lose(group, 3)
        await scale_down(group, client, [0, 1], "a", [3])
        await failed(group, 0)
        await failed(group, 1)
        await scale_down(group, client, [2], "a", [3])
        await group.until(lambda: group.entry(2).get("ft_state") == "failed")
        assert group.entry(2)["status"] == "dead"


async def test_a_failed_vote_is_terminal_for_every_voter(client: EngineClient) -> None:
    async with FakeGroup(4) as group:
        survivors = await lose(group, 3)
        await group.inject(1, "insufficient_redundancy")
        await scale_down(group, client, survivors, "a", [3])
        assert await failed(group, 1) == "EPLB redundancy insufficient"
        assert await failed(group, 0) == await failed(group, 2) == "[FT] Recovery vote failed"
        assert {group.statuses()[r] for r in survivors} == {"dead"}
        pushed = [c.detail for c in group.journal.changes if c.rank == 0][-2:]
        assert pushed[0] == {"id": 0, "status": "dead"}


async def test_engines_that_disagree_on_the_removed_set_all_fail(client: EngineClient) -> None:
    """Their dense ranks pair up, so the check-in passes; the round must not."""
    async with FakeGroup(4) as group:
        survivors = await lose(group, 3)
        await scale_down(group, client, [0], "a", [1])
        await scale_down(group, client, [1, 2], "a", [3])
        for rank in survivors:
            assert await failed(group, rank) == "[FT] Recovery vote failed"
        assert {group.statuses()[r] for r in survivors} == {"dead"}


async def test_retry_recovers_a_whole_group_and_a_failed_one_stays_retryable(client: EngineClient) -> None:
    async with FakeGroup(3) as group:
        await group.inject(1, "step_exception", fault_info="TimeoutError")
        await group.until(lambda: set(group.statuses().values()) == {"unhealthy"})
        assert group.entry(1)["fault_info"] == "TimeoutError"
        await group.inject(2, "vote_failure", times=1)
        for request_id in ("a", "b"):
            for rank in range(3):
                await client.apply(group.url(rank), "retry", request_id)
            if request_id == "a":
                assert await failed(group, 2) == "One or more workers failed"
                assert await failed(group, 0) == "[FT] Recovery vote failed"
                assert set(group.statuses().values()) == {"unhealthy"}
        await all_healthy(group, [0, 1, 2])


async def test_a_worker_lost_during_a_round_ends_it_for_all(client: EngineClient) -> None:
    async with FakeGroup(4, timings=replace(FAST, round_time=1)) as group:
        survivors = await lose(group, 3)
        await scale_down(group, client, survivors, "a", [3])
        await group.until(lambda: "a/2" in group.rank(2).store.keys)
        await group.inject(2, "worker_kill")
        assert group.entry(2) == {"id": 2, "status": "dead"}
        for rank in survivors:
            await failed(group, rank)
        assert {group.statuses()[r] for r in survivors} == {"dead"}


async def test_a_gone_engine_process_answers_with_the_exception(client: EngineClient) -> None:
    async with FakeGroup(2, timings=replace(FAST, watchdog=5)) as group:
        await group.inject(0, "engine_kill")
        assert await client.status(group.url(0)) == {"id": 0, "status": HEALTHY}
        assert (await client.call("GET", f"{group.url(0)}/health"))[0] == 503
        await client.apply(group.url(0), "retry", "a")
        assert "EngineCore encountered an issue" in str(await failed(group, 0))
        assert group.statuses()[0] == HEALTHY


async def test_completions_are_refused_while_faulted_and_health_stays_200(client: EngineClient) -> None:
    async with FakeGroup(4) as group:
        survivors = await lose(group, 3)
        assert (await client.complete(group.url(0)))[0] == 503
        assert (await client.call("GET", f"{group.url(0)}/health"))[0] == 200
        assert 'engine="0"} 0' in (await client.call("GET", f"{group.url(0)}/metrics"))[1]
        await scale_down(group, client, survivors, "a", [3])
        await all_healthy(group, survivors)
        assert (await client.complete(group.url(0)))[0] == 200


async def test_an_aborted_answer_may_arrive_before_the_status_push(client: EngineClient) -> None:
    async with FakeGroup(2, timings=replace(FAST, completion=30, push_gap=30)) as group:
        running = asyncio.create_task(client.complete(group.url(0)))
        await group.until(lambda: group.rank(0).completions.pending)
        await group.inject(0, "step_exception")
        code, body = await running
        assert (code, body["choices"][0]["finish_reason"]) == (200, "abort")
        assert (await client.status(group.url(0)))["status"] == HEALTHY


async def test_an_idle_group_notices_by_the_first_request(client: EngineClient) -> None:
    async with FakeGroup(4) as group:
        await group.inject(None, "idle")
        await group.inject(3, "worker_kill")
        assert group.rank(0).notice is None
        code, body = await client.complete(group.url(0))
        assert (code, body["choices"][0]["finish_reason"]) == (200, "abort")
        await group.until(lambda: all(group.statuses()[r] == "unhealthy" for r in (0, 1, 2)))


async def test_after_a_scale_down_idle_survivors_notice_without_traffic(client: EngineClient) -> None:
    async with FakeGroup(4) as group:
        survivors = await lose(group, 3)
        await scale_down(group, client, survivors, "a", [3])
        await all_healthy(group, survivors)
        await group.inject(None, "idle")
        await lose(group, 2, among=survivors)


async def test_the_window_ends_the_engine_and_then_its_server(client: EngineClient) -> None:
    async with FakeGroup(2, timings=replace(FAST, recovery_window=0.3, watchdog=1)) as group:
        await lose(group, 1, among=[0, 1])
        await group.until(lambda: group.rank(0).core_gone)
        assert (await client.call("GET", f"{group.url(0)}/health"))[0] == 503
        assert (await client.status(group.url(0)))["status"] == "unhealthy"
        await _refuses(client, group.url(0))


async def test_a_success_stops_the_window(client: EngineClient) -> None:
    async with FakeGroup(4) as group:
        survivors = await lose(group, 3)
        assert group.rank(0).deadline is not None
        await scale_down(group, client, survivors, "a", [3])
        await all_healthy(group, survivors)
        assert group.rank(0).deadline is None
        assert group.rank(3).deadline is not None


async def test_a_completion_sent_to_a_gone_engine_ends_the_server_at_once(client: EngineClient) -> None:
    async with FakeGroup(2, timings=replace(FAST, watchdog=60)) as group:
        await group.inject(0, "engine_kill")
        code, body = await client.complete(group.url(0))
        error = body["error"]
        assert (code, error["type"], error["message"]) == (
            500,
            "InternalServerError",
            "The server had an error while processing your request.",
        )
        await _refuses(client, group.url(0))


async def _refuses(client: EngineClient, url: str) -> None:
    while True:
        try:
            await client.call("GET", f"{url}/health")
        except aiohttp.ClientConnectionError:
            return
        await asyncio.sleep(0.01)
