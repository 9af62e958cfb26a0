"""What a recovery needs and does not work is in the status, before a fault needs it."""

import pytest
from structlog.testing import capture_logs

from controller.core.reports import EngineFault
from motor_ft.model.engine import EngineObservation, EngineStatus, Problem
from tests.support.world.hardware import STARTING, FakeAdapter, with_cards
from tests.support.world.pods import TWO_PODS
from tests.support.world.world import World

pytestmark = pytest.mark.looptime


async def test_nothing_is_degraded_where_all_works() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        assert world.status().degraded == ()
        assert world.observed.degraded_by == {1: 0}


async def test_a_node_manager_that_is_away_is_named_until_it_is_back() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        away = f"NodeManager of pod {world.pod(2).registration.pod_name} is not connected"
        with capture_logs() as logs:
            await world.pod(2).disconnect()
            await world.until(lambda: world.status().degraded == (away,))
            await world.pod(2).connect()
            await world.until(lambda: not world.status().degraded)
        told = [(entry["log_level"], entry.get("what")) for entry in logs if "degraded" in entry["event"]]
        assert told == [("warning", (away,)), ("info", None)]


async def test_an_engine_that_cannot_be_read_is_named_with_the_reason_and_is_no_evidence() -> None:
    """Its gateway is down."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        pod = world.owner(1)
        reading = EngineObservation(
            1, EngineStatus.UNKNOWN, pod.engines[1].incarnation, problem=Problem.LOCAL, detail="the gateway is down"
        )
        await pod.tell(EngineFault(reading, None, 0.0))
        await world.until(lambda: world.status().degraded == ("engine of rank 1 cannot be read: the gateway is down",))
        assert world.observed.degraded_by == {1: 1}
        assert world.controller.started == []


async def test_an_adapter_whose_source_does_not_work_is_named() -> None:
    async with World(*map(with_cards, TWO_PODS)) as world:
        await world.serve()
        adapter = FakeAdapter(world)
        await adapter.connect(sources=[STARTING])
        await world.until(
            lambda: any("hardware evidence may be incomplete" in what for what in world.status().degraded)
        )
