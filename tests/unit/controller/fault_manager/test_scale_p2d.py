"""Scale P2D: a decode instance with broken hardware gets the place of one prefill instance, never of the last."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from controller.core.phases import Phase
from controller.fault_manager.environment import Settings
from motor_ft.model.hardware import FaultLevel, HardwareFault, SourceState
from motor_ft.model.topology import EndpointStatus, Registration, Role
from tests.support.world.adapters import Trouble
from tests.support.world.hardware import SOURCE, WORKING, FakeAdapter, card, with_cards
from tests.support.world.pods import D, registration
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

OFF = replace(SETTINGS, enable_dp_scale_down=False)
WAIT = OFF.scale_p2d_wait


def pod(number: int, job: str, role: Role, model: str = "model") -> Registration:
    """The only pod of its job."""
    return replace(with_cards(registration(number, [0, 1], job=job, dp_size=2)), role=role, model_name=model)


def decode(number: int) -> Registration:
    return pod(number, f"decode-{number}", Role.DECODE)


def prefill(number: int, model: str = "model") -> Registration:
    return pod(number, f"prefill-{number}", Role.PREFILL, model)


@asynccontextmanager
async def serving(
    *pods: Registration, faults: Sequence[HardwareFault] = (), settings: Settings = OFF
) -> AsyncIterator[tuple[World, FakeAdapter]]:
    """Instance N is that of pod N; these faults were there before."""
    async with World(*pods, settings=settings) as world:
        adapter = FakeAdapter(world)
        await adapter.connect(*faults)
        for number in range(1, len(pods) + 1):
            await world.pod(number).connect()
            await world.until(partial(world.can_serve, number))
        yield world, adapter


def stopped(world: World) -> list[tuple[int, int]]:
    """(instance, generation) of every Stop, in their order."""
    return [(command.instance_id, command.generation or 0) for _, command, _ in world.stops]


async def test_an_instance_that_recovers_by_itself_serves_again_and_nobody_is_stopped() -> None:
    async with serving(decode(1), prefill(2), prefill(3)) as (world, adapter):
        written = len(world.store.written)
        await adapter.tell(card(0, 1))
        await world.until(lambda: world.coordinator.ranks(1) == set())
        await asyncio.sleep(WAIT - 2)
        await adapter.clear(card(0, 1))
        await world.until(lambda: world.coordinator.ranks(1) == {0, 1})
        await world.until(lambda: world.can_serve(1))
        await asyncio.sleep(2 * WAIT)
        assert world.observed.strategies == [("scale_p2d", "succeeded")]
        assert world.calls() == []
        assert len(world.store.written) == written


async def test_after_its_time_one_prefill_instance_gives_way_and_then_the_instance_is_rebuilt() -> None:
    """Each Stop carries the fence of the instance that it is for; the other prefill instance serves all the time."""
    async with serving(decode(1), prefill(2), prefill(3)) as (world, adapter):
        start = world.clock.now()
        await adapter.tell(card(0, 1))
        await world.until(lambda: world.stops)
        assert world.clock.now() - start == pytest.approx(WAIT, abs=2.0)
        await adapter.clear(card(0, 1))
        await world.until(lambda: world.can_serve(4) and world.can_serve(5))
        assert stopped(world) == [(3, 2), (1, 2)]
        assert world.stops[0][2] == "FREED_FOR_DECODE: decode instance 1 needs its hardware"
        assert world.can_serve(2)
        assert ("del", 2) not in {(event, instance) for event, instance, _ in world.coordinator.sent}
        assert ("scale_p2d", "succeeded") in world.observed.strategies


@pytest.mark.parametrize("others", [[], [prefill(2)], [prefill(2), prefill(3, model="another")]])
async def test_the_last_prefill_instance_of_the_model_stays_and_the_instance_is_rebuilt(
    others: list[Registration],
) -> None:
    async with serving(decode(1), *others) as (world, adapter):
        await adapter.tell(card(0, 1))
        await world.until(lambda: world.stops, timeout=2 * WAIT)
        await adapter.clear(card(0, 1))
        await world.until(lambda: world.can_serve(len(others) + 2))
        assert stopped(world) == [(1, 2)]


@pytest.mark.parametrize("spares", [2, 3])
async def test_two_decode_instances_at_once_never_get_the_same_or_the_last(spares: int) -> None:
    async with serving(decode(1), decode(2), *[prefill(3 + number) for number in range(spares)]) as (world, adapter):
        await adapter.tell(card(0, 1), card(0, 2))
        await world.until(lambda: {1, 2} <= {instance for instance, _ in stopped(world)}, timeout=2 * WAIT)
        assert sorted(instance for instance, _ in stopped(world)) == [1, 2, *range(4, 3 + spares)]
        assert world.can_serve(3)


async def test_a_prefill_instance_that_has_troubles_of_its_own_is_neither_taken_nor_counted() -> None:
    async with serving(decode(1), prefill(2), prefill(3)) as (world, adapter):
        await adapter.tell(card(0, 3), card(0, 1))
        await world.until(lambda: world.stops, timeout=2 * WAIT)
        await asyncio.sleep(WAIT)
        assert {instance for instance, _ in stopped(world)} == {1}


async def test_a_prefill_instance_that_a_former_controller_isolated_does_not_count() -> None:
    """As long as nobody says that its hardware is well; the one that serves would be the last."""
    async with serving(decode(1), prefill(2), prefill(3)) as (world, adapter):
        await adapter.tell(card(0, 2))
        await world.until(lambda: world.coordinator.ranks(2) == set())
        await world.kill()
        await world.restart()
        lost = SourceState(SOURCE, "node-2", "not watched any more")
        await FakeAdapter(world).connect(card(0, 1), sources=[WORKING, lost])
        await world.until(lambda: world.stops, timeout=2 * WAIT)
        await asyncio.sleep(WAIT)
        assert {instance for instance, _ in stopped(world)} == {1}


async def test_a_prefill_instance_that_nobody_reaches_does_not_hold_up_the_rebuilding() -> None:
    async with serving(decode(1), prefill(2), prefill(3)) as (world, adapter):
        world.pod(3).silent = True
        await adapter.tell(card(0, 1))
        await world.until(lambda: world.stops, timeout=WAIT + 2 * (OFF.heartbeat_ttl + OFF.limits.lease))
        assert stopped(world) == [(1, 2)]


async def test_a_controller_that_ends_while_it_waits_begins_anew() -> None:
    async with serving(decode(1), prefill(2), prefill(3)) as (world, adapter):
        await adapter.tell(card(0, 1))
        await world.until(lambda: world.controller.started == ["scale_p2d"])
        assert {record.phase for record in world.store.written} == {Phase.NORMAL}
        await world.kill()
        await world.restart()
        await FakeAdapter(world).connect()
        await world.until(lambda: world.can_serve(1))
        assert world.stops == []


async def test_with_scale_down_a_failover_makes_no_other_case_of_an_instance_that_is_long_inactive() -> None:
    """Its engines were not waited for, and are not by the next Controller; nor is it published meanwhile."""
    async with serving(decode(1), prefill(2), prefill(3), settings=SETTINGS) as (world, adapter):
        world.pod(1).normal[0] = EndpointStatus.ABNORMAL
        await asyncio.sleep(SETTINGS.heartbeat_ttl + SETTINGS.correlation_window)
        await adapter.tell(card(0, 1))
        await world.until(lambda: world.controller.started == ["scale_p2d"])
        await world.kill()
        await world.restart()
        await FakeAdapter(world).connect(card(0, 1))
        await world.until(lambda: world.controller.started == ["scale_p2d"])
        assert world.coordinator.ranks(1) == set()


async def test_a_controller_that_ends_after_it_took_a_prefill_instance_takes_no_other() -> None:
    """The next one rebuilds, whether the instance that was taken has given way or not."""
    async with serving(decode(1), prefill(2), prefill(3), prefill(4)) as (world, adapter):
        world.pod(4).hold["stop"] = asyncio.Event().wait
        await adapter.tell(card(0, 1))
        await world.until(lambda: world.calls("stop"), timeout=2 * WAIT)
        assert world.calls("stop") == [("stop", world.pod(4).address)]
        await world.kill()
        world.pod(4).hold.clear()
        await world.restart()
        await FakeAdapter(world).connect(card(0, 1))
        await world.until(lambda: world.can_serve(5) and world.can_serve(6))
        await asyncio.sleep(2 * WAIT)
        assert sorted(instance for instance, _ in stopped(world)) == [1, 4]


async def test_a_controller_that_ends_before_it_took_a_prefill_instance_leaves_a_rebuilding() -> None:
    async with serving(decode(1), prefill(2), prefill(3)) as (world, adapter):
        world.store.script[Phase.RECONFIGURING] = Trouble.KILLED_AFTER
        await adapter.tell(card(0, 1))
        await world.store.killed.wait()
        assert world.stops == []
        await world.kill()
        await world.restart()
        await FakeAdapter(world).connect()
        await world.until(lambda: world.can_serve(4))
        assert [instance for instance, _ in stopped(world)] == [1]


async def test_a_prefill_instance_that_could_not_give_way_in_time_is_let_be() -> None:
    """Nor when its automation was paused meanwhile, and is resumed much later."""
    async with serving(decode(1), prefill(2), prefill(3), faults=[card(0, 3)]) as (world, adapter):
        await adapter.tell(card(0, 1))
        await asyncio.sleep(WAIT - 2)
        world.store.script["identity"] = Trouble.NEVER_WRITTEN
        await adapter.clear(card(0, 3))  # its baseline is to be written, and nothing is decided before
        await world.until(lambda: world.stops, timeout=2 * (WAIT + OFF.heartbeat_ttl + OFF.limits.lease))
        del world.store.script["identity"]
        await asyncio.sleep(2 * WAIT)
        assert [instance for instance, _ in stopped(world)] == [1]
        assert world.can_serve(3)


async def test_a_rebuilding_that_fails_after_it_stops_automation() -> None:
    """It is not tried a second time."""
    async with serving(decode(1)) as (world, adapter):
        world.keeper = False
        await adapter.tell(card(0, 1))
        await world.until(lambda: world.status(1).automation_stopped, timeout=WAIT + 2 * OFF.assemble_timeout)
        assert world.controller.started == ["scale_p2d"]
        assert world.status(1).last_error.startswith("RECONFIGURATION_FAILED")


async def test_a_fault_that_clears_while_engines_are_dead_does_not_bring_it_back() -> None:
    """Its hardware is well again, so it is not this strategy's case any more; the engines are judged then."""
    async with serving(decode(1), prefill(2), prefill(3)) as (world, adapter):
        await adapter.tell(card(0, 1))
        await world.until(lambda: world.controller.started == ["scale_p2d"])
        await world.pod(1).exit(0)
        await adapter.clear(card(0, 1))
        await world.until(lambda: world.controller.started == ["scale_p2d", "engine_relaunch"])
        assert world.observed.strategies == [("scale_p2d", "cancelled")]
        assert world.stops == []


async def test_token_reinference_goes_first() -> None:
    async with serving(decode(1), prefill(2), prefill(3)) as (world, adapter):
        await adapter.tell(card(0, 1))
        await world.until(lambda: world.controller.started == ["scale_p2d"])
        await adapter.tell(card(1, 1, level=FaultLevel.L2, code="0x08520003"))
        await world.until(lambda: world.controller.started == ["scale_p2d", "token_reinference"])
        assert world.observed.strategies == [("scale_p2d", "cancelled")]


async def test_a_dead_engine_alone_frees_nothing() -> None:
    async with serving(decode(1), prefill(2), prefill(3)) as (world, _):
        await world.pod(1).see(0, D)
        await world.until(lambda: world.controller.started == ["engine_relaunch"])
        await asyncio.sleep(2 * WAIT)
        assert world.stops == []
