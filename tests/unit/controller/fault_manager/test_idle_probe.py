"""A rank dies while nothing runs: with the switch on, one completion lets the others notice (recovery.md section 9)."""

import asyncio
from dataclasses import replace

import pytest

from controller.core.phases import Phase
from motor_ft.model.errors import FtError, Reason
from tests.support.world.pods import TWO_PODS, D, H, U, registration
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

ON = replace(SETTINGS, idle_probe=True)
RECONFIGURED = ["instance_reconfiguration"]


def completions(world: World) -> dict[int, int]:
    """How often each engine was asked for a token."""
    return {rank: engine.completions for pod in world.pods.values() for rank, engine in sorted(pod.engines.items())}


async def collection_over(world: World) -> None:
    """Nobody has noticed anything until it was too late."""
    await world.until(lambda: world.controller.started)
    assert world.controller.started == RECONFIGURED


async def test_switched_off_nobody_is_asked() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.see(1, D)
        await collection_over(world)
        assert world.calls("probe") == []


async def test_engines_that_notice_by_it_are_scaled_down_as_any_others() -> None:
    async with World(*TWO_PODS, settings=ON) as world:
        await world.serve()

        async def notice() -> None:
            for rank in (0, 2, 3):
                await world.see(rank, U)

        world.pod(2).hold["probe"] = notice
        await world.see(1, D)
        await world.until(lambda: world.coordinator.ranks() == {0, 2, 3})
        assert world.status().dead_committed == (1,)


async def test_every_rank_is_asked_once_and_its_completion_is_no_evidence() -> None:
    """They serve, and still the instance is rebuilt: a DEAD rank does not become less dead by it."""
    async with World(*TWO_PODS, settings=ON, keeper=False) as world:
        await world.serve()
        await world.see(1, D)
        await collection_over(world)
        assert completions(world) == {0: 1, 1: 0, 2: 1, 3: 1}


async def test_they_have_time_to_notice_by_themselves_and_who_has_noticed_is_not_asked() -> None:
    async with World(*TWO_PODS, settings=ON, keeper=False) as world:
        await world.serve()
        await world.see(1, D)
        await asyncio.sleep(SETTINGS.strategy_center_check_interval - 0.1)
        assert world.calls("probe") == []
        await world.see(3, U)
        await collection_over(world)
        assert completions(world) == {0: 1, 1: 0, 2: 1, 3: 0}


async def test_without_a_dead_rank_nobody_is_asked() -> None:
    async with World(*TWO_PODS, settings=ON, keeper=False) as world:
        await world.serve()
        await world.see(1, U)
        await collection_over(world)
        assert world.calls("probe") == []


async def test_a_headless_endpoint_is_never_asked_and_a_failure_is_nobodys_business() -> None:
    pods = (registration(1, [0, 1]), registration(2, [2, 3], headless=[0]), registration(3, [], headless=[2]))
    async with World(*pods, settings=ON, keeper=False) as world:
        await world.serve()
        world.pod(1).refuses["probe"] = FtError(Reason.OUTCOME_UNKNOWN, "no answer")
        await world.see(1, D)
        await collection_over(world)
        assert world.calls("probe") == [("probe", pod.node_manager_address) for pod in pods[:2]]
        assert completions(world) == {0: 0, 1: 0, 2: 1, 3: 1}


async def test_the_next_incident_asks_again() -> None:
    async with World(*TWO_PODS, settings=ON, keeper=False) as world:
        await world.serve()
        for _ in range(2):
            await world.see(1, D)
            await asyncio.sleep(3 * SETTINGS.strategy_center_check_interval)
            await world.see(1, H)
        assert completions(world) == {0: 2, 1: 0, 2: 2, 3: 2}


async def test_while_a_strategy_runs_nobody_is_asked() -> None:
    """Survivors that have recovered are HEALTHY too, and their DEAD peer is not committed yet."""
    async with World(*TWO_PODS, settings=ON, keeper=False) as world:
        await world.serve()
        world.engine(2).recovers = False
        await world.lose(1)
        await world.until(lambda: world.status().phase is Phase.RECONFIGURING)
        assert world.observed.strategies[0] == ("dp_scale_down", "failed")
        assert world.calls("probe") == []
