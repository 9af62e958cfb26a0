"""Row 20 with engines that were started without fault tolerance: everything that reaches them is of the baseline."""

from __future__ import annotations

from motor_ft.v1 import controller_pb2 as pb
from tests.e2e.checks import commands, completions_work, view_ranks
from tests.e2e.conftest import Start
from tests.e2e.test_relaunch import OFF, engines
from tests.support.cluster import Shape

BASELINE = {"GET /health", "POST /v1/completions"}
"""Whether it lives, and what users ask of it."""


async def test_row_20_engines_without_fault_tolerance_serve_and_are_relaunched(start: Start) -> None:
    """No FT route is asked, not even to find out that there is none; a worker's death is seen by its process."""
    shape = Shape(pods=((0,), (1,)), fault_tolerance=OFF, engine_ft=False, capability={})
    async with start(shape) as (cluster, evidence):
        (before,) = await cluster.instances()
        await cluster.inject("worker_kill", 1)
        after = await cluster.until(lambda i: i.can_serve and i.generation > before.generation, "serves again")
        await completions_work(cluster)
        assert (after.instance_id, after.phase) == (before.instance_id, pb.PHASE_DISABLED)
        assert not set(engines(after).values()) & set(engines(before).values())
        assert (await commands(cluster, before)).keys() == {"RestartEngines"}
        assert set((await cluster.engine_log())["requests"]) == BASELINE
        assert {frozenset(view_ranks(view)) for view in await cluster.views()} == {frozenset(), frozenset({0, 1})}
        assert {state["phase"] for state in evidence.states} == {"PHASE_DISABLED"}
