"""Row 9: every rank is UNHEALTHY and none is dead; the engines are told to try again, in place."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from motor_ft.v1 import controller_pb2 as pb
from tests.e2e.checks import completions_work, renewed, scaled_down, view_ranks
from tests.e2e.conftest import Start, in_process
from tests.support.cluster import SCALED, Cluster, Shape
from tests.support.cluster.shape import CAPABILITY
from tests.support.engine.config import Dialect
from tests.support.waiting import until

RELEASED = {
    **CAPABILITY,
    "dialect": "vllm_0_33",
    "scale_down_supported": False,
    "eplb": False,
    "num_redundant_experts": 0,
}
"""vLLM 0.33.0: retry is all that it can do."""


def shape(dialect: Dialect = Dialect.V1) -> Shape:
    tolerance = {**SCALED, "fast_recovery": True}
    capability = RELEASED if dialect is Dialect.V0_33 else CAPABILITY
    return Shape(dialect=dialect, fault_tolerance=tolerance, capability=dict(capability))


async def all_unhealthy(cluster: Cluster, *ranks: int) -> None:
    """A step fails on each of these ranks; their workers live."""
    for rank in ranks or range(4):
        await cluster.inject("step_exception", rank)


async def retried_once(cluster: Cluster, instance: pb.Instance) -> None:
    """One retry to each engine, under our id where the dialect has one, and nothing else to anybody."""
    told = await cluster.applies()
    assert Counter(apply["rank"] for apply in told) == Counter(range(4))
    body: dict[str, Any] = {"instruction": "retry", "params": {}}
    if cluster.shape.dialect == Dialect.V1:
        body["request_id"] = instance.request_id
    assert all(apply["body"] == body for apply in told), told


async def recovered(cluster: Cluster, old: pb.Instance) -> pb.Instance:
    """The same instance serves again with the same ranks, one transaction later."""
    new = await cluster.until(lambda i: i.generation > old.generation and i.can_serve, "serves again")
    assert (new.instance_id, new.phase, new.generation) == (old.instance_id, old.phase, old.generation + 1)
    assert list(new.alive_dp_ranks) == list(old.alive_dp_ranks)
    assert list(new.dead_committed) == list(old.dead_committed)
    assert (new.last_error, new.automation_stopped) == ("", False)
    return new


@pytest.mark.parametrize("dialect", [Dialect.V0_33, Dialect.V1])
async def test_row_09_all_unhealthy_retries_and_the_same_ranks_serve_again(start: Start, dialect: Dialect) -> None:
    """Withdrawn while it lasts; one retry for each engine; nothing is removed or stopped."""
    async with in_process(shape(dialect)) as shapes, start(*shapes) as (cluster, _):
        old = (await cluster.instances())[0]
        await all_unhealthy(cluster)
        new = await recovered(cluster, old)
        await retried_once(cluster, new)
        await completions_work(cluster)
        changes = [view for view in await cluster.views() if view["event"] in {"add", "del"}]
        assert [(view["event"], view_ranks(view)) for view in changes[-2:]] == [
            ("del", {0, 1, 2, 3}),
            ("add", {0, 1, 2, 3}),
        ]
        assert [i.instance_id for i in await cluster.instances()] == [old.instance_id]
        assert all(pod.starts == 1 for pod in cluster.pods)


@pytest.mark.parametrize(
    ("dialect", "injection", "code"),
    [
        (Dialect.V1, "vote_failure", "ENGINE_FAILED"),
        (Dialect.V0_33, "vote_failure", "ENGINE_FAILED"),
        (Dialect.V1, "drop_before_reply", "APPLY_NOT_ACCEPTED"),
        (Dialect.V0_33, "apply_error", "APPLY_NOT_ACCEPTED"),
    ],
)
async def test_row_09_a_failure_rebuilds_the_instance_and_removes_nobody(
    start: Start, dialect: Dialect, injection: str, code: str
) -> None:
    """No second retry and no scale-down, although the engines would take either."""
    async with in_process(shape(dialect)) as shapes, start(*shapes) as (cluster, _):
        old = (await cluster.instances())[0]
        await cluster.inject(injection, 2)
        await all_unhealthy(cluster)
        failed = await cluster.until(lambda i: i.phase == pb.PHASE_RECONFIGURING and i.last_error != "", "has failed")
        assert failed.last_error.startswith(code)
        assert list(failed.dead_committed) == []
        await renewed(cluster, old)
        await retried_once(cluster, failed)
        await completions_work(cluster)


async def test_row_09_the_ranks_that_are_left_after_a_scale_down_are_retried(start: Start) -> None:
    async with in_process(shape()) as shapes, start(*shapes) as (cluster, _):
        await cluster.inject("worker_kill", 1)
        down = await scaled_down(cluster, [1])
        removals = len(await cluster.applies())
        await all_unhealthy(cluster, 0, 2, 3)
        new = await recovered(cluster, down)
        told = (await cluster.applies())[removals:]
        assert Counter(apply["rank"] for apply in told) == Counter({0, 2, 3})
        assert {(apply["body"]["instruction"], apply["body"]["request_id"]) for apply in told} == {
            ("retry", new.request_id)
        }
        await completions_work(cluster)


async def test_row_09_a_controller_killed_in_it_never_retries(start: Start) -> None:
    """Restarted, it shows RECONFIGURING and rebuilds the instance."""
    async with in_process(shape()) as shapes, start(*shapes) as (cluster, _):
        old = (await cluster.instances())[0]
        await cluster.inject("drop_after_202", 2)
        await all_unhealthy(cluster)
        await until(lambda: _told(cluster, 4))
        interrupted = (await cluster.instances())[0]
        assert interrupted.phase == pb.PHASE_SCALING_DOWN
        await cluster.kill_controller()
        await cluster.start_controller()
        restored = await cluster.until(lambda i: i.instance_id == old.instance_id, "is restored")
        assert restored.phase == pb.PHASE_RECONFIGURING
        await renewed(cluster, old)
        await retried_once(cluster, interrupted)
        await completions_work(cluster)


async def _told(cluster: Cluster, count: int) -> bool:
    return len(await cluster.applies()) >= count
