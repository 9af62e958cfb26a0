"""ControllerService: what the Controller knows (RFC section 7)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import grpc

from controller.convert import status_to_pb
from controller.core.ports import Instances
from controller.core.status import InstanceState, InstanceStatus
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import controller_pb2_grpc
from motor_ft.v1.controller_pb2 import (
    GetInstanceRequest,
    GetInstanceResponse,
    ListInstancesRequest,
    ListInstancesResponse,
    WatchInstancesRequest,
    WatchInstancesResponse,
)
from motor_ft.wire.convert import demand

PROGRESS_SEC = 3.0
WATCH_LIMIT = 1000
DEFAULT_PAGE, MAX_PAGE = 100, 1000
MAX_TOKEN_LENGTH = 19

Context = grpc.aio.ServicerContext[Any, Any]


class ControllerServicer(controller_pb2_grpc.ControllerServiceServicer):
    """Reads only."""

    def __init__(self, instances: Instances, *, scale_down_disabled: bool, progress_sec: float = PROGRESS_SEC) -> None:
        self._instances = instances
        self._scale_down_disabled = scale_down_disabled
        self._progress_sec = progress_sec

    async def GetInstance(self, request: GetInstanceRequest, context: Context) -> GetInstanceResponse:
        """One instance."""
        return GetInstanceResponse(instance=status_to_pb(self._get(request.instance_id)))

    async def ListInstances(self, request: ListInstancesRequest, context: Context) -> ListInstancesResponse:
        """One page; the token is the last id of the page before, so that what comes and goes moves no page."""
        demand(request.page_size >= 0, "page_size", f"must not be negative, not {request.page_size}")
        token = request.page_token
        known = not token or (token.isascii() and token.isdecimal() and len(token) <= MAX_TOKEN_LENGTH)
        demand(known, "page_token", "is not of an earlier page")
        size = min(request.page_size or DEFAULT_PAGE, MAX_PAGE)
        after = int(token or 0)
        found = [status for status in self._instances.all() if status.instance_id > after and _asked(status, request)]
        page = found[:size]
        return ListInstancesResponse(
            instances=map(status_to_pb, page),
            next_page_token=str(page[-1].instance_id) if len(found) > size else "",
            scale_down_disabled=self._scale_down_disabled,
        )

    async def WatchInstances(
        self, request: WatchInstancesRequest, context: Context
    ) -> AsyncIterator[WatchInstancesResponse]:
        """A snapshot by ascending revision, its end, then changes; progress while there is none."""
        wanted = request.instance_id if request.HasField("instance_id") else None
        subscription = self._instances.subscribe(WATCH_LIMIT)  # nothing can change between here and the snapshot
        revision = 0
        try:
            for status in self._snapshot(wanted):
                revision = status.revision
                yield WatchInstancesResponse(instance=status_to_pb(status), revision=revision)
            yield WatchInstancesResponse(revision=revision, snapshot_complete=True)
            async with aclosing(_with_progress(aiter(subscription), self._progress_sec)) as changes:
                async for change in changes:
                    revision = change.revision if change else revision
                    shown = change if change and wanted in {None, change.instance_id} else None
                    instance = status_to_pb(shown) if shown else None
                    yield WatchInstancesResponse(instance=instance, revision=revision)
        finally:
            subscription.close()

    def _get(self, instance_id: int) -> InstanceStatus:
        status = self._instances.get(instance_id)
        if status is None:
            raise FtError(Reason.UNKNOWN_INSTANCE, f"there is no instance {instance_id}", instance_id=instance_id)
        return status

    def _snapshot(self, wanted: int | None) -> Sequence[InstanceStatus]:
        if wanted is not None:
            return [self._get(wanted)]
        return sorted(self._instances.all(), key=lambda status: status.revision)


def _asked(status: InstanceStatus, request: ListInstancesRequest) -> bool:
    if status.state is InstanceState.DELETED and not request.show_deleted:
        return False
    return not request.job_name or status.job_name == request.job_name


async def _with_progress(
    changes: AsyncIterator[InstanceStatus], interval_sec: float
) -> AsyncGenerator[InstanceStatus | None, None]:
    """Pass changes on, and None whenever there was none for the interval."""
    change = asyncio.ensure_future(anext(changes, None))
    try:
        while True:
            done, _ = await asyncio.wait({change}, timeout=interval_sec)
            if not done:
                yield None
            elif (status := change.result()) is None:
                return
            else:
                yield status
                change = asyncio.ensure_future(anext(changes, None))
    finally:
        change.cancel()
        await asyncio.gather(change, return_exceptions=True)
