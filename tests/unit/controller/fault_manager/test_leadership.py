"""The begin of a term, and what a Controller still does when another one leads."""

import asyncio

import pytest

from controller.store.memory import MemoryStore
from motor_ft.model.errors import FtError, Reason
from tests.support.world.adapters import Trouble
from tests.support.world.pods import TWO_PODS
from tests.support.world.world import Controller, World

pytestmark = pytest.mark.looptime


async def test_nothing_is_published_once_another_controller_leads() -> None:
    """The Coordinators would take the view of a former leader for the present one."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        assert world.manager.may_publish()
        await MemoryStore(world.shelf).lead()
        assert not world.manager.may_publish()


async def test_a_store_that_fails_right_after_the_election_is_asked_again() -> None:
    """A write whose answer is lost, then a read: what is stored is served."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.kill()
        world.controller = Controller(world, MemoryStore(world.shelf))
        world.store.script["lead"] = Trouble.ANSWER_LOST
        world.store.reads_fail = True
        begin = world.tasks.spawn("begin", world.controller.start())
        await asyncio.sleep(1)
        world.store.reads_fail = False
        await begin
        assert world.coordinator.ranks() == {0, 1, 2, 3}


async def test_a_term_that_cannot_be_begun_ends_the_controller() -> None:
    """Another one may have more luck."""
    async with World(*TWO_PODS) as world:
        await world.kill()
        world.controller = Controller(world, MemoryStore(world.shelf))
        world.store.reads_fail = True
        with pytest.raises(FtError) as failed:
            await world.controller.start()
        assert failed.value.reason is Reason.STORE_UNAVAILABLE


async def test_a_term_that_is_lost_at_its_begin_is_not_begun_again() -> None:
    async with World(*TWO_PODS) as world:
        await world.kill()
        world.controller = Controller(world, MemoryStore(world.shelf))
        world.store.reads_fail = True
        begin = world.tasks.spawn("begin", world.controller.start())
        await asyncio.sleep(0.1)
        epoch = await MemoryStore(world.shelf).lead()
        world.store.reads_fail = False
        with pytest.raises(FtError):
            await begin
        assert world.shelf.epoch == epoch
