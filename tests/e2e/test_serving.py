"""Row 22: the recovery is committed, and the Coordinator is not there to be told."""

from __future__ import annotations

from dataclasses import replace

from motor_ft.v1 import controller_pb2 as pb
from tests.e2e.checks import applied_once, completions_work, scaled_down, view_ranks
from tests.e2e.conftest import Start
from tests.support.cluster import SCALED, Shape
from tests.support.engine.config import FAST

PATIENT = {"request_timeout_sec": 2.0, "poll_interval_sec": 0.2, "execution_deadline_sec": 15.0}


async def test_row_22_a_publication_that_fails_after_the_commit_takes_nothing_back(start: Start) -> None:
    """Shown as not serving until the Coordinator is back; then a SET converges, without a second apply."""
    shape = Shape(timings=replace(FAST, check_in=10.0), fault_tolerance={**SCALED, "dp_scale_down_config": PATIENT})
    async with start(shape) as (cluster, _):
        await cluster.inject("slow_check_in", 2, seconds=3.0)  # time to end the Coordinator between DEL and ADD
        await cluster.inject("worker_kill", 1)
        await cluster.phase("SCALING_DOWN")
        await cluster.inject_coordinator("down")
        seen = len(await cluster.views())
        pending = await cluster.until(lambda i: i.last_error.startswith("PUBLISH_PENDING"), "could not be published")
        assert pending.phase == pb.PHASE_SCALED_DOWN_RUNNING
        assert list(pending.dead_committed) == [1]
        assert (pending.serving_published, pending.can_serve) == (False, False)
        await cluster.inject_coordinator("up")
        published = await scaled_down(cluster, [1])
        assert published.generation == pending.generation
        await completions_work(cluster)
        applied_once(await cluster.applies(), {0, 2, 3}, [1])
        views = (await cluster.views())[seen:]
        assert {view["event"] for view in views} == {"set"}
        assert view_ranks(views[-1]) == {0, 2, 3}
