"""The FaultReport stream over real connections (protocol.md section 2)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import pytest

from controller.core.reports import (
    AdapterHello,
    Directive,
    EngineFault,
    EngineHealthy,
    HardwareReport,
    Heartbeat,
    Hello,
    Report,
    SoftwareFault,
    Welcome,
)
from motor_ft.model.engine import EngineStatus, EvidenceSource
from motor_ft.model.errors import FieldError, FtError, Reason
from motor_ft.model.hardware import FaultLevel, HardwareFault
from motor_ft.v1 import common_pb2, fault_report_pb2, fault_report_pb2_grpc
from motor_ft.v1.fault_report_pb2 import FaultReportRequest, FaultReportResponse
from motor_ft.wire.channel import call
from motor_ft.wire.convert import duration_to_pb
from motor_ft.wire.errors import from_rpc_error
from motor_ft.wire.hardware import hardware_fault_to_pb
from tests.integration.controller.serving import add_reports, connected, new_server
from tests.support.waiting import until

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


async def test_hello_is_answered_with_welcome() -> None:
    desk = Desk()
    async with served(desk) as stub:
        stream = stub.FaultReport()
        await stream.write(hello())
        answer = await read(stream)
        assert answer.welcome == fault_report_pb2.Welcome(
            instance_id=7,
            controller_epoch=3,
            generation=2,
            heartbeat_interval=duration_to_pb(3),
            heartbeat_ttl=duration_to_pb(30),
            enable_dp_scale_down_proxy=True,
            poll_interval=duration_to_pb(1),
            status_unreachable_threshold=1,
            engine_request_timeout=duration_to_pb(4),
        )
    (first,) = desk.hellos
    assert isinstance(first, Hello)
    assert (first.reporter_id, first.incarnation, first.incarnation_number) == ("pod-0", "i-1", 4)
    assert (first.highest_epoch, first.previous_instance_id) == (2, 7)
    assert (first.registration.pod_uid, first.registration.endpoints[0].rank) == ("pod-0", 1)


async def test_an_ack_means_that_the_fault_manager_has_it() -> None:
    """Nothing is acknowledged before ``deliver`` has returned; acknowledgements are cumulative."""
    desk = Desk(open={"pod-0": asyncio.Event()})
    async with served(desk) as stub:
        stream = await welcomed(stub)
        for sequence in (1, 2, 3):
            await stream.write(dead(sequence))
        desk.senders[0](Directive(3, send_snapshot=True))
        assert (await read(stream)).directive.send_snapshot
        assert desk.delivered == []
        desk.open["pod-0"].set()
        acknowledged = 0
        while acknowledged < 3:
            acknowledged = (await read(stream)).ack.sequence
            assert max(desk.sequences()) >= acknowledged
    _, _, report = desk.delivered[0]
    assert isinstance(report, EngineFault)
    assert (report.observation.rank, report.observation.status) == (1, EngineStatus.DEAD)
    assert (report.source, report.age_sec) == (EvidenceSource.ENGINE_REPORTED, 1.5)


async def test_a_refused_report_is_rejected_with_its_reason_and_the_stream_goes_on() -> None:
    """Rejected comes before the Ack that covers it; so a reporter never takes a refused fault for delivered."""
    desk = Desk(refuse={1: FtError(Reason.TOPOLOGY_MISMATCH, "not your rank")})
    async with served(desk) as stub:
        stream = await welcomed(stub)
        await stream.write(dead(1))
        rejected = (await read(stream)).rejected
        assert (rejected.sequence, rejected.reason, rejected.message) == (1, "TOPOLOGY_MISMATCH", "not your rank")
        assert (await read(stream)).ack.sequence == 1
        await stream.write(healthy(2))
        assert (await read(stream)).ack.sequence == 2
    assert [type(report) for _, _, report in desk.delivered] == [EngineHealthy]


@pytest.mark.parametrize(
    "message",
    [
        FaultReportRequest(sequence=1),
        FaultReportRequest(sequence=1, heartbeat=fault_report_pb2.Heartbeat()),
        FaultReportRequest(sequence=1, engine_fault=fault_report_pb2.EngineFault()),
        FaultReportRequest(sequence=1, hello=hello().hello),
        FaultReportRequest(sequence=-1, engine_healthy=healthy(1).engine_healthy),
        healthy(0),
        heartbeat(common_pb2.ENDPOINT_STATUS_UNSPECIFIED),
    ],
    ids=["empty", "numbered heartbeat", "no reading", "second hello", "negative", "not numbered", "no status"],
)
async def test_a_malformed_report_is_rejected_and_the_stream_goes_on(message: FaultReportRequest) -> None:
    desk = Desk()
    async with served(desk) as stub:
        stream = await welcomed(stub)
        await stream.write(message)
        rejected = (await read(stream)).rejected
        assert (rejected.sequence, rejected.reason) == (message.sequence, "INVALID_REQUEST")
        await stream.write(healthy(2))
        await until(lambda: desk.sequences() == [2])


async def test_heartbeats_are_not_acknowledged() -> None:
    desk = Desk()
    async with served(desk) as stub:
        stream = await welcomed(stub)
        await stream.write(heartbeat())
        await stream.write(healthy(1))
        assert (await read(stream)).ack.sequence == 1
    (_, sequence, report), _ = desk.delivered
    assert (sequence, type(report)) == (0, Heartbeat)


async def test_hello_comes_first() -> None:
    async with served(Desk()) as stub:
        stream = stub.FaultReport()
        await stream.write(heartbeat())
        with pytest.raises(FieldError, match="the first message of a stream must be hello"):
            await read(stream)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"kind": fault_report_pb2.REPORTER_KIND_UNSPECIFIED}, "hello.kind"),
        ({"reporter_id": ""}, "hello.reporter_id"),
        ({"incarnation": ""}, "hello.incarnation"),
        ({"incarnation_number": 0}, "hello.incarnation_number"),
        ({"highest_epoch": -1}, "hello.highest_epoch"),
        ({"highest_epoch": 2**63 - 1}, "hello.highest_epoch"),
        ({"previous_instance_id": -1}, "hello.previous_instance_id"),
    ],
)
async def test_a_malformed_hello_is_refused_by_field(change: dict[str, object], path: str) -> None:
    message = hello()
    for name, value in change.items():
        setattr(message.hello, name, value)
    desk = Desk()
    async with served(desk) as stub:
        stream = stub.FaultReport()
        await stream.write(message)
        with pytest.raises(FieldError) as refusal:
            await read(stream)
    assert list(refusal.value.violations) == [path]
    assert desk.hellos == []


async def test_an_adapter_of_hardware_faults_brings_no_registration_and_reports_hardware_only() -> None:
    """Sequences, acks and refusals are those of everybody; what a NodeManager would say is refused."""
    desk = Desk()
    card = HardwareFault("node-a", "Ascend910-4", "80E18402", FaultLevel.L6, "SeparateNPU")
    async with served(desk) as stub:
        stream = stub.FaultReport()
        message = hello("adapter")
        message.hello.kind = fault_report_pb2.REPORTER_KIND_MINDCLUSTER
        message.hello.ClearField("registration")
        await stream.write(message)
        assert (await read(stream)).HasField("welcome")
        await stream.write(FaultReportRequest(heartbeat=fault_report_pb2.Heartbeat()))
        await stream.write(FaultReportRequest(sequence=1, hardware_fault=hardware_fault_to_pb(card)))
        assert (await read(stream)).ack.sequence == 1
        await stream.write(dead(2))
        rejected = (await read(stream)).rejected
        assert (rejected.sequence, rejected.reason) == (2, "INVALID_REQUEST")
        await stream.done_writing()
        await until(lambda: desk.detached == ["adapter"])
    assert desk.hellos == [AdapterHello("adapter", "i-1", 4, 2)]
    assert desk.delivered == [("adapter", 0, Heartbeat(())), ("adapter", 1, card)]


async def test_a_hello_without_registration_is_refused() -> None:
    message = hello()
    message.hello.ClearField("registration")
    async with served(Desk()) as stub:
        stream = stub.FaultReport()
        await stream.write(message)
        with pytest.raises(FieldError, match=r"hello\.registration: must be present"):
            await read(stream)


async def test_a_reporter_that_is_not_admitted_learns_why() -> None:
    desk = Desk(refuse_hello=FtError(Reason.STALE_INCARNATION, "started again since", got=1, current=4))
    async with served(desk) as stub:
        stream = stub.FaultReport()
        await stream.write(hello())
        with pytest.raises(FtError) as refusal:
            await read(stream)
    assert (refusal.value.reason, refusal.value.metadata["current"]) == (Reason.STALE_INCARNATION, "4")


async def test_a_stream_that_another_one_replaced_is_ended() -> None:
    """What is refused is the reporter, not the report."""
    desk = Desk(refuse={1: FtError(Reason.STALE_INCARNATION, "another stream has taken over")})
    async with served(desk) as stub:
        stream = await welcomed(stub)
        await stream.write(dead(1))
        with pytest.raises(FtError) as refusal:
            await read(stream)
        assert refusal.value.reason is Reason.STALE_INCARNATION
        assert desk.detached == ["pod-0"]


async def test_a_silent_stream_is_ended() -> None:
    """Keepalive does not notice a frozen process; the TTL of Welcome does."""
    desk = Desk(Welcome(7, 3, 2, 0.1, 0.3, True, 1.0, 1, 4.0))
    async with served(desk) as stub:
        stream = await welcomed(stub)
        with pytest.raises(FtError, match=r"nothing came for 0\.3 s"):
            await read(stream)
        assert desk.detached == ["pod-0"]


async def test_a_stream_whose_reporter_is_gone_is_detached() -> None:
    """By its own end, or by a connection that is simply gone."""
    desk = Desk()
    async with served(desk) as stub:
        polite = await welcomed(stub, "polite")
        await polite.done_writing()
        assert await polite.read() is grpc.aio.EOF
        gone = await welcomed(stub, "gone")
        gone.cancel()
        await until(lambda: desk.detached == ["polite", "gone"])


async def test_directives_and_a_later_welcome_go_down_in_order() -> None:
    desk = Desk()
    async with served(desk) as stub:
        stream = await welcomed(stub)
        send = desk.senders[0]
        send(Directive(3, fast_poll=True, freeze_suicide_sec=60.0))
        send(Directive(3, fast_poll=False, freeze_suicide_sec=0.0))
        send(Directive(3, send_snapshot=True))
        send(WELCOME)
        fast, slow, snapshot, again = [await read(stream) for _ in range(4)]
    assert fast.directive.poll_mode == fault_report_pb2.POLL_MODE_FAST
    assert fast.directive.freeze_suicide == duration_to_pb(60)
    assert slow.directive.poll_mode == fault_report_pb2.POLL_MODE_NORMAL
    assert slow.directive.HasField("freeze_suicide")
    assert snapshot.directive == fault_report_pb2.Directive(controller_epoch=3, send_snapshot=True)
    assert again.welcome.instance_id == 7


async def test_a_stream_on_which_too_much_waits_is_cut() -> None:
    """Never silently skipped, and never more memory than the limit."""
    desk = Desk()
    async with served(desk, outbox_limit=3) as stub:
        stream = await welcomed(stub)
        for _ in range(100):
            desk.senders[0](Directive(3, send_snapshot=True))
        with pytest.raises(FtError) as cut:
            await read(stream)
        assert cut.value.reason is Reason.OVERLOADED
        assert desk.detached == ["pod-0"]


async def test_a_peer_that_does_not_read_is_detached() -> None:
    """The Controller must not believe that a pod can be told something when its stream is stuck."""
    large = FtError(Reason.TOPOLOGY_MISMATCH, "x" * 1_000_000)  # far more than the stream takes without a reader
    desk = Desk(refuse=dict.fromkeys(range(1, 11), large))
    async with served(desk, outbox_limit=3) as stub:
        stream = await welcomed(stub)
        for sequence in desk.refuse:
            await stream.write(dead(sequence))
        await until(lambda: desk.detached == ["pod-0"])
        stream.cancel()


async def test_a_slow_reporter_delays_nobody() -> None:
    """While the reports of one pod wait, those of another are delivered and acknowledged."""
    desk = Desk(open={"slow": asyncio.Event()})
    async with served(desk) as stub:
        slow, quick = await welcomed(stub, "slow"), await welcomed(stub, "quick")
        await slow.write(dead(1))
        for sequence in range(1, 20):
            await quick.write(healthy(sequence))
            assert (await read(quick)).ack.sequence == sequence
        assert {reporter for reporter, _, _ in desk.delivered} == {"quick"}
        desk.open["slow"].set()
        assert (await read(slow)).ack.sequence == 1


async def test_a_defect_ends_the_stream_without_telling_secrets() -> None:
    desk = Desk(refuse={1: RuntimeError("secret")})
    async with served(desk) as stub:
        stream = await welcomed(stub)
        await stream.write(dead(1))
        with pytest.raises(FtError) as failure:
            await read(stream)
        assert failure.value.reason is Reason.INTERNAL
        assert "secret" not in failure.value.message
        assert desk.detached == ["pod-0"]


async def test_shutdown_ends_every_stream() -> None:
    desk = Desk()
    server = new_server()
    add_reports(server, desk)
    async with connected(server) as channel:
        stub = fault_report_pb2_grpc.FaultReportServiceStub(channel)
        streams = [await welcomed(stub, f"pod-{number}") for number in range(3)]
        await server.stop(5.0)
        for stream in streams:
            with pytest.raises(FtError) as end:
                await read(stream)
            assert end.value.reason is Reason.SHUTTING_DOWN
    assert sorted(desk.detached) == ["pod-0", "pod-1", "pod-2"]


def software_fault(**change: object) -> fault_report_pb2.ReportSoftwareFaultRequest:
    """A good report over the unary RPC."""
    fields: dict[str, object] = {
        "pod_ip": "10.0.0.1",
        "node_manager_port": 9000,
        "engine_id": 1,
        "engine_status": common_pb2.ENGINE_STATUS_DEAD,
        "exception_type": "EngineDeadError",
        "exception_message": "rank 1 is gone",
        "additional_info": {"card": "3"},
    }
    return fault_report_pb2.ReportSoftwareFaultRequest(**(fields | change))  # type: ignore[arg-type]


async def test_a_software_fault_over_the_unary_rpc() -> None:
    desk = Desk()
    async with served(desk) as stub:
        assert (await call(stub.ReportSoftwareFault, software_fault(instance_id=7), timeout=5)).accepted
        assert (await call(stub.ReportSoftwareFault, software_fault(), timeout=5)).accepted
    first, second = desk.software
    assert (first.instance_id, second.instance_id) == (7, None)
    assert (first.pod_ip, first.node_manager_port, first.rank) == ("10.0.0.1", 9000, 1)
    assert (first.observation.status, first.observation.fault_info) == (EngineStatus.DEAD, "EngineDeadError")
    assert first.observation.detail == "rank 1 is gone card=3"


@pytest.mark.parametrize(
    "change",
    [
        {"pod_ip": ""},
        {"node_manager_port": 0},
        {"node_manager_port": 65536},
        {"engine_id": -1},
        {"engine_status": common_pb2.ENGINE_STATUS_UNSPECIFIED},
        {"engine_status": common_pb2.ENGINE_STATUS_DIAGNOSING},
        {"instance_id": 0},
    ],
    ids=str,
)
async def test_a_malformed_software_fault_is_refused_by_field(change: dict[str, object]) -> None:
    desk = Desk()
    async with served(desk) as stub:
        with pytest.raises(FieldError) as refusal:
            await call(stub.ReportSoftwareFault, software_fault(**change), timeout=5)
    assert list(refusal.value.violations) == list(change)
    assert desk.software == []


async def test_with_the_feature_off_a_software_fault_is_not_accepted() -> None:
    desk = Desk()
    async with served(desk, enabled=False) as stub:
        assert not (await call(stub.ReportSoftwareFault, software_fault(), timeout=5)).accepted
        await welcomed(stub)
    assert desk.software == []
