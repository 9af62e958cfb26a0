"""Reporters of a test, and the desk that takes what they say."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from controller.core.reports import (
    AdapterHello,
    Directive,
    HardwareReport,
    Hello,
    Report,
    SoftwareFault,
    Welcome,
)
from motor_ft.model.errors import FtError
from motor_ft.v1 import common_pb2, fault_report_pb2, fault_report_pb2_grpc
from motor_ft.v1.fault_report_pb2 import FaultReportRequest, FaultReportResponse
from motor_ft.wire.convert import duration_to_pb
from motor_ft.wire.errors import from_rpc_error
from tests.integration.controller.serving import add_reports, connected, new_server

WELCOME = Welcome(
    instance_id=7,
    controller_epoch=3,
    generation=2,
    heartbeat_interval_sec=3.0,
    heartbeat_ttl_sec=30.0,
    enable_dp_scale_down_proxy=True,
    poll_interval_sec=1.0,
    status_unreachable_threshold=1,
    engine_request_timeout_sec=4.0,
)
Stream = grpc.aio.StreamStreamCall[FaultReportRequest, FaultReportResponse]


@dataclass
class Desk:
    """ports.Reports that keeps what arrives."""

    welcome: Welcome = WELCOME
    refuse_hello: FtError | None = None
    refuse: dict[int, Exception] = field(default_factory=dict)
    hellos: list[Hello | AdapterHello] = field(default_factory=list)
    delivered: list[tuple[str, int, Report | HardwareReport]] = field(default_factory=list)
    software: list[SoftwareFault] = field(default_factory=list)
    senders: list[Callable[[Directive | Welcome], None]] = field(default_factory=list)
    open: dict[str, asyncio.Event] = field(default_factory=dict)
    detached: list[str] = field(default_factory=list)

    async def attach(self, hello: Hello, send: Callable[[Directive | Welcome], None]) -> "Attached":
        if self.refuse_hello is not None:
            raise self.refuse_hello
        self.hellos.append(hello)
        self.senders.append(send)
        return Attached(self, hello.reporter_id)

    async def attach_adapter(self, hello: AdapterHello) -> "Attached":
        self.hellos.append(hello)
        return Attached(self, hello.reporter_id)

    async def report_software_fault(self, fault: SoftwareFault) -> None:
        self.software.append(fault)

    def sequences(self) -> list[int]:
        return [sequence for _, sequence, _ in self.delivered]


@dataclass
class Attached:
    """ports.Attachment of one reporter; waits while the reporter's gate is closed."""

    desk: Desk
    reporter: str

    @property
    def welcome(self) -> Welcome:
        return self.desk.welcome

    async def deliver(self, sequence: int, report: Report | HardwareReport) -> None:
        if (gate := self.desk.open.get(self.reporter)) is not None:
            await gate.wait()
        if (refusal := self.desk.refuse.get(sequence)) is not None:
            raise refusal
        self.desk.delivered.append((self.reporter, sequence, report))

    def detach(self) -> None:
        self.desk.detached.append(self.reporter)


def hello(reporter: str = "pod-0") -> FaultReportRequest:
    """A good first message."""
    return FaultReportRequest(
        hello=fault_report_pb2.Hello(
            kind=fault_report_pb2.REPORTER_KIND_NODE_MANAGER,
            reporter_id=reporter,
            incarnation="i-1",
            incarnation_number=4,
            highest_epoch=2,
            previous_instance_id=7,
            registration=fault_report_pb2.Registration(
                job_name="job",
                model_name="model",
                engine_type="vllm",
                role=common_pb2.ROLE_UNION,
                pod_name="pod-0",
                pod_ip="10.0.0.1",
                node_manager_address="10.0.0.1:9000",
                dp_size=2,
                tp_size=1,
                endpoints=[common_pb2.Endpoint(dp_rank=1, ip="10.0.0.1", business_port=8001)],
            ),
        )
    )


def dead(sequence: int) -> FaultReportRequest:
    """Rank 1 says that it is dead."""
    observation = common_pb2.EngineObservation(dp_rank=1, status=common_pb2.ENGINE_STATUS_DEAD, observation=5)
    source = common_pb2.EVIDENCE_SOURCE_ENGINE_REPORTED
    fault = fault_report_pb2.EngineFault(observation=observation, source=source, age=duration_to_pb(1.5))
    return FaultReportRequest(sequence=sequence, engine_fault=fault)


def healthy(sequence: int) -> FaultReportRequest:
    """Rank 0 is healthy."""
    observation = common_pb2.EngineObservation(status=common_pb2.ENGINE_STATUS_HEALTHY)
    return FaultReportRequest(sequence=sequence, engine_healthy=fault_report_pb2.EngineHealthy(observation=observation))


def heartbeat(status: common_pb2.EndpointStatus.ValueType = common_pb2.ENDPOINT_STATUS_NORMAL) -> FaultReportRequest:
    """A sign of life."""
    beat = fault_report_pb2.Heartbeat(endpoints=[common_pb2.EndpointState(dp_rank=1, status=status)])
    return FaultReportRequest(heartbeat=beat)


@asynccontextmanager
async def served(
    desk: Desk, *, enabled: bool = True, outbox_limit: int = 256
) -> "AsyncIterator[fault_report_pb2_grpc.FaultReportServiceAsyncStub]":
    """A stub of a running server."""
    server = new_server()
    add_reports(server, desk, enabled=enabled, outbox_limit=outbox_limit)
    async with connected(server) as channel:
        yield fault_report_pb2_grpc.FaultReportServiceStub(channel)


async def welcomed(stub: "fault_report_pb2_grpc.FaultReportServiceAsyncStub", reporter: str = "pod-0") -> Stream:
    """A stream after its Welcome."""
    stream = stub.FaultReport()
    await stream.write(hello(reporter))
    response = await read(stream)
    assert response.HasField("welcome")
    return stream


async def read(stream: Stream) -> FaultReportResponse:
    """The next message of the Controller; its refusal raises FtError."""
    try:
        async with asyncio.timeout(10):
            response = await stream.read()
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    assert isinstance(response, FaultReportResponse), "the stream has ended"
    return response
