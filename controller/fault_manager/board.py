"""What clients see: the last status of every instance, and changes for those who watch."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from controller.core.status import InstanceState, InstanceStatus
from motor_ft.model.errors import FtError, Reason

KEPT_DELETED = 100
"""Instances in state DELETED that are still shown."""


class Board:
    """``controller.core.ports.Instances``. A change gets a revision that grows within this Controller's life."""

    def __init__(self) -> None:
        self._statuses: dict[int, InstanceStatus] = {}
        self._deleted: deque[int] = deque()
        self._subscriptions: set[BoardSubscription] = set()
        self._revision = 0

    def put(self, status: InstanceStatus) -> bool:
        """Show a status; True when it differs from the one before in more than its time."""
        known = self._statuses.get(status.instance_id)
        if status == known:
            return False
        self._revision += 1
        status = replace(status, revision=self._revision)
        self._statuses[status.instance_id] = status
        if status.state is InstanceState.DELETED and (known is None or known.state is not InstanceState.DELETED):
            self._bury(status.instance_id)
        for subscription in list(self._subscriptions):
            subscription.offer(status)
        return True

    def _bury(self, instance_id: int) -> None:
        self._deleted.append(instance_id)
        if len(self._deleted) > KEPT_DELETED:
            self._statuses.pop(self._deleted.popleft(), None)

    def get(self, instance_id: int) -> InstanceStatus | None:
        """One instance, or None."""
        return self._statuses.get(instance_id)

    def all(self) -> Sequence[InstanceStatus]:
        """All instances by ascending id."""
        return [self._statuses[instance_id] for instance_id in sorted(self._statuses)]

    def subscribe(self, limit: int) -> "BoardSubscription":
        """Changes from now on; a subscriber more than ``limit`` changes behind is cut."""
        subscription = BoardSubscription(limit, self._subscriptions.discard)
        self._subscriptions.add(subscription)
        return subscription


class BoardSubscription:
    """Ordered changes of the board."""

    def __init__(self, limit: int, on_close: Callable[["BoardSubscription"], None]) -> None:
        self._queue: asyncio.Queue[InstanceStatus | None] = asyncio.Queue(limit + 1)
        self._limit = limit
        self._on_close = on_close
        self._cut = False

    def offer(self, status: InstanceStatus) -> None:
        """One more change, or the end of a subscriber that is too slow."""
        if self._queue.qsize() >= self._limit:
            self._cut = True
            self._on_close(self)
            return
        self._queue.put_nowait(status)

    async def __aiter__(self) -> AsyncIterator[InstanceStatus]:
        """Changes in order; raises OVERLOADED after the last one before the cut."""
        while not (self._cut and self._queue.empty()):
            status = await self._queue.get()
            if status is None:
                return
            yield status
        raise FtError(
            Reason.OVERLOADED,
            f"this watch is {self._limit} changes behind and was ended; watch again from a snapshot",
        )

    def close(self) -> None:
        """No more changes."""
        self._on_close(self)
        if self._queue.qsize() <= self._limit:
            self._queue.put_nowait(None)
