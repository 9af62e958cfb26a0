"""Rows 1, 3, 4, 5, 11 and 12: the dead rank is removed, the others serve again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.checks import (
    applied_once,
    by_request,
    commands,
    completions_work,
    refreshed,
    scaled_down,
    view_ranks,
)
from tests.e2e.conftest import Start
from tests.support.cluster import Cluster, Shape


async def store_host(cluster: Cluster, rank: int) -> int:
    """Rank that the engine of ``rank`` takes for the store master."""
    async with cluster.http.get(f"{cluster.group_url}/_fake/state") as response:
        state: dict[str, Any] = await response.json()
    return int(state["ranks"][str(rank)]["store_host"])


@pytest.mark.parametrize("how", ["worker killed", "engine process killed"])
async def test_row_01_an_ordinary_dead_rank_is_removed_and_the_survivors_serve(start: Start, how: str) -> None:
    """One apply; only that rank is removed; the survivors are published; completions work again."""
    async with start(Shape()) as (cluster, evidence):
        if how == "worker killed":
            await cluster.inject("worker_kill", 1)
        else:
            cluster.kill_engine(1)
        instance = await scaled_down(cluster, [1])
        applied_once(await cluster.applies(), {0, 2, 3}, [1])
        await completions_work(cluster)
        views = await cluster.views()
        assert view_ranks([view for view in views if view["event"] == "add"][-1]) == {0, 2, 3}
        assert evidence.completions[0]["status"] == 200
        told = await commands(cluster, instance)
        assert {told[method] for method in ("Apply(scale_down)", "Finalize(commit)")} == {len(cluster.pods)}
        assert told.keys() == {"Guard", "Apply(scale_down)", "Probe", "Finalize(commit)"}


async def test_row_03_rank_0_dies_and_the_lowest_survivor_becomes_the_store_master(start: Start) -> None:
    """Address and port are the same and right on every survivor; nobody is renumbered."""
    async with start(Shape()) as (cluster, _):
        await cluster.inject("worker_kill", 0)
        await scaled_down(cluster, [0])
        applied_once(await cluster.applies(), {1, 2, 3}, [0])
        assert [await store_host(cluster, rank) for rank in (1, 2, 3)] == [1, 1, 1]
        await completions_work(cluster)


async def test_row_04_the_second_round_is_cumulative_and_no_view_brings_a_dead_rank_back(start: Start) -> None:
    """Round 2 carries both ranks; its DEL and every later view are without the rank of round 1."""
    async with start(Shape()) as (cluster, _):
        await cluster.inject("worker_kill", 1)
        first = await scaled_down(cluster, [1])
        seen = len(await cluster.views())
        await cluster.inject("worker_kill", 3)
        second = await scaled_down(cluster, [1, 3])
        rounds = by_request(await cluster.applies())
        assert len(rounds) == 2
        applied_once(rounds[second.request_id], {0, 2}, [1, 3])
        assert second.generation == first.generation + 1
        await refreshed(cluster, 2)
        for view in (await cluster.views())[seen:]:
            assert 1 not in view_ranks(view), view
        deletions = [view for view in (await cluster.views())[seen:] if view["event"] == "del"]
        assert [view_ranks(view) for view in deletions] == [{0, 2, 3}]
        assert [view["status"] for view in deletions] == [200]


async def test_row_05_the_store_master_moves_twice(start: Start) -> None:
    """Rank 0, then rank 1: each time the lowest survivor is the master."""
    async with start(Shape()) as (cluster, _):
        await cluster.inject("worker_kill", 0)
        await scaled_down(cluster, [0])
        assert await store_host(cluster, 3) == 1
        await cluster.inject("worker_kill", 1)
        second = await scaled_down(cluster, [0, 1])
        applied_once(by_request(await cluster.applies())[second.request_id], {2, 3}, [0, 1])
        assert await store_host(cluster, 3) == 2
        await completions_work(cluster)


async def test_row_11_several_dead_ranks_go_in_one_apply(start: Start) -> None:
    """Two ranks die at once; one apply names both."""
    async with start(Shape()) as (cluster, _):
        await cluster.inject("worker_kill", 1)
        await cluster.inject("worker_kill", 2)
        await scaled_down(cluster, [1, 2])
        applied_once(await cluster.applies(), {0, 3}, [1, 2])
        await completions_work(cluster)
