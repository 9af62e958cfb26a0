"""A view that is only paused, or resumed, goes out as PAUSE and RESUME."""

import asyncio

import pytest

from controller.coordinator.pusher import READINESS_INTERVAL_SEC
from tests.unit.controller.adapters.pushing import ADD, DEL, PAUSE, RESUME, SET, Memory, Views, pushing, view

pytestmark = pytest.mark.looptime

TIMEOUT_SEC = 5.0


async def test_an_update_that_is_only_a_pause_or_its_end_goes_out_as_pause_and_resume() -> None:
    """With the projection as it is when it is sent; while it waits for a pause the instance stays published."""
    views, first = Views(), Memory()
    views.show(view(0, 1))
    async with pushing(views, first) as pusher:
        for paused in (True, False):
            views.show(view(0, 1, paused=paused))
            pusher.update(1)
            await asyncio.sleep(0.1)
            assert first.held == {1: view(0, 1, paused=paused)}
    assert first.sent[1:] == [(PAUSE, {1: [0, 1]}), (RESUME, {1: [0, 1]})]
    assert views.reports[1:] == [(1, view(0, 1, paused=True)), (1, view(0, 1))]


async def test_a_resume_that_waits_never_brings_a_dead_rank_back() -> None:
    """What was removed while the instance was paused goes out as DEL and ADD."""
    views, first = Views(), Memory()
    views.show(view(0, 1, 2, paused=True))
    async with pushing(views, first) as pusher:
        first.gate.clear()
        pusher.kick()
        await asyncio.sleep(0.1)
        views.show(view(0, 1, 2))
        pusher.update(1)
        await asyncio.sleep(0.1)
        views.show(view(0, 2))
        first.gate.set()
        await asyncio.sleep(0.1)
        assert first.sent[2:] == [(DEL, {1: [0, 1, 2]}), (ADD, {1: [0, 2]})]
        assert first.held == {1: view(0, 2)}


async def test_a_pause_that_ends_before_it_was_sent_is_never_sent() -> None:
    views, first = Views(), Memory()
    views.show(view(0))
    async with pushing(views, first) as pusher:
        first.gate.clear()
        pusher.kick()
        await asyncio.sleep(0.1)
        for paused in (True, False):
            views.show(view(0, paused=paused))
            pusher.update(1)
        first.gate.set()
        await asyncio.sleep(0.1)
        assert PAUSE not in [event for event, _ in first.sent]
        assert first.held == {1: view(0)}


async def test_a_set_carries_a_pause() -> None:
    """Neither the periodic SET nor one of a Coordinator that comes back undoes it."""
    views, first = Views(), Memory()
    views.show(view(0))
    async with pushing(views, first) as pusher:
        views.show(view(0, paused=True))
        pusher.update(1)
        await asyncio.sleep(5.0)
        assert [event for event, _ in first.sent] == [SET, PAUSE, SET]
        first.held, first.serves = {}, False
        await asyncio.sleep(READINESS_INTERVAL_SEC)
        assert first.held == {1: view(0, paused=True)}


async def test_a_pause_that_failed_is_repaired_by_a_set_at_once() -> None:
    views, first = Views(), Memory()
    views.show(view(0))
    async with pushing(views, first) as pusher:
        first.losing_answers = True
        views.show(view(0, paused=True))
        pusher.update(1)
        await asyncio.sleep(0.1)
        assert [event for event, _ in first.sent[1:]] == [PAUSE, SET]
        assert len(views.reports) == 1
        first.losing_answers = False
        await asyncio.sleep(READINESS_INTERVAL_SEC)
        assert views.reports[1:] == [(1, view(0, paused=True))]


async def test_a_paused_instance_is_withdrawn_and_published_as_any_other() -> None:
    views, first = Views(), Memory()
    views.show(view(0, 1, paused=True))
    async with pushing(views, first) as pusher:
        views.show()
        assert await pusher.withdraw(1, TIMEOUT_SEC)
        assert first.held == {}
        views.show(view(0, paused=True))
        assert await pusher.publish(1, TIMEOUT_SEC)
        assert first.held == {1: view(0, paused=True)}
    assert first.sent[1:] == [(DEL, {1: [0, 1]}), (ADD, {1: [0]})]
