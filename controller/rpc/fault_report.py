"""FaultReportService: everything that reporters say (protocol.md section 2)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import grpc

from controller.convert import (
    directive_to_pb,
    hardware_report_from_pb,
    hello_from_pb,
    report_from_pb,
    software_fault_from_pb,
    welcome_to_pb,
)
from controller.core.ports import Attachment, Reports
from controller.core.reports import AdapterHello, Directive, HardwareReport, Report, Welcome
from controller.rpc.outbox import Outbox
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import fault_report_pb2, fault_report_pb2_grpc
from motor_ft.v1.fault_report_pb2 import FaultReportRequest, FaultReportResponse
from motor_ft.wire.log import get_logger

HELLO_SEC = 10.0
OUTBOX_LIMIT = 256
STEP_DOWN_SEC = 1.0

_ENDS_STREAM = frozenset({Reason.STALE_INCARNATION, Reason.NOT_LEADER, Reason.SHUTTING_DOWN})
"""Refusals of the reporter, not of the one report."""

_log = get_logger(__name__)
ReportT = TypeVar("ReportT")
Context = grpc.aio.ServicerContext[Any, Any]


class FaultReportServicer(fault_report_pb2_grpc.FaultReportServiceServicer):
    """One stream per reporter, each with its own receiver and outbox, so that none can delay another.

    With fault tolerance not ``enabled`` streams go on as heartbeats; single software faults are not taken. A Controller
    that does not lead ends a stream with NotLeader, which says where to go.
    """

    def __init__(self, reports: Reports, *, enabled: bool, outbox_limit: int = OUTBOX_LIMIT) -> None:
        self._reports = reports
        self._enabled = enabled
        self._outbox_limit = outbox_limit
        self._outboxes: dict[asyncio.Task[None], Outbox] = {}

    async def FaultReport(
        self, request_iterator: AsyncIterator[FaultReportRequest], context: Context
    ) -> AsyncIterator[FaultReportResponse]:
        """Hello, Welcome, then reports up and what they are answered with down."""
        try:
            async with aclosing(self._converse(aiter(request_iterator))) as responses:
                async for response in responses:
                    yield response
        except FtError as error:
            if error.reason is not Reason.NOT_LEADER:
                raise
            leader = error.metadata.get("leader", "")
            yield FaultReportResponse(not_leader=fault_report_pb2.NotLeader(leader=leader))

    async def step_down(self) -> None:
        """End every stream, whoever leads next; one whose peer does not read is left to the end of the server."""
        for outbox in self._outboxes.values():
            outbox.close(FtError(Reason.NOT_LEADER, "this Controller ends; ask another one"))
        if self._outboxes:
            await asyncio.wait(self._outboxes, timeout=STEP_DOWN_SEC)

    async def _converse(self, requests: AsyncIterator[FaultReportRequest]) -> AsyncGenerator[FaultReportResponse, None]:
        hello = hello_from_pb(await _receive(requests, HELLO_SEC))
        outbox = Outbox(self._outbox_limit)
        attachment: Attachment[Report] | Attachment[HardwareReport]
        if isinstance(hello, AdapterHello):
            attachment = adapter = await self._reports.attach_adapter(hello)
            receiving = _receive_all(requests, adapter, hardware_report_from_pb, outbox)
        else:
            attachment = pod = await self._reports.attach(hello, lambda message: outbox.put(_response(message)))
            receiving = _receive_all(requests, pod, report_from_pb, outbox)
        # The receiver alone keeps a peer attached: one that does not read may block this generator for ever.
        receiver = asyncio.create_task(receiving, name=f"fault reports of {hello.reporter_id}")
        receiver.add_done_callback(lambda _: attachment.detach())
        receiver.add_done_callback(lambda _: outbox.close())
        receiver.add_done_callback(self._outboxes.pop)
        self._outboxes[receiver] = outbox
        try:
            yield FaultReportResponse(welcome=welcome_to_pb(attachment.welcome))
            while (response := await outbox.next(attachment.welcome.heartbeat_interval_sec)) is not None:
                yield response
            await receiver
        finally:
            receiver.cancel()
            await asyncio.gather(receiver, return_exceptions=True)

    async def ReportSoftwareFault(
        self, request: fault_report_pb2.ReportSoftwareFaultRequest, context: Context
    ) -> fault_report_pb2.ReportSoftwareFaultResponse:
        """One fault from a reporter that keeps no stream."""
        fault = software_fault_from_pb(request)
        if self._enabled:
            await self._reports.report_software_fault(fault)
        return fault_report_pb2.ReportSoftwareFaultResponse(accepted=self._enabled)


async def _receive(requests: AsyncIterator[FaultReportRequest], silence_sec: float) -> FaultReportRequest:
    try:
        async with asyncio.timeout(silence_sec):
            return await anext(requests)
    except TimeoutError as error:
        # Keepalive does not notice a process that is frozen: its kernel still answers.
        raise FtError(Reason.OUTCOME_UNKNOWN, f"nothing came for {silence_sec:g} s; connect again") from error


async def _receive_all(
    requests: AsyncIterator[FaultReportRequest],
    attachment: Attachment[ReportT],
    parse: Callable[[FaultReportRequest], ReportT],
    outbox: Outbox,
) -> None:
    """Deliver until the reporter ends the stream or is cut; raises FtError when we end it."""
    refused: set[Reason] = set()
    while not outbox.cut:
        try:
            request = await _receive(requests, attachment.welcome.heartbeat_ttl_sec)
        except StopAsyncIteration:
            return
        try:
            await attachment.deliver(request.sequence, parse(request))
        except FtError as error:
            if error.reason in _ENDS_STREAM:
                raise
            log = _log.debug if error.reason in refused else _log.info  # a storm is not written down one by one
            log("report rejected", sequence=request.sequence, reason=error.reason, text=error.message)
            refused.add(error.reason)
            outbox.put(_rejected(request.sequence, error))
        outbox.acknowledge(request.sequence)


def _response(message: Directive | Welcome) -> FaultReportResponse:
    if isinstance(message, Welcome):
        return FaultReportResponse(welcome=welcome_to_pb(message))
    return FaultReportResponse(directive=directive_to_pb(message))


def _rejected(sequence: int, error: FtError) -> FaultReportResponse:
    rejected = fault_report_pb2.Rejected(sequence=sequence, reason=error.reason, message=error.message)
    return FaultReportResponse(rejected=rejected)
