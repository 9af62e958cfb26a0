"""The FaultReport stream over real connections (protocol.md section 2)."""

import asyncio
from dataclasses import replace

import grpc
import pytest

from controller.core.reports import (
    AdapterHello,
    Directive,
    EngineFault,
    EngineHealthy,
    Heartbeat,
    Hello,
    Welcome,
)
from motor_ft.model.engine import EngineStatus, EvidenceSource
from motor_ft.model.errors import FieldError, FtError, Reason
from motor_ft.model.hardware import FaultLevel, HardwareFault
from motor_ft.v1 import common_pb2, fault_report_pb2, fault_report_pb2_grpc
from motor_ft.v1.fault_report_pb2 import FaultReportRequest
from motor_ft.wire.convert import duration_to_pb
from motor_ft.wire.hardware import hardware_fault_to_pb
from tests.integration.controller.reporters import (
    WELCOME,
    Desk,
    Stream,
    dead,
    healthy,
    heartbeat,
    hello,
    read,
    served,
    welcomed,
)
from tests.integration.controller.serving import add_reports, connected, new_server
from tests.support.waiting import until


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
            await _to_the_end(stream)
        assert desk.detached == ["pod-0"]


async def _to_the_end(stream: Stream) -> None:
    while True:
        await read(stream)


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


async def test_a_stream_is_never_silent_for_longer_than_a_heartbeat() -> None:
    """An Ack without news tells a Controller that lives from one that is frozen."""
    desk = Desk(welcome=replace(WELCOME, heartbeat_interval_sec=0.05))
    async with served(desk) as stub:
        stream = await welcomed(stub)
        assert [(await read(stream)).ack.sequence for _ in range(2)] == [0, 0]
        await stream.write(healthy(1))
        while (await read(stream)).ack.sequence == 0:
            pass
        assert (await read(stream)).ack.sequence == 1


async def test_a_reporter_that_asks_the_wrong_controller_is_told_where_the_leader_is() -> None:
    desk = Desk(refuse_hello=FtError(Reason.NOT_LEADER, "ask there", leader="10.0.0.9:50051"))
    async with served(desk) as stub:
        stream = stub.FaultReport()
        await stream.write(hello())
        assert (await read(stream)).not_leader.leader == "10.0.0.9:50051"
        assert await stream.read() is grpc.aio.EOF


async def test_a_controller_that_steps_down_ends_every_stream_with_not_leader() -> None:
    """After what was waiting; a peer that does not read keeps nobody."""
    desk = Desk()
    server = new_server()
    servicer = add_reports(server, desk)
    async with connected(server) as channel:
        stub = fault_report_pb2_grpc.FaultReportServiceStub(channel)
        streams = [await welcomed(stub, f"pod-{number}") for number in range(3)]
        desk.senders[0](Directive(3, fast_poll=True))
        await servicer.step_down()
        assert (await read(streams[0])).HasField("directive")
        for stream in streams:
            assert (await read(stream)).HasField("not_leader")
            assert await stream.read() is grpc.aio.EOF
    assert sorted(desk.detached) == ["pod-0", "pod-1", "pod-2"]


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
