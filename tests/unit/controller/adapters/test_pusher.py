"""The serving view reaches every Coordinator, in order, and nothing else is believed (recovery.md section 6)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from controller.coordinator.pusher import READINESS_INTERVAL_SEC, ServingPusher
from controller.core.serving import ServingEvent, ServingInstance, ServingPod
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import Endpoint, Role

pytestmark = pytest.mark.looptime

ADD, DEL, SET, PAUSE, RESUME = ServingEvent
TIMEOUT_SEC = 5.0
Sent = tuple[ServingEvent, dict[int, list[int]]]


def view(*ranks: int, instance_id: int = 1, paused: bool = False) -> ServingInstance:
    """An instance that serves with these ranks."""
    endpoints = tuple(Endpoint(rank, "10.0.0.1", 8000 + rank) for rank in ranks)
    pod = ServingPod("10.0.0.1", 9000, endpoints)
    return ServingInstance(instance_id, "job", "model", "vllm", Role.UNION, 4, 1, (pod,), paused)


@dataclass
class Views:
    """Projections as a FaultManager holds them."""

    now: dict[int, ServingInstance] = field(default_factory=dict)
    leads: bool = True
    reports: list[tuple[int, ServingInstance | None]] = field(default_factory=list)

    def show(self, *views: ServingInstance) -> None:
        self.now = {shown.instance_id: shown for shown in views}

    def view(self, instance_id: int) -> ServingInstance | None:
        return self.now.get(instance_id)

    def views(self) -> Sequence[ServingInstance]:
        return list(self.now.values())

    def confirmed(self, instance_id: int, view: ServingInstance | None) -> None:
        self.reports.append((instance_id, view))

    def may_publish(self) -> bool:
        return self.leads


class Memory:
    """A Coordinator that obeys as Motor's does: ADD and SET leave alone what is there under the same id."""

    def __init__(self, name: str = "first") -> None:
        self.name = name
        self.held: dict[int, ServingInstance] = {}
        self.sent: list[Sent] = []
        self.stamps: list[tuple[int, int]] = []
        self.serves = True
        self.reachable = True
        self.losing_answers = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()
        self._busy = False

    async def refresh(
        self, event: ServingEvent, instances: Sequence[ServingInstance], epoch: int, revision: int
    ) -> None:
        assert not self._busy, "two requests in flight"
        self._busy = True
        try:
            await self._refresh(event, instances, (epoch, revision))
        finally:
            self._busy = False

    async def _refresh(self, event: ServingEvent, instances: Sequence[ServingInstance], stamp: tuple[int, int]) -> None:
        self.arrived.set()
        await self.gate.wait()
        if not self.reachable:
            raise FtError(Reason.OUTCOME_UNKNOWN, "refused")
        self.stamps.append(stamp)
        self.sent.append((event, {each.instance_id: sorted(each.ranks()) for each in instances}))
        named = {each.instance_id: each for each in instances}
        if event is DEL:
            self.held = {key: held for key, held in self.held.items() if key not in named}
        elif event is ADD:
            self.held = named | self.held
        elif event is SET:
            self.held = {key: self.held.get(key, new) for key, new in named.items()}
        else:
            self.held |= named
        if self.losing_answers:
            raise FtError(Reason.OUTCOME_UNKNOWN, "no answer")

    async def ready(self) -> bool:
        return self.reachable and self.serves

    async def close(self) -> None:
        self.reachable = False

    def ranks(self) -> dict[int, list[int]]:
        return {key: sorted(held.ranks()) for key, held in self.held.items()}


@asynccontextmanager
async def pushing(views: Views, *coordinators: Memory, settle: bool = True) -> AsyncIterator[ServingPusher]:
    """A running pusher; with ``settle`` after its first SET."""
    pusher = ServingPusher(coordinators, set_interval_sec=5.0, sent=lambda name, event, confirmed: None)
    pusher.start(views, lambda: 3)
    if settle:
        await asyncio.sleep(0.1)
    try:
        yield pusher
    finally:
        await pusher.close()


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


async def test_close_ends_requests_in_flight() -> None:
    views, first = Views(), Memory()
    first.gate.clear()
    async with pushing(views, first):
        await first.arrived.wait()
    assert first.sent == []
