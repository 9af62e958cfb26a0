"""The Controller's services on a real server with every interceptor."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
from prometheus_client import CollectorRegistry

from controller.core.ports import Reports
from controller.fault_manager.board import Board
from controller.rpc.controller import ControllerServicer
from controller.rpc.fault_report import FaultReportServicer
from controller.rpc.ledger import OrderLedger
from motor_ft.model.errors import FtError
from motor_ft.v1 import controller_pb2_grpc, fault_report_pb2_grpc
from motor_ft.wire.channel import open_channel
from motor_ft.wire.metrics import RpcMetrics
from motor_ft.wire.policy import POLICIES
from motor_ft.wire.server import RpcServer
from tests.support.world.world import Controller, LoopClock, World


def new_server(refusal: Callable[[], FtError | None] = lambda: None) -> RpcServer:
    """An empty server on any free port."""
    metrics = RpcMetrics(CollectorRegistry())
    return RpcServer(
        name="controller",
        listen="127.0.0.1:0",
        metrics=metrics,
        policies=POLICIES,
        commands=OrderLedger(),
        refusal=refusal,
    )


def add_reports(
    server: RpcServer, reports: Reports, *, enabled: bool = True, outbox_limit: int = 256
) -> FaultReportServicer:
    """Serve FaultReportService."""
    servicer = FaultReportServicer(reports, enabled=enabled, outbox_limit=outbox_limit)
    add_to_server = fault_report_pb2_grpc.add_FaultReportServiceServicer_to_server
    server.add("motor_ft.v1.FaultReportService", add_to_server, servicer)
    return servicer


def add_service(server: RpcServer, controller: Controller, *, progress_sec: float = 60.0) -> None:
    """Serve ControllerService of a Controller with the feature off."""
    servicer = ControllerServicer(
        controller.board,
        controller.histories,
        controller.manager,
        clock=LoopClock(),
        scale_down_disabled=True,
        progress_sec=progress_sec,
    )
    add_to_server = controller_pb2_grpc.add_ControllerServiceServicer_to_server
    server.add("motor_ft.v1.ControllerService", add_to_server, servicer)


def add_instances(server: RpcServer, board: Board, *, progress_sec: float = 60.0) -> None:
    """Serve ControllerService of a Controller of which there is only the board."""
    controller = World().controller
    controller.board = board
    add_service(server, controller, progress_sec=progress_sec)


@asynccontextmanager
async def connected(server: RpcServer) -> AsyncIterator[grpc.aio.Channel]:
    """Start the server and connect to it; stops both."""
    port = await server.start()
    channel = open_channel(f"127.0.0.1:{port}", peer="controller")
    try:
        yield channel
    finally:
        await channel.close()
        await server.stop(0)
