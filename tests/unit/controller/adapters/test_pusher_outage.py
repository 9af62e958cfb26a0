"""A Coordinator that was away or lost its view gets the present one; what it does not hold is not confirmed."""

import asyncio

import pytest

from controller.coordinator.pusher import READINESS_INTERVAL_SEC
from tests.unit.controller.adapters.pushing import ADD, DEL, SET, Memory, Views, pushing, view

pytestmark = pytest.mark.looptime

TIMEOUT_SEC = 5.0


async def test_a_withdraw_in_an_outage_fails_in_time_and_a_later_set_converges() -> None:
    """Nothing is believed that no Coordinator said; it converges within seconds of the Coordinator's return."""
    views, first = Views(), Memory()
    views.show(view(0, 1))
    async with pushing(views, first) as pusher:
        first.reachable = False
        views.show()
        before = asyncio.get_running_loop().time()
        assert not await pusher.withdraw(1, TIMEOUT_SEC)
        assert asyncio.get_running_loop().time() - before == pytest.approx(TIMEOUT_SEC)
        assert views.reports == [(1, view(0, 1))]
        first.reachable = True
        await asyncio.sleep(READINESS_INTERVAL_SEC)
        assert first.ranks() == {}
        assert views.reports[1:] == [(1, None)]


async def test_after_an_outage_also_an_unchanged_view_is_confirmed_anew() -> None:
    """Who tried to withdraw and gave up no longer believes the old confirmation; the first SET after it tells."""
    views, first = Views(), Memory()
    views.show(view(0, 1))
    async with pushing(views, first) as pusher:
        first.reachable = False
        views.show()
        assert not await pusher.withdraw(1, TIMEOUT_SEC)
        views.show(view(0, 1))
        assert not await pusher.publish(1, TIMEOUT_SEC)
        first.reachable = True
        await asyncio.sleep(READINESS_INTERVAL_SEC)
        assert views.reports == [(1, view(0, 1)), (1, view(0, 1))]


async def test_an_outage_that_ends_in_time_is_no_failure() -> None:
    views, first = Views(), Memory()
    views.show(view(0, 1))
    async with pushing(views, first) as pusher:
        first.reachable = False
        views.show()
        withdraw = asyncio.create_task(pusher.withdraw(1, TIMEOUT_SEC))
        await asyncio.sleep(2.0)
        first.reachable = True
        assert await withdraw
        assert first.ranks() == {}


async def test_an_incremental_event_that_failed_is_repaired_by_a_set_at_once() -> None:
    """The change happened, its answer was lost: the SET that follows finds out without waiting for a timer."""
    views, first = Views(), Memory()
    views.show(view(0, 1))
    async with pushing(views, first) as pusher:
        first.losing_answers = True
        views.show()
        withdraw = asyncio.create_task(pusher.withdraw(1, TIMEOUT_SEC))
        await asyncio.sleep(0.1)
        assert first.sent[1:] == [(DEL, {1: [0, 1]}), (SET, {})]
        assert not withdraw.done()
        first.losing_answers = False
        assert await withdraw


async def test_a_publish_whose_answer_was_lost_is_repaired_the_same_way() -> None:
    views, first = Views(), Memory()
    async with pushing(views, first) as pusher:
        first.losing_answers = True
        views.show(view(0))
        publish = asyncio.create_task(pusher.publish(1, TIMEOUT_SEC))
        await asyncio.sleep(0.1)
        assert first.sent[1:] == [(ADD, {1: [0]}), (SET, {1: [0]})]
        assert views.reports == []
        first.losing_answers = False
        assert await publish
        assert views.reports == [(1, view(0))]


async def test_a_coordinator_that_lost_its_view_gets_it_back_at_once() -> None:
    """A restarted Coordinator is not ready; it does not wait for the interval."""
    views, first = Views(), Memory()
    views.show(view(0, 1))
    async with pushing(views, first):
        first.held, first.serves = {}, False
        await asyncio.sleep(READINESS_INTERVAL_SEC)
        assert first.ranks() == {1: [0, 1]}


async def test_only_what_every_coordinator_holds_is_confirmed() -> None:
    """One Coordinator behind keeps a change unconfirmed, and never delays the other."""
    views, first, second = Views(), Memory(), Memory("second")
    views.show(view(0, 1))
    async with pushing(views, first, second) as pusher:
        assert views.reports == [(1, view(0, 1))]
        second.gate.clear()
        views.show()
        assert not await pusher.withdraw(1, 2.0)
        assert first.ranks() == {}
        assert views.reports == [(1, view(0, 1))]
        second.gate.set()
        await asyncio.sleep(0.1)
        assert views.reports == [(1, view(0, 1)), (1, None)]


async def test_what_is_in_flight_is_not_taken_for_withdrawn() -> None:
    """While ADD is under way nobody knows what that Coordinator holds, whatever the others confirm."""
    views, first, second = Views(), Memory(), Memory("second")
    async with pushing(views, first, second) as pusher:
        second.gate.clear()
        views.show(view(0, 1))
        publish = asyncio.create_task(pusher.publish(1, 1.0))
        await asyncio.sleep(0.1)
        views.show()
        withdraw = asyncio.create_task(pusher.withdraw(1, TIMEOUT_SEC))
        await asyncio.sleep(0.1)
        assert first.ranks() == {}
        assert not withdraw.done()
        second.gate.set()
        assert await withdraw
        assert second.sent[1:] == [(ADD, {1: [0, 1]}), (DEL, {1: [0, 1]})]
        assert second.ranks() == {}
        assert not await publish


async def test_a_confirmation_is_not_lost_while_another_coordinator_is_busy_with_something_else() -> None:
    views, first, second = Views(), Memory(), Memory("second")
    async with pushing(views, first, second) as pusher:
        views.show(view(0))
        first.gate.clear()
        publish = asyncio.create_task(pusher.publish(1, TIMEOUT_SEC))
        await asyncio.sleep(0.1)
        second.gate.clear()
        second.arrived.clear()
        pusher.kick()
        await second.arrived.wait()
        first.gate.set()
        await asyncio.sleep(0.1)
        assert views.reports == []
        second.gate.set()
        assert await publish
        assert views.reports == [(1, view(0))]


async def test_a_vanished_instance_is_reported_after_an_outage_too() -> None:
    """An instance that was deleted while the Coordinator was away is confirmed as withdrawn when it is back."""
    views, first = Views(), Memory()
    views.show(view(0), view(4, instance_id=2))
    async with pushing(views, first):
        first.reachable = False
        views.show(view(4, instance_id=2))
        await asyncio.sleep(8.0)
        first.reachable = True
        await asyncio.sleep(READINESS_INTERVAL_SEC)
        assert (1, None) in views.reports
        assert first.ranks() == {2: [4]}
