"""A fault service that behaves like ClusterD's.

What it does as the real one does: subscribing needs a registration, which ends with the stream; the same job and role
registered again ends the older stream with OK; a new subscriber hears only of jobs that have faults; what cleared
while nobody listened is never told; a query of the cluster has the job id ``-1``.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any, Self

import grpc

from motor_ft.clusterd import fault_pb2_grpc
from motor_ft.clusterd.fault_pb2 import (
    ClientInfo,
    DeviceFaultInfo,
    FaultMsgSignal,
    FaultQueryResult,
    NodeFaultInfo,
    Status,
)

Context = grpc.aio.ServicerContext[Any, Any]


def npu_fault(node: str, device_id: str, code: str, level: str) -> NodeFaultInfo:
    """One node with one fault of one card."""
    device = DeviceFaultInfo(
        deviceId=device_id, deviceType="NPU", faultCodes=[code], faultLevel="UnHealthy", faultLevels=[level]
    )
    return NodeFaultInfo(nodeName=node, nodeIP="192.0.2.1", faultLevel="UnHealthy", faultDevice=[device])


class FakeClusterD(fault_pb2_grpc.FaultServicer):
    """Jobs with faults. ``refuse`` is answered to registrations, ``no_signal`` is the code of an answer without one."""

    def __init__(self, listen: str = "127.0.0.1:0") -> None:
        self.refuse: Status | None = None
        self.no_signal = 0
        self.queries = 0
        self.roles: list[str] = []
        self._jobs: dict[str, list[NodeFaultInfo]] = {}
        self._cluster: list[NodeFaultInfo] = []
        self._registered: set[tuple[str, str]] = set()
        self._streams: dict[tuple[str, str], asyncio.Queue[FaultMsgSignal | None]] = {}
        self.address = listen

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        fault_pb2_grpc.add_FaultServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(self.address)}"
        await self._server.start()

    async def stop(self) -> None:
        self.cut()
        await self._server.stop(0)

    @property
    def subscribers(self) -> int:
        """Open streams."""
        return len(self._streams)

    def job(self, job_id: str, nodes: Iterable[NodeFaultInfo]) -> None:
        """A job has these faults now, and whoever listens is told."""
        self._jobs[job_id] = list(nodes)
        for queue in self._streams.values():
            queue.put_nowait(self._signal(job_id))

    def delete_job(self, job_id: str) -> None:
        """A job has ended, which is told to nobody."""
        del self._jobs[job_id]

    def cluster(self, nodes: Iterable[NodeFaultInfo]) -> None:
        """What a query shows."""
        self._cluster = list(nodes)

    def cut(self) -> None:
        """End every stream, as a proxy does with silent ones."""
        for queue in self._streams.values():
            queue.put_nowait(None)

    async def Register(self, request: ClientInfo, context: Context) -> Status:
        """Register for one subscription."""
        if self.refuse is not None:
            return self.refuse
        who = (request.jobId, request.role)
        if (older := self._streams.pop(who, None)) is not None:
            older.put_nowait(None)
        self._registered.add(who)
        self.roles.append(request.role)
        return Status(code=0, info="register success")

    async def SubscribeFaultMsgSignal(self, request: ClientInfo, context: Context) -> AsyncIterator[FaultMsgSignal]:
        """Tell of jobs that have faults, then of changes."""
        who = (request.jobId, request.role)
        if who not in self._registered:
            await context.abort(grpc.StatusCode.UNKNOWN, "not registered")
        queue: asyncio.Queue[FaultMsgSignal | None] = asyncio.Queue()
        self._streams[who] = queue
        for job_id, nodes in self._jobs.items():
            if nodes:
                queue.put_nowait(self._signal(job_id))
        try:
            while (signal := await queue.get()) is not None:
                yield signal
        finally:
            if self._streams.get(who) is queue:
                del self._streams[who]
                self._registered.discard(who)

    async def GetFaultMsgSignal(self, request: ClientInfo, context: Context) -> FaultQueryResult:
        """Tell of the whole cluster."""
        self.queries += 1
        if self.no_signal:
            return FaultQueryResult(code=self.no_signal, info="nothing to say")
        signal = FaultMsgSignal(uuid=str(uuid.uuid4()), jobId="-1", signalType="fault", nodeFaultInfo=self._cluster)
        return FaultQueryResult(code=200, info="OK", faultSignal=signal)

    def _signal(self, job_id: str) -> FaultMsgSignal:
        nodes = self._jobs[job_id]
        kind = "fault" if nodes else "normal"
        return FaultMsgSignal(uuid=str(uuid.uuid4()), jobId=job_id, signalType=kind, nodeFaultInfo=nodes)
