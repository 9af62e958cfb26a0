"""The begin of a term, and what a Controller still does when another one leads."""

import asyncio

import pytest

from controller.store.memory import MemoryStore
from motor_ft.model.errors import FtError, Reason
from tests.support.world.adapters import Trouble
from tests.support.world.pods import TWO_PODS
from tests.support.world.world import SETTINGS, Controller, World

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


class YoungStore(MemoryStore):
    """A store of which only an operator may raise the epoch."""

    behind = True

    async def lead(self, above: int = 0) -> int:
        epoch = await super().lead(above)
        if self.behind:
            raise FtError(Reason.EPOCH_BEHIND_FLEET, "the fleet has followed epoch 7", current=7)
        return epoch


async def test_a_controller_behind_the_fleet_refuses_everybody_until_an_operator_has_raised_the_epoch() -> None:
    """It neither decides nor publishes, and the fleet serves as it did."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.kill()
        store = YoungStore(world.shelf)
        begin = world.tasks.spawn("begin", world.restart(store, connect=False))
        await asyncio.sleep(60)
        assert set(world.observed.behind) == {True}
        assert not world.manager.may_publish()
        with pytest.raises(FtError) as refused:
            await world.pod(1).connect()
        assert (refused.value.reason, refused.value.metadata) == (Reason.EPOCH_BEHIND_FLEET, {"current": "7"})
        assert world.coordinator.ranks() == {0, 1, 2, 3}
        store.behind = False
        await begin
        assert not world.observed.behind[-1]
        await world.connect()
        await world.until(world.can_serve)


async def test_an_empty_store_publishes_nothing_before_the_fleet_had_time_to_object() -> None:
    """It may have lost what still serves; the first pod that is admitted ends the wait."""
    async with World(*TWO_PODS) as world:
        assert not world.manager.may_publish()
        await asyncio.sleep(SETTINGS.heartbeat_ttl)
        assert world.manager.may_publish()
        await world.kill()
        await world.restart(connect=False)
        assert not world.manager.may_publish()
        await world.pod(1).connect()
        assert world.manager.may_publish()


async def test_who_asks_a_controller_that_does_not_lead_is_told_so() -> None:
    """Before its term and after it."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        standby = Controller(world, MemoryStore(world.shelf))
        for manager, leads in ((standby.manager, False), (world.manager, True)):
            assert (manager.refusal() is None) is leads
        await standby.manager.start()
        with pytest.raises(FtError) as refused:
            await world.pod(1).connect()
        assert (refused.value.reason, refused.value.metadata) == (Reason.NOT_LEADER, {"leader": ""})
        await standby.manager.close()
