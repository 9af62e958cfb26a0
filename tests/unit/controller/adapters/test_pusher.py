"""The serving view reaches every Coordinator, in order, and nothing else is believed (recovery.md section 6)."""

import asyncio

import pytest

from controller.coordinator.pusher import READINESS_INTERVAL_SEC
from tests.unit.controller.adapters.pushing import ADD, DEL, SET, Memory, Views, pushing, view

pytestmark = pytest.mark.looptime

TIMEOUT_SEC = 5.0


async def test_first_comes_a_set_of_the_projection_and_one_follows_every_interval() -> None:
    """A Coordinator that knows nothing of us gets everything; an empty SET is sent too."""
    views, first = Views(), Memory()
    async with pushing(views, first):
        assert first.sent == [(SET, {})]
        views.show(view(0, 1))
        await asyncio.sleep(5.0)
        assert first.sent[1:] == [(SET, {1: [0, 1]})]
        views.show()
        await asyncio.sleep(5.0)
        assert first.sent[2:] == [(SET, {})]
    assert views.reports == [(1, view(0, 1)), (1, None)]


async def test_withdraw_is_del_of_what_is_published_and_publish_is_add_of_the_projection() -> None:
    """DEL names the view that the Coordinator has, dead ranks included; ADD the survivors. No stamp is used twice."""
    views, first = Views(), Memory()
    views.show(view(0, 1, 2))
    async with pushing(views, first) as pusher:
        views.show()
        assert await pusher.withdraw(1, TIMEOUT_SEC)
        views.show(view(0, 2))
        assert await pusher.publish(1, TIMEOUT_SEC)
    assert first.sent == [(SET, {1: [0, 1, 2]}), (DEL, {1: [0, 1, 2]}), (ADD, {1: [0, 2]})]
    assert first.stamps == [(3, 1), (3, 2), (3, 3)]
    assert views.reports == [(1, view(0, 1, 2)), (1, None), (1, view(0, 2))]


async def test_withdraw_of_what_is_not_published_is_confirmed_without_a_request() -> None:
    first = Memory()
    async with pushing(Views(), first) as pusher:
        assert await pusher.withdraw(7, TIMEOUT_SEC)
        assert first.sent == [(SET, {})]


async def test_the_projection_is_taken_when_the_request_is_sent() -> None:
    """A queued view never overtakes: what was published while a request was in flight goes out as it is afterwards."""
    views, first = Views(), Memory()
    async with pushing(views, first) as pusher:
        first.gate.clear()
        pusher.kick()
        await asyncio.sleep(0.1)
        views.show(view(0, 1, 2))
        publish = asyncio.create_task(pusher.publish(1, TIMEOUT_SEC))
        await asyncio.sleep(0.1)
        views.show(view(0, 2))
        first.gate.set()
        assert await publish
        assert first.sent[1:] == [(SET, {}), (ADD, {1: [0, 2]})]


async def test_changes_of_one_instance_that_wait_become_one() -> None:
    """What waits is bounded by the number of instances, not by the number of changes."""
    views, first = Views(), Memory()
    async with pushing(views, first) as pusher:
        first.gate.clear()
        pusher.kick()
        await asyncio.sleep(0.1)
        views.show(view(0, 1))
        publishes = [asyncio.create_task(pusher.publish(1, TIMEOUT_SEC)) for _ in range(50)]
        await asyncio.sleep(0.1)
        first.gate.set()
        assert all(await asyncio.gather(*publishes))
        assert first.sent[1:] == [(SET, {}), (ADD, {1: [0, 1]})]


async def test_another_view_of_a_published_instance_goes_out_as_del_then_add() -> None:
    """Motor ignores ADD of an instance that it has, so that the dead rank would stay."""
    views, first = Views(), Memory()
    views.show(view(0, 1, 2))
    async with pushing(views, first) as pusher:
        views.show(view(0, 2))
        assert await pusher.publish(1, TIMEOUT_SEC)
        assert first.sent[1:] == [(DEL, {1: [0, 1, 2]}), (ADD, {1: [0, 2]})]
        assert first.ranks() == {1: [0, 2]}


async def test_a_set_brings_another_view_through_as_well() -> None:
    """Motor's SET compares ids only; the changed instance is left out of one SET first."""
    views, first = Views(), Memory()
    views.show(view(0, 1), view(4, 5, instance_id=2))
    async with pushing(views, first) as pusher:
        views.show(view(0), view(4, 5, instance_id=2))
        pusher.kick()
        await asyncio.sleep(0.1)
        assert first.sent[1:] == [(SET, {2: [4, 5]}), (SET, {1: [0], 2: [4, 5]})]
        assert first.ranks() == {1: [0], 2: [4, 5]}
    assert views.reports == [(1, view(0, 1)), (2, view(4, 5, instance_id=2)), (1, view(0))]


async def test_without_leadership_nothing_is_sent() -> None:
    """The deadline is asked right before each send; when it holds again, SET converges."""
    views, first = Views(), Memory()
    views.show(view(0, 1))
    async with pushing(views, first) as pusher:
        views.leads = False
        views.show()
        assert not await pusher.withdraw(1, TIMEOUT_SEC)
        pusher.kick()
        await asyncio.sleep(10.0)
        assert first.sent == [(SET, {1: [0, 1]})]
        views.leads = True
        await asyncio.sleep(READINESS_INTERVAL_SEC)
        assert first.ranks() == {}


# --- pause and resume ---


async def test_kick_sends_set_at_once() -> None:
    views, first = Views(), Memory()
    async with pushing(views, first) as pusher:
        views.show(view(0))
        pusher.kick()
        await asyncio.sleep(0.1)
        assert first.sent == [(SET, {}), (SET, {1: [0]})]


async def test_without_coordinators_everything_is_confirmed_at_once() -> None:
    views = Views()
    views.show(view(0, 1))
    async with pushing(views) as pusher:
        pusher.kick()
        assert await pusher.publish(1, TIMEOUT_SEC)
        views.show()
        assert await pusher.withdraw(1, TIMEOUT_SEC)
        views.show(view(0, 1, paused=True))
        pusher.update(1)
    assert views.reports == [(1, view(0, 1)), (1, view(0, 1)), (1, None), (1, view(0, 1, paused=True))]


async def test_close_ends_requests_in_flight() -> None:
    views, first = Views(), Memory()
    first.gate.clear()
    async with pushing(views, first):
        await first.arrived.wait()
    assert first.sent == []
