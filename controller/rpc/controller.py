"""ControllerService: what the Controller knows and would decide (RFC section 7), and what operators order."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from controller.convert import status_to_pb
from controller.core.history import EventKind
from controller.core.ports import Clock, Events, Instances, Operations, Order
from controller.core.status import InstanceState, InstanceStatus
from controller.rpc.messages import EVENT_KIND, event_to_pb, explanation_to_pb
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import controller_pb2_grpc
from motor_ft.v1.common_pb2 import OperatorHeader
from motor_ft.v1.controller_pb2 import (
    ExplainRequest,
    ExplainResponse,
    GetInstanceRequest,
    GetInstanceResponse,
    Instance,
    ListEventsRequest,
    ListEventsResponse,
    ListInstancesRequest,
    ListInstancesResponse,
    PauseAutomationRequest,
    PauseAutomationResponse,
    ReconfigureRequest,
    ReconfigureResponse,
    ResumeAutomationRequest,
    ResumeAutomationResponse,
    WatchInstancesRequest,
    WatchInstancesResponse,
)
from motor_ft.wire.convert import demand, operator_from_header

PROGRESS_SEC = 3.0
WATCH_LIMIT = 1000
DEFAULT_PAGE, MAX_PAGE = 100, 1000
MAX_PAGE_BYTES = 2 * 1024 * 1024
"""Clients that nobody has told otherwise take messages of 4 MiB; an instance of hundreds of ranks has 60 KiB."""
MAX_TOKEN_LENGTH = 19

M = TypeVar("M", bound=Message)
Context = grpc.aio.ServicerContext[Any, Any]


class ControllerServicer(controller_pb2_grpc.ControllerServiceServicer):
    """Reads, and passes orders on; that an order is carried out once is the ledger's to see to."""

    def __init__(
        self,
        instances: Instances,
        events: Events,
        operations: Operations,
        *,
        clock: Clock,
        scale_down_disabled: bool,
        progress_sec: float = PROGRESS_SEC,
    ) -> None:
        self._instances = instances
        self._events = events
        self._operations = operations
        self._clock = clock
        self._scale_down_disabled = scale_down_disabled
        self._progress_sec = progress_sec

    async def GetInstance(self, request: GetInstanceRequest, context: Context) -> GetInstanceResponse:
        """One instance."""
        return GetInstanceResponse(instance=status_to_pb(self._get(request.instance_id)))

    async def ListInstances(self, request: ListInstancesRequest, context: Context) -> ListInstancesResponse:
        """One page; the token is the last id of the page before, so that what comes and goes moves no page."""
        size = _page_size(request)
        after = _number(request.page_token) if request.page_token else 0
        found = [status for status in self._instances.all() if status.instance_id > after and _asked(status, request)]
        page = _fitting(map(status_to_pb, found[:size]))
        return ListInstancesResponse(
            instances=page,
            next_page_token=str(page[-1].instance_id) if len(found) > len(page) else "",
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

    async def Explain(self, request: ExplainRequest, context: Context) -> ExplainResponse:
        """The decision that would be taken now."""
        return explanation_to_pb(self._operations.explain(request.instance_id))

    async def ListEvents(self, request: ListEventsRequest, context: Context) -> ListEventsResponse:
        """One page; the token is this Controller's life and the last sequence of the page before."""
        size = _page_size(request)
        life, _, position = request.page_token.rpartition("-")
        expected = self._events.life if request.page_token else ""
        demand(life == expected, "page_token", "is not of this Controller; begin with the first page")
        kinds = {EVENT_KIND.from_pb(kind, f"kinds[{index}]") for index, kind in enumerate(request.kinds)}
        found = self._events.page(
            request.instance_id if request.HasField("instance_id") else None,
            kinds or frozenset(EventKind),
            after=_number(position) if request.page_token else None,
            newest_first=request.newest_first,
            size=size + 1,
        )
        now = self._clock.now()
        page = _fitting(event_to_pb(event, now) for event in found[:size])
        return ListEventsResponse(
            events=page,
            next_page_token=f"{self._events.life}-{page[-1].sequence}" if len(found) > len(page) else "",
        )

    async def PauseAutomation(self, request: PauseAutomationRequest, context: Context) -> PauseAutomationResponse:
        """No more decisions."""
        return PauseAutomationResponse(instance=await self._order(Order.PAUSE, request.header))

    async def ResumeAutomation(self, request: ResumeAutomationRequest, context: Context) -> ResumeAutomationResponse:
        """Decisions again."""
        return ResumeAutomationResponse(instance=await self._order(Order.RESUME, request.header))

    async def Reconfigure(self, request: ReconfigureRequest, context: Context) -> ReconfigureResponse:
        """Rebuild the instance."""
        return ReconfigureResponse(instance=await self._order(Order.RECONFIGURE, request.header))

    async def _order(self, order: Order, header: OperatorHeader) -> Instance:
        return status_to_pb(await self._operations.order(order, operator_from_header(header)))

    def _get(self, instance_id: int) -> InstanceStatus:
        status = self._instances.get(instance_id)
        if status is None:
            text = f"there is no instance {instance_id}; ListInstances shows which there are"
            raise FtError(Reason.UNKNOWN_INSTANCE, text, instance_id=instance_id)
        return status

    def _snapshot(self, wanted: int | None) -> Sequence[InstanceStatus]:
        if wanted is not None:
            return [self._get(wanted)]
        return sorted(self._instances.all(), key=lambda status: status.revision)


def _page_size(request: ListInstancesRequest | ListEventsRequest) -> int:
    demand(request.page_size >= 0, "page_size", f"must not be negative, not {request.page_size}")
    return min(request.page_size or DEFAULT_PAGE, MAX_PAGE)


def _fitting(messages: Iterable[M]) -> list[M]:
    """As many as fit into a page, the first in any case; the others are on the next one."""
    page: list[M] = []
    room = MAX_PAGE_BYTES
    for message in messages:
        room -= message.ByteSize()
        if page and room < 0:
            break
        page.append(message)
    return page


def _number(token: str) -> int:
    known = token.isascii() and token.isdecimal() and len(token) <= MAX_TOKEN_LENGTH
    demand(known, "page_token", "is not of an earlier page")
    return int(token)


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
