"""Rows 10, 12, 17, 18 and 20, and a Controller that dies: what is not safe ends in a rebuilt instance."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession

from motor_ft.v1 import controller_pb2 as pb
from tests.e2e.checks import applied_once, commands, completions_work, renewed, scaled_down
from tests.e2e.conftest import Start, in_process
from tests.support.cluster import SCALED, Cluster, Deployment, Shape
from tests.support.cluster.shape import CAPABILITY
from tests.support.engine import FakeGroup
from tests.support.engine.config import Dialect
from tests.support.waiting import until


@asynccontextmanager
async def serving(start: Start, shape: Shape) -> AsyncIterator[tuple[Cluster, pb.Instance]]:
    """A cluster with engines of this process, and its instance."""
    async with in_process(shape) as shapes, start(*shapes) as (cluster, _):
        yield cluster, (await cluster.instances())[0]


async def test_row_10_all_unhealthy_and_none_dead_guesses_nothing(start: Start) -> None:
    """No apply; when the collection is over the instance is rebuilt."""
    async with serving(start, Shape()) as (cluster, old):
        for rank in range(4):
            await cluster.inject("step_exception", rank)
        await renewed(cluster, old)
        assert await cluster.applies() == []
        await completions_work(cluster)


async def test_row_12_a_rank_that_dies_before_the_plan_is_frozen_goes_in_the_same_apply(start: Start) -> None:
    """Rank 2 dies while the guards are still on their way: one apply removes both."""
    async with serving(start, Shape(proxied_pods=(0,))) as (cluster, _):
        cluster.proxies[0].delay(0.4)
        await cluster.inject("worker_kill", 1)
        await cluster.phase("DECIDING")
        await cluster.inject("worker_kill", 2)
        await scaled_down(cluster, [1, 2])
        applied_once(await cluster.applies(), {0, 3}, [1, 2])
        await completions_work(cluster)


async def test_row_12_nobody_survives(start: Start) -> None:
    """The last survivor dies during apply-ready: no apply, a rebuilt instance."""
    async with serving(start, Shape(pods=((0,), (1,)), proxied_pods=(0,))) as (cluster, old):
        cluster.proxies[0].delay(0.4)
        await cluster.inject("worker_kill", 1)
        await cluster.phase("DECIDING")
        await cluster.inject("worker_kill", 0)
        await renewed(cluster, old)
        assert await cluster.applies() == []


GATE_REASONS: dict[str, dict[str, object]] = {
    "ENGINE_FT_REQUIRED": {"engine_ft": False},
    "ENGINE_SCALE_DOWN_UNSUPPORTED": {"scale_down_supported": False},
    "EXTERNAL_LB_REQUIRED": {"external_lb": False},
    "AUTO_RECOVERY_CONFLICT": {"auto_recovery": True},
    "EPLB_REQUIRED": {"eplb": False},
    "EXPERT_REDUNDANCY_REQUIRED": {"num_redundant_experts": 0},
}


def gated(reason: str) -> Shape:
    """A job that only this reason speaks against."""
    job = reason.lower().replace("_", "-")
    match reason:
        case "CAPABILITY_MISMATCH":
            other = {**CAPABILITY, "num_redundant_experts": 4}
            return Shape(pods=((0,), (1,)), job=job, pod_capabilities={1: other})
        case "CAPABILITY_MISSING":
            return Shape(pods=((0, 1),), job=job, capability={})
        case "RELEASED":
            released = {**CAPABILITY, "dialect": "vllm_0_33", **GATE_REASONS["ENGINE_SCALE_DOWN_UNSUPPORTED"]}
            return Shape(pods=((0, 1),), job=job, dialect=Dialect.V0_33, capability=released)
        case _:
            return Shape(pods=((0, 1),), job=job, capability={**CAPABILITY, **GATE_REASONS[reason]})


async def refused(deployment: Deployment, reason: str) -> None:
    """The reason is shown, no engine is commanded, the instance is rebuilt."""
    old = (await deployment.instances())[0]
    await deployment.inject("worker_kill", 1)
    seen = await deployment.until(lambda i: list(i.gate.reason_codes) == [reason], f"is refused with {reason}")
    assert not seen.gate.allowed
    await renewed(deployment, old)
    assert await deployment.applies() == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "half",
    [list(GATE_REASONS)[:4], [*list(GATE_REASONS)[4:], "CAPABILITY_MISMATCH", "CAPABILITY_MISSING", "RELEASED"]],
    ids=["engines", "experts and capability"],
)
async def test_row_17_each_static_gate_reason_alone_refuses_and_falls_back(start: Start, half: list[str]) -> None:
    """Jobs beside each other, one for each reason."""
    async with in_process(*map(gated, half)) as shapes, start(*shapes) as (cluster, _):
        reasons = [reason.replace("RELEASED", "ENGINE_SCALE_DOWN_UNSUPPORTED") for reason in half]
        await asyncio.gather(*map(refused, cluster.deployments, reasons))


async def test_row_17_sglang_is_only_read_and_rebuilt(start: Start) -> None:
    """One server for all ranks: the gate is closed whatever the capability says, with a survivor and without."""
    async with FakeGroup(2, "sglang") as group:
        shape = Shape(
            pods=((0, 1),),
            dialect=Dialect.SGLANG,
            capability={**CAPABILITY, "dialect": "sglang"},
            urls=(group.url(0), group.url(1)),
            group=group,
        )
        async with start(shape) as (cluster, _):
            old = (await cluster.instances())[0]
            await cluster.inject("worker_kill", 1)
            refused = await cluster.until(lambda i: list(i.gate.reason_codes) == ["DIALECT_CLOSED"], "is refused")
            assert not refused.gate.allowed
            old = await renewed(cluster, old)
            await completions_work(cluster)
            await cluster.inject("window_expiry", 0)
            await renewed(cluster, old)
            await completions_work(cluster)
            assert await cluster.applies() == []


FAILURES = {
    "not 202": ("apply_error", {"status": 503}, "APPLY_NOT_ACCEPTED"),
    "reply lost": ("drop_before_reply", {}, "APPLY_NOT_ACCEPTED"),
    "vote fails, engines dead": ("vote_failure", {}, "ENGINE_FAILED"),
    "accepted, never runs": ("drop_after_202", {}, ""),
    "healthy, serves nothing": ("completions_fail", {}, "ENGINE_FAILED"),
}


@pytest.mark.parametrize("how", FAILURES)
async def test_row_18_an_engine_that_fails_is_told_once_and_the_instance_is_rebuilt(start: Start, how: str) -> None:
    """One apply at the most for each engine, an abort, the fallback; never a second attempt."""
    injection, params, code = FAILURES[how]
    async with serving(start, Shape()) as (cluster, old):
        await cluster.inject(injection, 2, **params)
        await cluster.inject("worker_kill", 1)
        failed = await cluster.until(lambda i: i.phase == pb.PHASE_RECONFIGURING and i.last_error != "", "has failed")
        assert failed.last_error.startswith(code)
        assert list(failed.dead_committed) == []
        await renewed(cluster, old)
        counts = Counter(apply["rank"] for apply in await cluster.applies())
        assert counts.keys() <= {0, 2, 3}
        assert set(counts.values()) == {1}
        await completions_work(cluster)


async def test_row_18_a_survivor_that_cannot_be_read_after_apply(start: Start) -> None:
    """A query error after apply is a failure, not evidence for a second plan."""
    async with serving(start, Shape()) as (cluster, old):
        await cluster.inject("drop_after_202", 2)
        await cluster.inject("worker_kill", 1)
        await until(lambda: _applied(cluster, 3))
        await cluster.inject("non_json", 3)
        await renewed(cluster, old)
        assert Counter(apply["rank"] for apply in await cluster.applies()) == Counter({0: 1, 2: 1, 3: 1})


async def _applied(cluster: Cluster, count: int) -> bool:
    return len(await cluster.applies()) >= count


async def test_row_19_a_controller_killed_in_scaling_down_never_applies_again(start: Start) -> None:
    """Restarted, it shows RECONFIGURING, rebuilds the instance, and no engine was told twice."""
    async with serving(start, Shape()) as (cluster, old):
        await cluster.inject("drop_after_202", 2)
        await cluster.inject("worker_kill", 1)
        await until(lambda: _applied(cluster, 3))
        assert (await cluster.instances())[0].phase == pb.PHASE_SCALING_DOWN
        await cluster.kill_controller()
        await cluster.start_controller()
        restored = await cluster.until(lambda i: i.instance_id == old.instance_id, "is restored")
        assert restored.phase == pb.PHASE_RECONFIGURING
        assert not restored.can_serve
        await renewed(cluster, old)
        assert Counter(apply["rank"] for apply in await cluster.applies()) == Counter({0: 1, 2: 1, 3: 1})
        await completions_work(cluster)


@pytest.mark.parametrize("switch", ["enable_dp_scale_down", "enable_fault_tolerance"])
async def test_row_20_feature_off(start: Start, switch: str) -> None:
    """The FT routes answer 404 before they look at the body, and status says DISABLED.

    A faulty engine is met by the original strategy: here the instance is rebuilt, by Stop and no other command.
    """
    off = {**SCALED, switch: False, "enable_engine_relaunch": False}
    async with start(Shape(pods=((0,), (1,)), fault_tolerance=off)) as (cluster, _):
        await cluster.start_gateway()
        async with ClientSession() as http:
            for route in ("status", "apply", "guard", "finalize"):
                url = f"http://127.0.0.1:{cluster.pod_ports[0][1]}/node-manager/fault-tolerance/{route}"
                async with http.post(url, data=b"not json") as response:
                    assert response.status == 404, route
        assert await cluster.rest("/controller/fault_tolerance/status") == {"phase": "DISABLED", "instances": []}
        before = (await cluster.instances())[0]
        assert before.phase == pb.PHASE_DISABLED
        assert before.can_serve
        await cluster.inject("worker_kill", 1)
        after = await cluster.serving(after=before.instance_id)
        assert (after.phase, list(after.dead_committed)) == (pb.PHASE_DISABLED, [])
        assert (await commands(cluster, before)).keys() == {"Stop"}
        assert await cluster.applies() == []
