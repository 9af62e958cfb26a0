"""What stands behind the REST routes in tests, and a client that reads JSON."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Never

import aiohttp
import grpc
from aiohttp import web
from prometheus_client import CollectorRegistry

from controller.rpc.ledger import OrderLedger
from gateway.metrics import RestMetrics
from gateway.rest.controller import controller_routes
from gateway.rest.controller_client import ControllerClient
from gateway.rest.server import RestServer
from motor_ft.model.command import Command
from motor_ft.model.engine import ApplyOutcome, EngineObservation, EngineStatus, RankOutcome
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import controller_pb2, controller_pb2_grpc, fault_report_pb2, fault_report_pb2_grpc
from motor_ft.wire.metrics import RpcMetrics
from motor_ft.wire.policy import POLICIES
from motor_ft.wire.server import RpcServer


@dataclass
class FakeNode:
    """A NodeFtPort that records what it is asked and answers what it is told."""

    enabled: bool = True
    instance_id: int = 7
    error: Exception | None = None
    readings: dict[int, EngineObservation] = field(default_factory=dict)
    outcome: ApplyOutcome = ApplyOutcome.ACCEPTED
    calls: list[tuple[object, ...]] = field(default_factory=list)

    def _record(self, *call: object) -> None:
        self.calls.append(call)
        if self.error is not None:
            raise self.error

    async def guard(self, command: Command, lease_sec: float) -> None:
        self._record("guard", command, lease_sec)

    async def status(self, ranks: tuple[int, ...]) -> tuple[EngineObservation, ...]:
        self._record("status", ranks)
        return tuple(self.readings.get(rank, EngineObservation(rank, EngineStatus.HEALTHY)) for rank in ranks)

    async def apply(
        self,
        command: Command,
        ranks: tuple[int, ...],
        removed: tuple[int, ...],
        dp_master_ip: str,
        dp_store_port: int | None,
    ) -> tuple[RankOutcome, ...]:
        self._record("apply", command, ranks, removed, dp_master_ip, dp_store_port)
        return tuple(RankOutcome(rank, self.outcome, "HTTP 400: no") for rank in ranks)

    async def finalize(self, command: Command, commit: bool, retired: tuple[int, ...]) -> None:
        self._record("finalize", command, commit, retired)


class Unasked(controller_pb2_grpc.ControllerServiceServicer):
    """What REST never asks a Controller."""

    async def Explain(self, request: object, context: object) -> Never:
        raise NotImplementedError

    async def ListEvents(self, request: object, context: object) -> Never:
        raise NotImplementedError

    async def PauseAutomation(self, request: object, context: object) -> Never:
        raise NotImplementedError

    async def ResumeAutomation(self, request: object, context: object) -> Never:
        raise NotImplementedError

    async def Reconfigure(self, request: object, context: object) -> Never:
        raise NotImplementedError


class FakeController(Unasked, fault_report_pb2_grpc.FaultReportServiceServicer):
    """A Controller with these instances."""

    def __init__(self) -> None:
        self.instances: dict[int, controller_pb2.Instance] = {}
        self.disabled = False
        self.refusal: FtError | None = None
        self.frozen = False
        self.reports: list[fault_report_pb2.ReportSoftwareFaultRequest] = []

    async def _answers(self) -> None:
        if self.frozen:
            await asyncio.Event().wait()
        if self.refusal is not None:
            raise self.refusal

    async def GetInstance(
        self, request: controller_pb2.GetInstanceRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> controller_pb2.GetInstanceResponse:
        await self._answers()
        if request.instance_id not in self.instances:
            raise FtError(Reason.UNKNOWN_INSTANCE, f"there is no instance {request.instance_id}")
        return controller_pb2.GetInstanceResponse(instance=self.instances[request.instance_id])

    async def ListInstances(
        self, request: controller_pb2.ListInstancesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> controller_pb2.ListInstancesResponse:
        """One instance on each page, whatever page size is asked for."""
        await self._answers()
        rest = sorted(number for number in self.instances if number > int(request.page_token or 0))
        return controller_pb2.ListInstancesResponse(
            instances=[self.instances[number] for number in rest[:1]],
            next_page_token=str(rest[0]) if len(rest) > 1 else "",
            scale_down_disabled=self.disabled,
        )

    async def WatchInstances(
        self, request: controller_pb2.WatchInstancesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[controller_pb2.WatchInstancesResponse]:
        yield controller_pb2.WatchInstancesResponse(snapshot_complete=True)

    async def FaultReport(
        self,
        request_iterator: AsyncIterator[fault_report_pb2.FaultReportRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[fault_report_pb2.FaultReportResponse]:
        yield fault_report_pb2.FaultReportResponse()

    async def ReportSoftwareFault(
        self, request: fault_report_pb2.ReportSoftwareFaultRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> fault_report_pb2.ReportSoftwareFaultResponse:
        self.reports.append(request)
        await self._answers()
        return fault_report_pb2.ReportSoftwareFaultResponse(accepted=not self.disabled)


class Rest:
    """A client of one REST server; answers are (status, body)."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.url + path) as answer:
            return answer.status, await answer.json()

    async def post(self, path: str, body: object) -> tuple[int, Any]:
        async with self.session.post(self.url + path, json=body) as answer:
            return answer.status, await answer.json()

    async def post_raw(self, path: str, body: bytes, media_type: str = "application/json") -> tuple[int, Any]:
        headers = {"Content-Type": media_type}
        async with self.session.post(self.url + path, data=body, headers=headers) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def serve_rest(routes: list[web.RouteDef]) -> AsyncIterator[Rest]:
    """Serve routes on a free port."""
    server = RestServer("127.0.0.1:0", routes, RestMetrics(CollectorRegistry()))
    port = await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Rest(session, f"http://127.0.0.1:{port}")
    finally:
        await server.stop()


@asynccontextmanager
async def serve_controller(controller: FakeController, listen: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """Serve a Controller, on any free port unless said otherwise; gives its address."""
    server = RpcServer(
        name="controller",
        listen=listen,
        metrics=RpcMetrics(CollectorRegistry()),
        policies=POLICIES,
        commands=OrderLedger(),
    )
    server.add("motor_ft.v1.ControllerService", controller_pb2_grpc.add_ControllerServiceServicer_to_server, controller)
    server.add(
        "motor_ft.v1.FaultReportService", fault_report_pb2_grpc.add_FaultReportServiceServicer_to_server, controller
    )
    port = await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(1.0)


@asynccontextmanager
async def serve_beside(*targets: str, timeout: float = 5.0) -> AsyncIterator[Rest]:
    """Serve the Controller's routes on top of Controllers at ``targets``."""
    client = ControllerClient(targets, timeout)
    try:
        async with serve_rest(controller_routes(client)) as rest:
            yield rest
    finally:
        await client.close()
