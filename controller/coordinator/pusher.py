"""Changes of the serving view to all Coordinators, and what all of them confirmed."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from controller.coordinator.writer import CoordinatorWriter
from controller.core.ports import Coordinator, ServingViews
from controller.core.serving import ServingEvent
from motor_ft.wire.tasks import Tasks

READINESS_INTERVAL_SEC = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _Wait:
    instance_id: int
    published: bool
    done: asyncio.Future[None]


class ServingPusher:
    """ports.ServingPublisher over any number of Coordinators; without one everything counts as confirmed at once.

    A Coordinator that does not answer never delays another. SET goes out every ``set_interval_sec``, and at once when
    a Coordinator is not ready, comes back, or did not confirm a change.
    """

    def __init__(
        self,
        coordinators: Sequence[Coordinator],
        *,
        set_interval_sec: float,
        sent: Callable[[str, ServingEvent, bool], None],
        on_crash: Callable[[str, BaseException], None] | None = None,
    ) -> None:
        self._coordinators = coordinators
        self._set_interval_sec = set_interval_sec
        self._sent = sent
        self._tasks = Tasks("coordinator", on_crash)
        self._writers: list[CoordinatorWriter] = []
        self._waits: set[_Wait] = set()
        self._unreported: set[int] = set()
        self._views: ServingViews | None = None

    @property
    def problems(self) -> list[str]:
        """Coordinators of which it is not known that they hold the serving view."""
        return [
            f"Coordinator {writer.name} has not confirmed the serving view"
            for writer in self._writers
            if not writer.synced
        ]

    def start(self, views: ServingViews, epoch: Callable[[], int]) -> None:
        """Begin to write; ``epoch`` returns the present term of this Controller."""
        self._views = views
        revisions = itertools.count(1)
        for coordinator in self._coordinators:
            writer = CoordinatorWriter(
                coordinator,
                views,
                stamp=lambda: (epoch(), next(revisions)),
                settled=self._settled,
                sent=self._sent,
            )
            self._writers.append(writer)
            self._tasks.spawn(f"write {coordinator.name}", writer.run())
            self._tasks.spawn(f"remind {coordinator.name}", self._remind(writer))
            self._tasks.spawn(f"readiness {coordinator.name}", _watch(coordinator, writer))

    async def close(self) -> None:
        """Stop writing; what the Coordinators hold stays."""
        await self._tasks.close()
        for coordinator in self._coordinators:
            await coordinator.close()

    async def withdraw(self, instance_id: int, timeout_sec: float) -> bool:
        return await self._change(instance_id, timeout_sec, published=False)

    async def publish(self, instance_id: int, timeout_sec: float) -> bool:
        return await self._change(instance_id, timeout_sec, published=True)

    def update(self, instance_id: int) -> None:
        for writer in self._writers:
            writer.change(instance_id)
        if self._views is not None and not self._coordinators:
            self._views.confirmed(instance_id, self._views.view(instance_id))

    def kick(self) -> None:
        for writer in self._writers:
            writer.resend()
        if self._views is not None and not self._coordinators:
            for view in self._views.views():
                self._views.confirmed(view.instance_id, view)

    async def _change(self, instance_id: int, timeout_sec: float, *, published: bool) -> bool:
        if self._views is not None and not self._coordinators:
            self.update(instance_id)
            return (self._views.view(instance_id) is not None) is published
        wait = _Wait(instance_id, published, asyncio.get_running_loop().create_future())
        self._waits.add(wait)
        self.update(instance_id)
        try:
            async with asyncio.timeout(timeout_sec):
                await wait.done
        except TimeoutError:
            return False
        finally:
            self._waits.remove(wait)
        return True

    def _settled(self, instance_ids: Iterable[int]) -> None:
        self._unreported.update(instance_ids)
        if self._views is None or not all(writer.certain for writer in self._writers):
            return  # who is still at work settles later
        for instance_id in sorted(self._unreported):
            held = [writer.held(instance_id) for writer in self._writers]
            if all(view == held[0] for view in held):
                self._unreported.remove(instance_id)
                self._views.confirmed(instance_id, held[0])
        for wait in self._waits:
            wanted = self._views.view(wait.instance_id)
            agreed = all(writer.held(wait.instance_id) == wanted for writer in self._writers)
            if agreed and (wanted is not None) is wait.published and not wait.done.done():
                wait.done.set_result(None)

    async def _remind(self, writer: CoordinatorWriter) -> None:
        while True:
            await asyncio.sleep(self._set_interval_sec)
            writer.resend()


async def _watch(coordinator: Coordinator, writer: CoordinatorWriter) -> None:
    while True:
        await asyncio.sleep(READINESS_INTERVAL_SEC)
        if not await coordinator.ready() or not writer.synced:
            writer.resend()
