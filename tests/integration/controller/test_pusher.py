"""The pusher and a Motor Coordinator that goes and comes back, over real HTTP."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from controller.coordinator.http import HttpCoordinator
from controller.coordinator.pusher import ServingPusher
from controller.core.serving import ServingInstance, ServingPod
from motor_ft.model.topology import Endpoint, Role
from tests.support.coordinator import FakeCoordinator
from tests.support.waiting import until


class Views:
    """One instance, as it is now."""

    def __init__(self) -> None:
        self.now: ServingInstance | None = None
        self.reports: list[frozenset[int]] = []

    def show(self, *ranks: int, paused: bool = False) -> None:
        """Serve with these ranks; with none, not at all."""
        endpoints = tuple(Endpoint(rank, "127.0.0.1", 8000 + rank) for rank in ranks)
        pod = ServingPod("127.0.0.1", 9000, endpoints)
        shown = ServingInstance(1, "job", "model", "vllm", Role.UNION, 3, 1, (pod,), paused)
        self.now = shown if ranks else None

    def view(self, instance_id: int) -> ServingInstance | None:
        return self.now

    def views(self) -> Sequence[ServingInstance]:
        return [self.now] if self.now else []

    def confirmed(self, instance_id: int, view: ServingInstance | None) -> None:
        self.reports.append(view.ranks() if view else frozenset())

    def may_publish(self) -> bool:
        return True


@asynccontextmanager
async def pushing(
    server: FakeCoordinator, views: Views, outcomes: list[tuple[str, bool]]
) -> AsyncIterator[ServingPusher]:
    """A pusher whose timer is too slow to help."""
    pusher = ServingPusher(
        [HttpCoordinator(server.url, timeout_sec=1.0)],
        set_interval_sec=60.0,
        sent=lambda _, event, confirmed: outcomes.append((event, confirmed)),
    )
    pusher.start(views, lambda: 1)
    try:
        yield pusher
    finally:
        await pusher.close()


async def test_a_scale_down_and_a_coordinator_that_restarts_in_it() -> None:
    """The dead rank goes with DEL and never comes back; a Coordinator that comes back empty gets the survivors."""
    views = Views()
    views.show(0, 1, 2)
    outcomes: list[tuple[str, bool]] = []
    async with FakeCoordinator() as server, pushing(server, views, outcomes) as pusher:
        await until(lambda: server.serving() == {1: [0, 1, 2]})
        views.show()
        assert await pusher.withdraw(1, 5.0)
        assert server.serving() == {}
        await server.inject("down")
        await server.inject("forget")
        views.show(0, 2)
        assert not await pusher.publish(1, 0.2)
        await server.inject("up")
        await until(lambda: server.serving() == {1: [0, 2]})
        await until(lambda: views.reports == [{0, 1, 2}, set(), {0, 2}])
        assert outcomes[:2] == [("set", True), ("del", True)]
        assert outcomes[2][1] is False  # ADD, or a SET where the readiness check was first


async def test_a_pause_that_outlives_a_set_ends_with_requests_to_the_survivors_only() -> None:
    """Motor's SET lets requests in to all that it names, and its RESUME knows nothing of what a SET has dropped."""
    views = Views()
    views.show(0, 1, 2)
    async with FakeCoordinator() as server, pushing(server, views, []) as pusher:

        def routed() -> list[int]:
            return [endpoint.number for _, endpoint in server.view.routable()]

        await until(lambda: routed() == [0, 1, 2])
        views.show(0, 1, 2, paused=True)
        pusher.update(1)
        await until(lambda: routed() == [])
        pusher.kick()
        await until(lambda: server.serving() == {})
        views.show(0, 2, paused=True)
        assert await pusher.publish(1, 5.0)
        assert routed() == []
        views.show(0, 2)
        pusher.update(1)
        await until(lambda: routed() == [0, 2])
