"""Coordinators in memory, and the pusher in front of them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from controller.coordinator.pusher import ServingPusher
from controller.core.serving import ServingEvent, ServingInstance, ServingPod
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import Endpoint, Role

ADD, DEL, SET, PAUSE, RESUME = ServingEvent
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
