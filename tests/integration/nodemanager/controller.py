"""A Controller's end of the FaultReport stream that does what a test says."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from motor_ft.v1 import fault_report_pb2, fault_report_pb2_grpc
from motor_ft.v1.fault_report_pb2 import FaultReportRequest, FaultReportResponse
from motor_ft.wire.channel import MAX_MESSAGE_BYTES
from tests.integration.nodemanager.node import EPOCH, INSTANCE

Context = grpc.aio.ServicerContext[Any, Any]


def seconds(value: float) -> Duration:
    duration = Duration()
    duration.FromMilliseconds(round(value * 1000))
    return duration


def welcome(
    epoch: int = EPOCH,
    *,
    instance_id: int = INSTANCE,
    heartbeat: float = 60,
    ttl: float = 120,
    on: bool = True,
    engine_timeout: float = 1,
) -> FaultReportResponse:
    return FaultReportResponse(
        welcome=fault_report_pb2.Welcome(
            instance_id=instance_id,
            controller_epoch=epoch,
            heartbeat_interval=seconds(heartbeat),
            heartbeat_ttl=seconds(ttl),
            enable_dp_scale_down_proxy=on,
            poll_interval=seconds(0.05),
            status_unreachable_threshold=1,
            engine_request_timeout=seconds(engine_timeout),
        )
    )


def ack(sequence: int) -> FaultReportResponse:
    return FaultReportResponse(ack=fault_report_pb2.Ack(sequence=sequence))


def directive(epoch: int = EPOCH, **fields: Any) -> FaultReportResponse:
    return FaultReportResponse(directive=fault_report_pb2.Directive(controller_epoch=epoch, **fields))


class Conversation:
    """One stream."""

    def __init__(self) -> None:
        self._heard: asyncio.Queue[FaultReportRequest] = asyncio.Queue()
        self._to_say: asyncio.Queue[FaultReportResponse | None] = asyncio.Queue()

    async def hear(self) -> FaultReportRequest:
        """The next message."""
        return await asyncio.wait_for(self._heard.get(), 20)

    async def report(self) -> FaultReportRequest:
        """The next message that is no heartbeat."""
        while (message := await self.hear()).HasField("heartbeat"):
            pass
        return message

    async def beat(self) -> FaultReportRequest:
        """The next heartbeat."""
        while not (message := await self.hear()).HasField("heartbeat"):
            pass
        return message

    def say(self, *responses: FaultReportResponse) -> None:
        for response in responses:
            self._to_say.put_nowait(response)

    def end(self) -> None:
        self._to_say.put_nowait(None)

    @property
    def silent(self) -> bool:
        """Nothing more has arrived."""
        return self._heard.empty()

    async def run(self, requests: AsyncIterator[FaultReportRequest]) -> AsyncIterator[FaultReportResponse]:
        listening = asyncio.create_task(self._listen(requests), name="conversation")
        try:
            while (response := await self._to_say.get()) is not None:
                yield response
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    async def _listen(self, requests: AsyncIterator[FaultReportRequest]) -> None:
        async for request in requests:
            self._heard.put_nowait(request)


class ScriptedController(fault_report_pb2_grpc.FaultReportServiceServicer):
    """Hands every new stream to the test."""

    def __init__(self) -> None:
        self._conversations: asyncio.Queue[Conversation] = asyncio.Queue()
        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)])
        fault_report_pb2_grpc.add_FaultReportServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    async def called(self) -> Conversation:
        """The next stream that a NodeManager opens."""
        return await asyncio.wait_for(self._conversations.get(), 20)

    async def linked(self, **fields: Any) -> tuple[Conversation, FaultReportRequest]:
        """The next stream after Hello, Welcome and Snapshot, which is acknowledged; and the Snapshot."""
        conversation = await self.called()
        await conversation.hear()
        conversation.say(welcome(**fields))
        while not (message := await conversation.report()).HasField("snapshot"):
            pass
        conversation.say(ack(message.sequence))
        return conversation, message

    async def FaultReport(
        self, request_iterator: AsyncIterator[FaultReportRequest], context: Context
    ) -> AsyncIterator[FaultReportResponse]:
        conversation = Conversation()
        self._conversations.put_nowait(conversation)
        async for response in conversation.run(request_iterator):
            yield response

    async def ReportSoftwareFault(
        self, request: fault_report_pb2.ReportSoftwareFaultRequest, context: Context
    ) -> fault_report_pb2.ReportSoftwareFaultResponse:
        raise NotImplementedError
