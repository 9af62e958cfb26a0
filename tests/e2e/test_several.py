"""Several instances under one Controller."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.e2e.checks import applied_once, completions_work, decided, scaled_down
from tests.e2e.conftest import Start
from tests.support.cluster import SCALED, Shape
from tests.support.cluster.hardware import Hardware
from tests.support.engine.config import FAST

PATIENT = {
    **SCALED,
    "dp_scale_down_config": {"request_timeout_sec": 20.0, "poll_interval_sec": 0.2, "execution_deadline_sec": 20.0},
    "hardware_ft_correlation_window_sec": 600.0,
}

WINDOW = {f"PHASE_{name}" for name in ("DECIDING", "WAITING_ENGINE_FAULT", "SCALING_DOWN", "POST_SCALE_CLEANUP")}


async def test_two_instances_that_fail_at_the_same_moment_recover_side_by_side(start: Start) -> None:
    """Prefill and decode on one node, which the fault of one's card does not confuse; neither waits for the other."""
    prefill = Shape(
        pods=((0, 1),),
        timings=replace(FAST, recovery_window=120.0),
        fault_tolerance=PATIENT,
        proxied_pods=(0,),
        job="prefill",
        role="prefill",
    )
    decode = replace(prefill, job="decode", role="decode", first_card=2)
    async with start(prefill, decode) as (cluster, evidence), Hardware(cluster) as hardware:
        both = cluster.deployments
        hardware.breaks("Ascend910-3", node=0)
        await decided(both[1], "wait: ", "L6 80E18402 on Ascend910-3 of node-0 (ranks [1])")
        for each in both:
            each.proxies[0].cut()
        await asyncio.gather(*(each.inject("worker_kill", 1) for each in both))
        await asyncio.gather(*(each.phase("DECIDING") for each in both))
        for each in both:
            each.proxies[0].heal()
        await asyncio.gather(*(scaled_down(each, [1]) for each in both))
        for each in both:
            applied_once(await each.applies(), {0}, [1])
        transactions = [
            [
                state["at"]
                for state in evidence.states
                if state["job_name"] == each.shape.job and state.get("request_id")
            ]
            for each in both
        ]
        assert max(times[0] for times in transactions) < min(times[-1] for times in transactions)
        told = [state["last_decision"] for state in evidence.states if state["job_name"] == "prefill"]
        assert not any("Ascend910-3" in decision for decision in told)
        await completions_work(cluster)
