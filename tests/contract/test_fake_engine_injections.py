"""Every injection of engine-contract.md section 2.6 does what it says, seen from the wire."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest

from tests.support.engine import FAST, FakeGroup
from tests.support.engine.client import EngineClient
from tests.support.engine.injections import InjectionError

SHORT = replace(FAST, check_in=0.5, store_timeout=0.5)
"""For tests in which a round must time out."""
STATUS = "/v1/fault_tolerance/status"


@pytest.fixture
async def client() -> AsyncIterator[EngineClient]:
    async with EngineClient() as client:
        yield client


@pytest.fixture
async def group() -> AsyncIterator[FakeGroup]:
    async with FakeGroup(3, timings=SHORT) as group:
        yield group


async def unhealthy(group: FakeGroup, *ranks: int) -> None:
    await group.until(lambda: all(group.statuses()[r] == "unhealthy" for r in ranks))


async def remove_2(group: FakeGroup, client: EngineClient, *ranks: int) -> None:
    for rank in ranks:
        await client.apply(group.url(rank), "scale_down", "a", removed_dp_ranks=[2])


async def test_unknown_injections_and_ranks_are_refused_by_name(group: FakeGroup) -> None:
    with pytest.raises(InjectionError, match="no injection 'boom'; there are: "):
        await group.inject(0, "boom")
    with pytest.raises(InjectionError, match=r"needs one of the ranks \[0, 1, 2\], not None"):
        await group.inject(None, "worker_kill")


async def test_engine_kill_keeps_the_status_until_the_watchdog_and_peers_notice(
    group: FakeGroup, client: EngineClient
) -> None:
    await group.inject(2, "engine_kill")
    assert (await client.status(group.url(2)))["status"] == "healthy"
    await unhealthy(group, 0, 1)
    assert group.entry(0)["mask"] == [0, 0, 1]
    await group.until(lambda: group.rank(2).process.name == "GONE")


async def test_frontend_loss_is_no_rank_loss(group: FakeGroup, client: EngineClient) -> None:
    await group.inject(2, "frontend_kill")
    with pytest.raises(aiohttp.ClientConnectionError):
        await client.status(group.url(2))
    assert (await client.complete(group.url(0)))[0] == 200
    await group.inject(2, "frontend_restore")
    assert (await client.status(group.url(2)))["status"] == "healthy"


async def test_a_frozen_rank_keeps_healthy_and_its_requests_hang_until_peers_notice(
    group: FakeGroup, client: EngineClient
) -> None:
    await group.inject(2, "freeze")
    hanging = asyncio.create_task(client.complete(group.url(2)))
    await unhealthy(group, 0, 1)
    assert group.entry(0)["mask"] == [0, 0, 1]
    assert (await client.status(group.url(2)))["status"] == "healthy"
    assert not hanging.done()
    await group.inject(2, "unfreeze")
    assert (await hanging)[1]["choices"][0]["finish_reason"] == "abort"
    await unhealthy(group, 2)


async def test_detection_can_be_delayed_or_never_happen_on_one_rank(group: FakeGroup) -> None:
    await group.inject(1, "detection_delay", seconds=None)
    await group.inject(2, "worker_kill")
    await unhealthy(group, 0)
    assert group.statuses()[1] == "healthy"
    await group.inject(1, "detection_delay", seconds=0)
    await unhealthy(group, 1)


async def test_a_failed_mask_query_leaves_the_mask_out(group: FakeGroup) -> None:
    await group.inject(0, "mask_query_fails")
    await group.inject(2, "worker_kill")
    await unhealthy(group, 0, 1)
    assert "mask" not in group.entry(0)
    assert "mask" in group.entry(1)


async def test_dropped_after_the_202(group: FakeGroup, client: EngineClient) -> None:
    await group.inject(2, "worker_kill")
    await unhealthy(group, 0, 1)
    await group.inject(1, "drop_after_202")
    await remove_2(group, client, 0, 1)
    await group.until(lambda: group.entry(0).get("ft_state") == "failed")
    assert "ft_state" not in group.entry(1)
    assert group.applies(1)[-1].status == 202


@pytest.mark.parametrize("run", [True, False])
async def test_dropped_before_the_reply_the_command_may_have_run(
    group: FakeGroup, client: EngineClient, run: bool
) -> None:
    await group.inject(2, "worker_kill")
    await unhealthy(group, 0, 1)
    await group.inject(1, "drop_before_reply", run=run, times=1)
    with pytest.raises(aiohttp.ClientConnectionError):
        await remove_2(group, client, 1)
    assert group.applies(1)[-1].status is None
    await remove_2(group, client, 0)
    await group.until(lambda: "ft_state" in group.entry(0) or group.statuses()[0] == "healthy")
    await group.until(lambda: group.entry(0).get("ft_state") != "recovering")
    assert group.statuses()[0] == ("healthy" if run else "unhealthy")


async def test_a_refused_apply_never_reaches_the_engine(group: FakeGroup, client: EngineClient) -> None:
    await group.inject(0, "apply_error", status=503, message="try later", times=1)
    code, body = await client.apply(group.url(0), "retry", "a")
    assert (code, body["error"]["message"]) == (503, "try later")
    assert group.entry(0) == {"id": 0, "status": "healthy"}
    assert (await client.apply(group.url(0), "retry", "a"))[0] == 202


async def test_a_slow_check_in_fails_the_peers(group: FakeGroup, client: EngineClient) -> None:
    await group.inject(2, "worker_kill")
    await unhealthy(group, 0, 1)
    await group.inject(1, "slow_check_in", seconds=1)
    await remove_2(group, client, 0, 1)
    await group.until(lambda: group.entry(0).get("ft_state") == "failed")
    assert "Not all engines joined" in str(group.entry(0)["ft_error"])


async def test_the_stale_gap_shows_the_previous_attempt(group: FakeGroup, client: EngineClient) -> None:
    await client.apply(group.url(0), "retry", "old")
    await group.until(lambda: group.entry(0).get("ft_state") == "failed")
    await group.inject(0, "stale_gap", seconds=1)
    await client.apply(group.url(0), "retry", "new")
    assert (await client.status(group.url(0)))["last_ft_request_id"] == "old"
    await group.until(lambda: group.entry(0).get("last_ft_request_id") == "new")


async def test_no_redundant_experts_is_terminal(group: FakeGroup, client: EngineClient) -> None:
    await group.inject(2, "worker_kill")
    await unhealthy(group, 0, 1)
    await group.inject(0, "no_redundant_experts")
    await remove_2(group, client, 0, 1)
    await group.until(lambda: group.statuses()[0] == group.statuses()[1] == "dead")
    await group.until(lambda: "num_redundant_experts > 0" in str(group.entry(0).get("ft_error")))


async def test_window_expiry_on_demand(group: FakeGroup, client: EngineClient) -> None:
    await group.inject(0, "window_expiry")
    assert (await client.call("GET", f"{group.url(0)}/health"))[0] == 503


async def test_a_restart_behind_our_back_is_healthy_with_another_identity(
    group: FakeGroup, client: EngineClient
) -> None:
    before = group.rank(2).incarnation
    await group.inject(2, "worker_kill")
    await group.inject(2, "restart")
    assert await client.status(group.url(2)) == {"id": 2, "status": "healthy"}
    assert group.rank(2).incarnation != before
    await unhealthy(group, 0, 1)


async def test_a_rebuilt_group_is_a_new_generation_on_the_same_ports(group: FakeGroup, client: EngineClient) -> None:
    url = group.url(0)
    await group.inject(2, "engine_kill")
    await group.until(lambda: group.rank(2).process.name == "GONE")
    await group.rebuild()
    assert group.url(0) == url
    assert group.rank(0).group.generation == 2
    for rank in range(3):
        assert await client.status(group.url(rank)) == {"id": rank, "status": "healthy"}
    assert (await client.complete(url))[0] == 200


@pytest.mark.parametrize(
    ("name", "params", "expected"),
    [
        ("wrong_id", {"id": 9}, {"schema_version": 1, "total_engines": 1, "engines": [{"id": 9, "status": "healthy"}]}),
        (
            "unknown_status",
            {"value": "paused"},
            {"schema_version": 1, "total_engines": 1, "engines": [{"id": 0, "status": "paused"}]},
        ),
        (
            "schema_version",
            {"value": 2},
            {"schema_version": 2, "total_engines": 1, "engines": [{"id": 0, "status": "healthy"}]},
        ),
        ("non_json", {}, "<html>proxy error</html>"),
    ],
)
async def test_a_status_that_lies_until_cleared(
    group: FakeGroup, client: EngineClient, name: str, params: dict[str, object], expected: object
) -> None:
    await group.inject(0, name, **params)
    assert await client.call("GET", group.url(0) + STATUS) == (200, expected)
    await group.clear(0, name)
    assert await client.status(group.url(0)) == {"id": 0, "status": "healthy"}


async def test_unauthorized_covers_v1(group: FakeGroup, client: EngineClient) -> None:
    await group.inject(0, "unauthorized")
    assert (await client.call("GET", group.url(0) + STATUS))[0] == 401
    assert (await client.complete(group.url(0)))[0] == 401


async def test_healthy_but_completions_fail(group: FakeGroup, client: EngineClient) -> None:
    await group.inject(0, "completions_fail")
    assert (await client.status(group.url(0)))["status"] == "healthy"
    assert (await client.complete(group.url(0)))[0] == 500


async def test_injections_work_over_http_and_the_state_shows_them(group: FakeGroup, client: EngineClient) -> None:
    fake = f"{group.url(1)}/_fake"
    assert await client.call("POST", f"{fake}/inject", json={"name": "wrong_id", "rank": 0, "id": 5}) == (200, {})
    assert await client.call("POST", f"{fake}/inject", json={"name": "completions_fail"}) == (200, {})
    state = (await client.call("GET", f"{fake}/state"))[1]
    assert state["ranks"]["0"]["armed"] == ["wrong_id"]
    assert state["ranks"]["1"]["armed"] == ["completions_fail"]
    assert (await client.call("POST", f"{fake}/clear", json={"name": "wrong_id", "rank": 0}))[0] == 200
    assert (await client.call("POST", f"{fake}/inject", json={"name": "boom"}))[0] == 400
