"""The one writer of a Coordinator: one request in flight, SET included (recovery.md section 6)."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from controller.core.ports import Coordinator, ServingViews
from controller.core.serving import ServingEvent, ServingInstance
from motor_ft.model.errors import FtError
from motor_ft.wire.log import get_logger

_log = get_logger(__name__)


class CoordinatorWriter:
    """Keeps one Coordinator on the projection.

    A change is only the number of an instance; what is to be sent is looked up when it is sent. So no queued view can
    overtake a newer one or bring a dead rank back, and what waits is bounded by the number of instances.

    ``settled`` is called with the instances whose view was confirmed, ``sent`` with the outcome of every request.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        views: ServingViews,
        *,
        stamp: Callable[[], tuple[int, int]],
        settled: Callable[[Iterable[int]], None],
        sent: Callable[[str, ServingEvent, bool], None],
    ) -> None:
        self._coordinator = coordinator
        self._views = views
        self._stamp = stamp
        self._settled = settled
        self._sent = sent
        self._held: dict[int, ServingInstance] = {}
        self._changed: dict[int, None] = {}  # in order of the first change; the newest state of an instance wins
        self._synced = False
        self._busy = False
        self._set_due = True
        self._work = asyncio.Event()

    @property
    def name(self) -> str:
        """Of the Coordinator."""
        return self._coordinator.name

    @property
    def synced(self) -> bool:
        """Every request since the last SET was confirmed."""
        return self._synced

    @property
    def certain(self) -> bool:
        """What the Coordinator holds is known, and no request that could change it is under way."""
        return self._synced and not self._busy

    def held(self, instance_id: int) -> ServingInstance | None:
        """View of an instance that the Coordinator confirmed last."""
        return self._held.get(instance_id)

    def change(self, instance_id: int) -> None:
        """Bring one instance up to date, at once."""
        self._changed[instance_id] = None
        if not self._synced:
            self._set_due = True
        self._work.set()

    def resend(self) -> None:
        """Send a SET, at once."""
        self._set_due = True
        self._work.set()

    async def run(self) -> None:
        """Write, for ever."""
        while True:
            if self._synced and self._changed:
                await self._update(next(iter(self._changed)))
            elif self._set_due:
                await self._replace()
            else:
                self._work.clear()
                await self._work.wait()

    async def _update(self, instance_id: int) -> None:
        del self._changed[instance_id]
        if await self._update_view(instance_id):  # else the SET that repairs it covers this change as well
            self._settled([instance_id])

    async def _update_view(self, instance_id: int) -> bool:
        held, view = self._held.get(instance_id), self._views.view(instance_id)
        event = ServingEvent.ADD
        if held is not None and view is not None and replace(held, paused=view.paused) == view != held:
            event = ServingEvent.PAUSE if view.paused else ServingEvent.RESUME
        elif held is not None and held != view:
            # A Coordinator refuses ADD of an instance that it has in another form: first DEL of what it has.
            if not await self._send(ServingEvent.DEL, [held]):
                return False
            del self._held[instance_id]
            view = self._views.view(instance_id)
        if view is None:
            return True
        if not await self._send(event, [view]):
            return False
        self._held[instance_id] = view
        return True

    async def _replace(self) -> None:
        self._set_due = False
        covered, self._changed = self._changed, {}
        before, was_synced = self._held, self._synced
        if await self._replace_views():
            different = {
                instance_id
                for instance_id in {*before, *self._held}
                if not was_synced or before.get(instance_id) != self._held.get(instance_id)
            }
            self._settled(different | covered.keys())

    async def _replace_views(self) -> bool:
        while True:
            # Motor's SET compares ids only: what it may have in another form is left out of a SET before the last one.
            views = {view.instance_id: view for view in self._views.views()}
            kept = {key: view for key, view in views.items() if self._held.get(key, view) == view}
            if not await self._send(ServingEvent.SET, list(kept.values())):
                return False
            self._held = kept
            if len(kept) == len(views):
                break
        if not self._synced:
            _log.info("Coordinator holds the serving view", coordinator=self._coordinator.name)
            self._synced = True
        return True

    async def _send(self, event: ServingEvent, views: Sequence[ServingInstance]) -> bool:
        self._busy = True
        try:
            confirmed = self._views.may_publish() and await self._confirmed(event, views)
        finally:
            self._busy = False
        if not confirmed:
            # What it holds is not known any more. A SET repairs that: at once after the first failure, then as told.
            self._set_due = self._set_due or (self._synced and event is not ServingEvent.SET)
            self._synced = False
        return confirmed

    async def _confirmed(self, event: ServingEvent, views: Sequence[ServingInstance]) -> bool:
        epoch, revision = self._stamp()
        try:
            await self._coordinator.refresh(event, views, epoch, revision)
        except FtError as error:
            log = _log.warning if self._synced else _log.debug
            log("Coordinator did not confirm", coordinator=self._coordinator.name, refresh=event, error=str(error))
            self._sent(self._coordinator.name, event, False)
            return False
        self._sent(self._coordinator.name, event, True)
        return True
