"""Every service that our daemons serve, on real servers, and what a good request to each of its methods is."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships no types
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from prometheus_client import CollectorRegistry

from gateway.app import ENGINE_SERVICE, build_engine_service
from gateway.config import EngineAddress, EngineGatewayConfig
from motor_ft.model.errors import DOMAIN
from motor_ft.v1 import common_pb2, controller_pb2, engine_pb2, engine_pb2_grpc, fault_report_pb2
from motor_ft.v1 import node_lifecycle_pb2 as lifecycle_pb2
from motor_ft.v1 import node_manager_pb2 as node_pb2
from motor_ft.wire.channel import MAX_MESSAGE_BYTES
from motor_ft.wire.convert import command_to_header, duration_to_pb, plan_to_pb
from motor_ft.wire.errors import DETAILS_KEY
from motor_ft.wire.metrics import RpcMetrics
from motor_ft.wire.policy import POLICIES
from motor_ft.wire.server import RpcServer
from tests.integration.controller.reporters import hello
from tests.integration.controller.serving import add_reports, add_service, new_server
from tests.integration.gateway.test_engine_service import instruction, target
from tests.integration.nodemanager.gateway import ScriptedGateway
from tests.integration.nodemanager.node import Node, command
from tests.support.ports import free_port
from tests.support.world.pods import TWO_PODS
from tests.support.world.world import World

TIMEOUT = 30.0
_LIMITS = [("grpc.max_send_message_length", 4 * MAX_MESSAGE_BYTES), ("grpc.use_local_subchannel_pool", 1)]


class Answer(NamedTuple):
    """How a call ended; ``reason`` is empty where the answer is not one of ours."""

    code: grpc.StatusCode
    reason: str
    text: str


@dataclass(frozen=True)
class Surface:
    """One server and good requests to its methods. ``kept`` is what no refused request may change."""

    target: str
    channel: grpc.aio.Channel
    good: dict[str, Message]
    kept: Callable[[], object]

    async def ask(self, method: str, *requests: bytes) -> Answer:
        """Send these bytes; of a stream that only we could end the first answer is read."""
        described = describe(method)
        try:
            if described.client_streaming:
                await self._converse(method, requests)
            elif described.server_streaming:
                watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self.channel.unary_stream(method)
                stream = watch(requests[0], timeout=TIMEOUT)
                await stream.read()
                stream.cancel()
            else:
                call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(method)
                await call(requests[0], timeout=TIMEOUT)
        except grpc.aio.AioRpcError as error:
            return Answer(error.code(), _reason(error), error.details() or "")
        return Answer(grpc.StatusCode.OK, "", "")

    async def _converse(self, method: str, requests: tuple[bytes, ...]) -> None:
        async def requested() -> AsyncIterator[bytes]:
            for request in requests:
                yield request

        talk: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self.channel.stream_stream(method)
        async for _ in talk(requested(), timeout=TIMEOUT):
            pass


def describe(method: str) -> MethodDescriptor:
    """Of ``/service/Method``."""
    _, service, name = method.split("/")
    return descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]


def _reason(error: grpc.aio.AioRpcError) -> str:
    details = (error.trailing_metadata() or grpc.aio.Metadata()).get(DETAILS_KEY)
    info = error_details_pb2.ErrorInfo()
    found = status_pb2.Status.FromString(details).details if isinstance(details, bytes) else []
    return str(info.reason) if any(each.Unpack(info) for each in found) and info.domain == DOMAIN else ""


def _everywhere() -> dict[str, Message]:
    return {
        "/grpc.health.v1.Health/Check": health_pb2.HealthCheckRequest(),
        "/grpc.health.v1.Health/List": health_pb2.HealthListRequest(),  # type: ignore[attr-defined]
        "/grpc.health.v1.Health/Watch": health_pb2.HealthCheckRequest(),
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": reflection_pb2.ServerReflectionRequest(
            list_services=""
        ),
    }


@asynccontextmanager
async def _open(port: int, good: dict[str, Message], kept: Callable[[], object]) -> AsyncIterator[Surface]:
    target = f"127.0.0.1:{port}"
    async with grpc.aio.insecure_channel(target, options=_LIMITS) as channel:
        yield Surface(target, channel, good | _everywhere(), kept)


@asynccontextmanager
async def controller() -> AsyncIterator[Surface]:
    """A Controller of one instance that serves."""
    order = common_pb2.OperatorHeader(instance_id=1, request_id="op", operator="ann", reason="because")
    service = "/motor_ft.v1.ControllerService/"
    good = {
        f"{service}GetInstance": controller_pb2.GetInstanceRequest(instance_id=1),
        f"{service}ListInstances": controller_pb2.ListInstancesRequest(),
        f"{service}WatchInstances": controller_pb2.WatchInstancesRequest(instance_id=1),
        f"{service}Explain": controller_pb2.ExplainRequest(instance_id=1),
        f"{service}ListEvents": controller_pb2.ListEventsRequest(instance_id=1),
        f"{service}PauseAutomation": controller_pb2.PauseAutomationRequest(header=order),
        f"{service}ResumeAutomation": controller_pb2.ResumeAutomationRequest(header=order),
        f"{service}Reconfigure": controller_pb2.ReconfigureRequest(header=order),
        "/motor_ft.v1.FaultReportService/FaultReport": hello(),
        "/motor_ft.v1.FaultReportService/ReportSoftwareFault": fault_report_pb2.ReportSoftwareFaultRequest(
            pod_ip="10.0.0.1", node_manager_port=9000, engine_id=1, engine_status=common_pb2.ENGINE_STATUS_HEALTHY
        ),
    }
    async with World(*TWO_PODS) as world:
        server = new_server()
        add_service(server, world.controller)
        add_reports(server, world.manager)
        port = await server.start()
        await world.serve()
        async with _open(port, good, lambda: _ordered(world)) as surface:
            yield surface
        await server.stop(0)


def _ordered(world: World) -> object:
    statuses = world.controller.board.all()
    return [(each.instance_id, each.automation_paused, each.engine_statuses) for each in statuses], world.stops.copy()


@asynccontextmanager
async def node_manager(directory: Path) -> AsyncIterator[Surface]:
    """A NodeManager of two ranks of an instance."""
    async with Node(directory, ScriptedGateway(), ranks=(0, 1), launched=()).running() as node:
        await node.join()
        header, plan = command_to_header(command()), node.plan()
        service, lifecycle = "/motor_ft.v1.NodeManagerService/", "/motor_ft.v1.NodeLifecycleService/"
        good = {
            f"{service}Guard": node_pb2.GuardRequest(header=header, lease=duration_to_pb(60.0), plan=plan_to_pb(plan)),
            f"{service}Status": node_pb2.StatusRequest(header=header, dp_ranks=[0]),
            f"{service}Apply": node.apply_request(command(), plan, 0),
            f"{service}Finalize": node_pb2.FinalizeRequest(header=header, commit=True, retired_dp_ranks=[1]),
            f"{service}WatchStatus": node_pb2.WatchStatusRequest(header=header, dp_ranks=[0]),
            f"{service}Probe": node_pb2.ProbeRequest(header=header, dp_ranks=[0], timeout=duration_to_pb(1.0)),
            f"{lifecycle}Stop": lifecycle_pb2.StopRequest(header=header, reason="because"),
            f"{lifecycle}RestartEngines": lifecycle_pb2.RestartEnginesRequest(
                header=header, reason="because", timeout=duration_to_pb(10.0)
            ),
        }
        async with _open(node.port, good, lambda: node.state) as surface:
            yield surface


@asynccontextmanager
async def gateway() -> AsyncIterator[Surface]:
    """A gateway of one engine, which is not there."""
    registry = CollectorRegistry()
    engines = (EngineAddress(0, f"http://127.0.0.1:{free_port()}"),)
    parts = build_engine_service(EngineGatewayConfig(engines=engines, dialect="vllm_v1"), registry)
    server = RpcServer(
        name="test",
        listen="127.0.0.1:0",
        metrics=RpcMetrics(registry),
        policies=POLICIES,
        commands=parts.ledger,
    )
    server.add(ENGINE_SERVICE, engine_pb2_grpc.add_EngineServiceServicer_to_server, parts.servicer)
    timeout, one = duration_to_pb(1.0), target(0)
    good = {
        f"/{ENGINE_SERVICE}/GetEngineStatus": engine_pb2.GetEngineStatusRequest(targets=[one], timeout=timeout),
        f"/{ENGINE_SERVICE}/WatchEngine": engine_pb2.WatchEngineRequest(targets=[one], interval=timeout),
        f"/{ENGINE_SERVICE}/ApplyInstruction": instruction(),
        f"/{ENGINE_SERVICE}/ProbeCompletion": engine_pb2.ProbeCompletionRequest(target=one, timeout=timeout),
    }
    async with _open(await server.start(), good, lambda: None) as surface:
        yield surface
    await server.stop(0)
    await parts.close()
