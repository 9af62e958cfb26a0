"""What a server promises around its services: start, health, reflection, shutdown."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry

from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import fault_report_pb2, fault_report_pb2_grpc, node_manager_pb2, node_manager_pb2_grpc
from motor_ft.wire.channel import call, open_channel
from motor_ft.wire.config import ConfigError
from motor_ft.wire.errors import from_rpc_error
from motor_ft.wire.metrics import RpcMetrics
from motor_ft.wire.policy import POLICIES, MethodPolicy
from motor_ft.wire.server import RpcServer
from tests.integration.wire.support import SERVICE, TIMEOUT, Context, Ledger, Served, Servicer, guard, header, serving

Status = health_pb2.HealthCheckResponse
GUARD = "/motor_ft.v1.NodeManagerService/Guard"


def health_stub(channel: grpc.aio.Channel) -> Any:
    """Return a stub that its types know nothing about."""
    return health_pb2_grpc.HealthStub(channel)


def server(listen: str = "127.0.0.1:0", **more: object) -> RpcServer:
    arguments = {"policies": POLICIES, "commands": Ledger(), "metrics": RpcMetrics(CollectorRegistry())} | more
    return RpcServer(name="test", listen=listen, **arguments)  # type: ignore[arg-type]


async def test_an_address_that_is_taken_is_named(served: Served) -> None:
    with pytest.raises(FtError, match=f"cannot listen on {served.address}: .*choose another") as refused:
        await server(served.address).start()
    assert refused.value.reason is Reason.PORT_UNAVAILABLE


async def test_an_address_without_a_port_is_refused() -> None:
    """gRPC alone would take port 443."""
    with pytest.raises(ConfigError, match="host:port"):
        await server("127.0.0.1").start()


async def test_a_unix_socket_is_served_and_has_no_port(tmp_path: Path) -> None:
    async with serving(listen=f"unix:{tmp_path}/s") as served:
        assert served.address == f"unix:{tmp_path}/s"
        await call(served.stub.Guard, guard(), timeout=TIMEOUT)


async def test_a_method_without_a_policy_is_refused_at_start() -> None:
    policies = {name: policy for name, policy in POLICIES.items() if name != GUARD}
    with pytest.raises(ValueError, match=f"{GUARD} has no policy"):
        add_node_manager(server(policies=policies))


async def test_a_policy_that_forgets_the_header_is_refused_at_start() -> None:
    with pytest.raises(ValueError, match=f"{GUARD} needs, for its header"):
        add_node_manager(server(policies={**POLICIES, GUARD: MethodPolicy()}))


async def test_commands_without_a_ledger_are_refused_at_start() -> None:
    with pytest.raises(ValueError, match="and a CommandLedger"):
        add_node_manager(server(commands=None))


async def test_a_stream_that_is_no_async_generator_is_refused_at_start() -> None:
    class Wrong(Servicer):
        async def WatchStatus(self, request: object, context: Context) -> None:  # type: ignore[override]
            """A coroutine that would write to the context."""

    running = server()
    with pytest.raises(ValueError, match="WatchStatus must be an async generator"):
        running.add(SERVICE, node_manager_pb2_grpc.add_NodeManagerServiceServicer_to_server, Wrong(Ledger()))


async def test_a_method_that_is_not_written_is_refused_at_start() -> None:
    running = server()
    with pytest.raises(ValueError, match="Guard must be"):
        running.add(
            SERVICE,
            node_manager_pb2_grpc.add_NodeManagerServiceServicer_to_server,
            node_manager_pb2_grpc.NodeManagerServiceServicer(),  # type: ignore[abstract]
        )


def add_node_manager(running: RpcServer) -> None:
    running.add(SERVICE, node_manager_pb2_grpc.add_NodeManagerServiceServicer_to_server, Servicer(Ledger()))


async def test_health_is_told_per_service_and_watched(served: Served) -> None:
    async with open_channel(served.address) as channel:
        health = health_stub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == Status.SERVING
        served.server.set_serving(SERVICE, False)
        assert (await watch.read()).status == Status.NOT_SERVING
        for service, status in {SERVICE: Status.NOT_SERVING, "": Status.SERVING}.items():
            request = health_pb2.HealthCheckRequest(service=service)
            assert (await call(health.Check, request, timeout=TIMEOUT)).status == status
        watch.cancel()


async def test_the_health_of_an_unknown_service_is_not_found(served: Served) -> None:
    async with open_channel(served.address) as channel:
        request = health_pb2.HealthCheckRequest(service="x")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await health_stub(channel).Check(request, timeout=TIMEOUT)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    labels = {"service": "grpc.health.v1.Health", "method": "Check", "code": "NOT_FOUND"}
    await served.counts(1, "motor_ft_rpc_total", **labels)


async def test_the_health_of_a_service_may_be_watched_before_it_is_there(served: Served) -> None:
    async with open_channel(served.address) as channel:
        watch = health_stub(channel).Watch(health_pb2.HealthCheckRequest(service="later"))
        assert (await watch.read()).status == Status.SERVICE_UNKNOWN
        served.server.set_serving(SERVICE, False)
        served.server.set_serving("later", True)
        assert (await watch.read()).status == Status.SERVING
        watch.cancel()


if hasattr(health_pb2, "HealthListRequest"):  # the oldest supported releases do not have it yet

    async def test_health_lists_every_service(served: Served) -> None:
        async with open_channel(served.address) as channel:
            request = health_pb2.HealthListRequest()  # type: ignore[attr-defined]
            response = await call(health_stub(channel).List, request, timeout=TIMEOUT)
        assert {"", SERVICE} <= set(response.statuses)


async def test_reflection_lists_the_services_and_knows_their_files(served: Served) -> None:
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
    ]
    async with open_channel(served.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]  # typed as synchronous
        stream = stub.ServerReflectionInfo(iter(requests))
        listed, file = [response async for response in stream]
    names = {service.name for service in listed.list_services_response.service}
    assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    files = map(FileDescriptorProto.FromString, file.file_descriptor_response.file_descriptor_proto)
    assert "motor_ft/v1/node_manager.proto" in {file.name for file in files}


async def test_reflection_may_be_off_and_what_is_not_served_is_unimplemented() -> None:
    running = server(reflection=False)
    port = await running.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]  # typed as synchronous
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")])).read()
    await running.stop(TIMEOUT)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_shutdown_ends_streams_with_their_reason(served: Served) -> None:
    async def watch(_context: Context) -> AsyncIterator[None]:
        yield None
        await asyncio.Event().wait()

    served.servicer.watch = watch
    stream = served.stub.WatchStatus(node_manager_pb2.WatchStatusRequest(header=header()))
    await stream.read()
    await served.server.stop(TIMEOUT)
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await stream.read()
    assert from_rpc_error(ended.value).reason is Reason.SHUTTING_DOWN


async def test_a_stream_that_is_left_closes_its_servicer(served: Served) -> None:
    closed = asyncio.Event()

    async def watch(_context: Context) -> AsyncIterator[None]:
        try:
            yield None
            await asyncio.Event().wait()
        finally:
            closed.set()

    served.servicer.watch = watch
    stream = served.stub.WatchStatus(node_manager_pb2.WatchStatusRequest(header=header()))
    await stream.read()
    stream.cancel()
    await closed.wait()


async def test_both_sides_of_a_bidirectional_stream_pass_the_chain() -> None:
    class Echo(fault_report_pb2_grpc.FaultReportServiceServicer):
        async def FaultReport(
            self, request_iterator: AsyncIterator[fault_report_pb2.FaultReportRequest], context: Context
        ) -> AsyncIterator[fault_report_pb2.FaultReportResponse]:
            async for request in request_iterator:
                yield fault_report_pb2.FaultReportResponse(ack=fault_report_pb2.Ack(sequence=request.sequence))

        async def ReportSoftwareFault(
            self, request: fault_report_pb2.ReportSoftwareFaultRequest, context: Context
        ) -> fault_report_pb2.ReportSoftwareFaultResponse:
            raise NotImplementedError

    running = server(commands=None)
    name = "motor_ft.v1.FaultReportService"
    running.add(name, fault_report_pb2_grpc.add_FaultReportServiceServicer_to_server, Echo())
    port = await running.start()
    async with open_channel(f"127.0.0.1:{port}") as channel:
        stream = fault_report_pb2_grpc.FaultReportServiceStub(channel).FaultReport()
        for sequence in (1, 2):
            await stream.write(fault_report_pb2.FaultReportRequest(sequence=sequence))
            answer = await stream.read()
            assert isinstance(answer, fault_report_pb2.FaultReportResponse)
            assert answer.ack.sequence == sequence
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
    await running.stop(TIMEOUT)
