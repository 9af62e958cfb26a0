"""A reporter of hardware faults that a test speaks through: the stream of an adapter, without a cluster behind it."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import grpc

from motor_ft.model.hardware import FaultLevel, HardwareFault
from motor_ft.v1 import fault_report_pb2
from motor_ft.v1.fault_report_pb2 import FaultReportRequest, FaultReportResponse
from motor_ft.v1.fault_report_pb2_grpc import FaultReportServiceStub
from motor_ft.wire.convert import duration_from_pb
from motor_ft.wire.hardware import hardware_fault_to_pb
from tests.support.cluster.cluster import Cluster

ANSWER_SEC = 10.0


class HardwareReporter:
    """``async with HardwareReporter(cluster) as hardware:`` has said Hello, and that all hardware is well."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{cluster.controller_port}")
        self._stream = FaultReportServiceStub(self._channel).FaultReport()
        self._writing = asyncio.Lock()
        self._sequence = 0

    async def __aenter__(self) -> Self:
        hello = fault_report_pb2.Hello(
            kind=fault_report_pb2.REPORTER_KIND_MINDCLUSTER,
            reporter_id="test",
            incarnation="test#1",
            incarnation_number=1,
        )
        await self._stream.write(FaultReportRequest(hello=hello))
        welcome = (await self._read()).welcome
        self._beating = asyncio.create_task(self._beat(duration_from_pb(welcome.heartbeat_interval)), name="hardware")
        await self._report(FaultReportRequest(snapshot=fault_report_pb2.Snapshot()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beating.cancel()
        await asyncio.gather(self._beating, return_exceptions=True)
        self._stream.cancel()
        await self._channel.close()

    async def breaks(self, *cards: str, pod: int, rank: int | None = None) -> None:
        """These cards of a pod's node have a fault of L6 now, and the Controller has it."""
        for card in cards:
            self._cluster.note(f"hardware fault of {card or 'all cards'}", rank, node=f"node-{pod}")
            fault = HardwareFault(f"node-{pod}", card, "80E18402", FaultLevel.L6, "SeparateNPU", sources=("test",))
            await self._report(FaultReportRequest(hardware_fault=hardware_fault_to_pb(fault)))

    async def _report(self, message: FaultReportRequest) -> None:
        self._sequence += 1
        message.sequence = self._sequence
        await self._write(message)
        while (answer := await self._read()).ack.sequence < self._sequence:
            assert not answer.HasField("rejected"), answer

    async def _write(self, message: FaultReportRequest) -> None:
        async with self._writing:
            await self._stream.write(message)

    async def _read(self) -> FaultReportResponse:
        async with asyncio.timeout(ANSWER_SEC):
            answer = await self._stream.read()
        assert isinstance(answer, FaultReportResponse), "the Controller ended the stream"
        return answer

    async def _beat(self, interval_sec: float) -> None:
        while True:
            await self._write(FaultReportRequest(heartbeat=fault_report_pb2.Heartbeat()))
            await asyncio.sleep(interval_sec)
