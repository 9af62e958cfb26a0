"""A Controller that ends in good order, because another one takes over: no transaction is left half-done."""

import asyncio

import pytest

from controller.core.phases import Phase
from tests.support.world.pods import TWO_PODS, D, U, registration
from tests.support.world.world import World

pytestmark = pytest.mark.looptime


async def handed_over(world: World) -> None:
    """The next Controller takes over, and the survivors serve, in the same instance."""
    await world.kill()
    await world.restart()
    await world.until(lambda: world.status().dead_committed == (1,) and world.can_serve())
    assert world.status().phase is Phase.SCALED_DOWN_RUNNING
    assert world.stops == []


async def held(world: World, method: str) -> tuple[asyncio.Event, asyncio.Task[None]]:
    """Rank 1 has died, and the transaction has come to this command when the Controller is told to hand over."""
    await world.serve()
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        reached.set()
        await go_on.wait()

    world.pod(1).hold[method] = wait
    await world.lose(1)
    await reached.wait()
    return go_on, world.tasks.spawn("drain", world.manager.drain(20))


async def test_a_transaction_before_apply_is_taken_back_and_begun_anew_by_the_next_controller() -> None:
    async with World(*TWO_PODS) as world:
        go_on, drain = await held(world, "guard")
        await asyncio.sleep(1)
        assert not drain.done()
        go_on.set()
        await drain
        assert world.store.written[-1].phase is Phase.NORMAL
        assert world.applies() == {}
        assert world.coordinator.ranks() == {0, 1, 2, 3}
        await handed_over(world)
        assert [len(told) for told in world.applies().values()] == [1, 1, 1]


async def test_a_transaction_after_apply_is_carried_to_its_end() -> None:
    async with World(*TWO_PODS) as world:
        go_on, drain = await held(world, "commit")
        await asyncio.sleep(1)
        assert not drain.done()
        go_on.set()
        await drain
        assert world.store.written[-1].phase is Phase.SCALED_DOWN_RUNNING
        assert world.coordinator.ranks() == {0, 2, 3}
        await handed_over(world)
        assert [len(told) for told in world.applies().values()] == [1, 1, 1]


async def test_what_takes_too_long_is_left_to_the_next_controller() -> None:
    async with World(*TWO_PODS) as world:
        _, drain = await held(world, "commit")
        begun = world.clock.now()
        world.pod(1).silent = True
        await drain
        assert world.clock.now() - begun <= 20
        assert world.store.written[-1].phase is Phase.SCALING_DOWN


async def test_a_fault_that_comes_then_is_the_next_controllers() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.manager.drain(20)
        await world.lose(1)
        await asyncio.sleep(30)
        assert world.controller.started == []
        await handed_over(world)


async def test_an_instance_that_comes_then_is_recovered_by_the_next_controller() -> None:
    async with World(*TWO_PODS) as world:
        go_on, drain = await held(world, "guard")
        newcomer = world.add(registration(3, [0, 1], job="other", dp_size=2))
        await newcomer.connect()
        await world.until(lambda: world.can_serve(2))
        await newcomer.see(0, D)
        await newcomer.see(1, U)
        await asyncio.sleep(10)
        assert world.controller.started == ["dp_scale_down"]
        go_on.set()
        await drain
