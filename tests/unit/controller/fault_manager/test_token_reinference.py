"""Row 0: hardware that clears by itself is waited for, before everything else and never for long (recovery.md 4)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from controller.core.phases import Phase
from motor_ft.model.hardware import FaultLevel
from tests.support.world.hardware import FakeAdapter, card, with_cards
from tests.support.world.pods import TWO_PODS, D, U
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

TOKEN = card(1, 1, level=FaultLevel.L2, code="0x08520003")
OTHER = card(2, 2, level=FaultLevel.L2, code="0x00F1FEF5")
HOLD = SETTINGS.token_reinference_timeout


@asynccontextmanager
async def serving(*, enabled: bool = True, keeper: bool = True) -> AsyncIterator[tuple[World, FakeAdapter]]:
    settings = replace(SETTINGS, enable_token_reinference=enabled)
    async with World(*map(with_cards, TWO_PODS), settings=settings, keeper=keeper) as world:
        adapter = FakeAdapter(world)
        await adapter.connect()
        await world.serve()
        yield world, adapter


async def test_while_it_stands_nothing_else_starts_and_nothing_is_done_to_any_rank() -> None:
    async with serving() as (world, adapter):
        await adapter.tell(TOKEN)
        await world.until(lambda: world.controller.started == ["token_reinference"])
        await world.lose(1)
        await asyncio.sleep(HOLD - 1)
        assert world.calls() == []
        assert world.can_serve()


async def test_when_it_clears_what_is_left_is_judged_at_once() -> None:
    async with serving() as (world, adapter):
        await adapter.tell(TOKEN)
        await world.until(lambda: world.controller.started)
        await world.lose(1)
        await asyncio.sleep(10)
        await adapter.clear(TOKEN)
        start = world.clock.now()
        await world.until(lambda: len(world.controller.started) == 2)
        assert world.clock.now() - start < 0.5
        await world.until(lambda: world.status().dead_committed == (1,) and world.can_serve())
        assert world.observed.strategies == [("token_reinference", "cancelled"), ("dp_scale_down", "succeeded")]


async def test_it_is_waited_for_at_most_its_time_and_again_only_after_it_has_cleared() -> None:
    async with serving() as (world, adapter):
        await adapter.tell(TOKEN)
        await world.until(lambda: world.controller.started)
        start = world.clock.now()
        await world.until(lambda: world.observed.strategies)
        assert HOLD - 0.5 <= world.clock.now() - start < HOLD + 0.5
        await asyncio.sleep(2 * HOLD)
        assert world.controller.started == ["token_reinference"]
        await adapter.clear(TOKEN)
        await adapter.tell(TOKEN)
        await world.until(lambda: world.controller.started == 2 * ["token_reinference"])


async def test_one_wait_is_for_all_that_came_meanwhile() -> None:
    """A chain of faults cannot hold an instance for ever."""
    async with serving() as (world, adapter):
        await adapter.tell(TOKEN)
        await world.until(lambda: world.controller.started)
        await asyncio.sleep(HOLD / 2)
        await adapter.tell(OTHER)
        await asyncio.sleep(2 * HOLD)
        assert world.observed.strategies == [("token_reinference", "succeeded")]
        assert world.controller.started == ["token_reinference"]


async def test_a_fault_that_comes_and_goes_does_not_hold_back_dead_engines_for_ever() -> None:
    async with serving() as (world, adapter):
        await adapter.tell(TOKEN)
        await world.lose(1)
        for _ in range(3):
            await asyncio.sleep(5)
            await adapter.clear(TOKEN)
            await adapter.tell(TOKEN)
        await world.until(lambda: world.status().dead_committed == (1,) and world.can_serve())
        assert world.controller.started == ["token_reinference", "dp_scale_down"]


async def test_a_fault_that_is_away_for_a_while_does_not_cut_short_what_was_begun_meanwhile() -> None:
    """Once in an incident: else a flapping fault takes back every scale-down before it comes to its apply."""
    async with serving() as (world, adapter):
        await adapter.tell(TOKEN)
        await world.lose(1)
        await world.until(lambda: world.controller.started == ["token_reinference"])
        world.pod(2).hold["guard"] = lambda: adapter.tell(TOKEN)
        await adapter.clear(TOKEN)
        await world.until(lambda: world.status().dead_committed == (1,) and world.can_serve())
        assert world.observed.strategies == [("token_reinference", "cancelled"), ("dp_scale_down", "succeeded")]


@pytest.mark.parametrize("step", ["guard", "status"])
async def test_a_scale_down_before_its_apply_makes_way_and_is_begun_anew_afterwards(step: str) -> None:
    """Guards are aborted and the phase goes back before the next strategy starts; nobody is removed meanwhile."""
    async with serving() as (world, adapter):
        world.pod(2).hold[step] = lambda: adapter.tell(TOKEN) if not world.observed.strategies else asyncio.sleep(0)
        await world.lose(1)
        await world.until(lambda: len(world.controller.started) == 2)
        assert world.observed.strategies == [("dp_scale_down", "cancelled")]
        assert world.status().phase is Phase.NORMAL
        assert world.applies() == {}
        assert {address for method, address in world.calls("abort")} == {"10.0.0.1:9000", "10.0.0.2:9000"}
        assert world.can_serve()
        await adapter.clear(TOKEN)
        await world.until(lambda: world.status().dead_committed == (1,) and world.can_serve())
        assert world.controller.started == ["dp_scale_down", "token_reinference", "dp_scale_down"]
        assert all(len(told) == 1 for told in world.applies().values())


async def test_a_fast_recovery_that_made_way_is_tried_again() -> None:
    async with World(*map(with_cards, TWO_PODS), settings=replace(SETTINGS, fast_recovery=True)) as world:
        adapter = FakeAdapter(world)
        await adapter.connect()
        await world.serve()
        world.pod(2).hold["guard"] = lambda: adapter.tell(TOKEN)
        await world.lose()
        await world.until(lambda: len(world.controller.started) == 2)
        del world.pod(2).hold["guard"]
        await adapter.clear(TOKEN)
        await world.until(lambda: len(world.observed.strategies) == 3 and world.can_serve())
        assert world.observed.strategies == [
            ("fast_recovery", "cancelled"),
            ("token_reinference", "cancelled"),
            ("fast_recovery", "succeeded"),
        ]


@pytest.mark.parametrize("step", ["apply", "commit"])
async def test_from_the_scaling_down_write_on_the_outcome_comes_first(step: str) -> None:
    async with serving() as (world, adapter):
        world.pod(2).hold[step] = lambda: adapter.tell(TOKEN, OTHER)
        await world.lose(1)
        await world.until(lambda: len(world.controller.started) == 2)
        assert world.observed.strategies == [("dp_scale_down", "succeeded")]
        assert world.status().dead_committed == (1,)
        assert world.calls("abort") == []
        assert world.controller.started == ["dp_scale_down", "token_reinference"]


async def test_a_rebuild_is_never_cut_short() -> None:
    async with serving() as (world, adapter):
        world.pod(2).hold["stop"] = lambda: adapter.tell(TOKEN)
        await world.lose(0, 1, 2, 3)
        await world.until(lambda: world.can_serve(2))
        assert world.observed.strategies[0] == ("instance_reconfiguration", "succeeded")
        assert world.controller.started[0] == "instance_reconfiguration"


async def test_a_failed_scale_down_is_rebuilt_also_while_the_fault_stands() -> None:
    """The fallback is part of the same recovery: nothing waits between the two."""
    async with serving() as (world, adapter):
        world.engine(3).recovers = False
        world.pod(2).hold["apply"] = lambda: adapter.tell(TOKEN)
        await world.lose(1)
        await world.until(lambda: world.can_serve(2))
        assert world.controller.started[:2] == ["dp_scale_down", "instance_reconfiguration"]


@pytest.mark.parametrize(
    "fault",
    [replace(TOKEN, level=FaultLevel.L1), replace(TOKEN, fault_code="1"), replace(TOKEN, npu_name="Ascend910-7")],
    ids=["not L2", "another code", "another card"],
)
async def test_what_is_not_waited_for(fault: object) -> None:
    async with serving() as (world, adapter):
        await adapter.tell(fault)  # type: ignore[arg-type]
        await asyncio.sleep(2 * HOLD)
        assert world.controller.started == []


async def test_switched_off_nothing_is_waited_for() -> None:
    async with serving(enabled=False) as (world, adapter):
        await adapter.tell(TOKEN)
        await world.see(0, U)
        await world.see(2, U)
        await world.see(3, U)
        await world.see(1, D)
        await world.until(lambda: world.controller.started == ["dp_scale_down"])
