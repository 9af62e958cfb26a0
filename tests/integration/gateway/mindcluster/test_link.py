"""The adapter's stream: a snapshot after each Welcome, then changes, each until it is acknowledged."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from google.protobuf.duration_pb2 import Duration

from gateway.mindcluster.core.board import Place
from gateway.mindcluster.core.observed import Observed, Reading, Source
from gateway.mindcluster.link import HardwareLink, Identity
from motor_ft.model.hardware import FaultLevel
from motor_ft.v1 import fault_report_pb2
from motor_ft.v1.fault_report_pb2 import FaultReportResponse
from tests.integration.gateway.mindcluster.adapter import Adapter, running, times
from tests.integration.nodemanager.controller import Conversation, ScriptedController, ack, directive
from tests.support.waiting import until

DEVICE = Place(Source.CM_DEVICE, "node-a")
EPOCH = 7


@pytest.fixture
async def controller() -> AsyncIterator[ScriptedController]:
    serving = ScriptedController()
    await serving.start()
    yield serving
    await serving.stop()


@pytest.fixture
def adapter() -> Adapter:
    return Adapter([Source.CM_DEVICE])


@asynccontextmanager
async def linking(adapter: Adapter, *addresses: str) -> AsyncIterator[HardwareLink]:
    link = HardwareLink(
        addresses,
        adapter.feed,
        Identity("adapter-1", "process-1", 3),
        adapter.metrics,
        now=time.monotonic,
        rng=lambda: 0.99,
    )
    async with running(link.run(), adapter.feed.run()):
        yield link


def fault(code: str, level: FaultLevel = FaultLevel.L6) -> Observed:
    return Observed("node-a", "Ascend910-4", code, level, "SeparateNPU")


def show(adapter: Adapter, *faults: Observed) -> None:
    adapter.board.take(DEVICE, Reading(faults, complete=True), times())
    adapter.board.working(Source.CM_DEVICE)
    adapter.feed.touch()


def welcome(epoch: int = EPOCH, heartbeat: float = 60.0) -> FaultReportResponse:
    interval, ttl = Duration(), Duration(seconds=120)
    interval.FromMilliseconds(round(heartbeat * 1000))
    answer = fault_report_pb2.Welcome(controller_epoch=epoch, heartbeat_interval=interval, heartbeat_ttl=ttl)
    return FaultReportResponse(welcome=answer)


async def welcomed(
    controller: ScriptedController, epoch: int = EPOCH, **more: float
) -> tuple[Conversation, fault_report_pb2.Snapshot]:
    """The next stream after Welcome, and its snapshot, which is acknowledged."""
    conversation = await controller.called()
    await conversation.hear()
    conversation.say(welcome(epoch, **more))
    while not (message := await conversation.report()).HasField("snapshot"):
        pass
    conversation.say(ack(message.sequence))
    return conversation, message.snapshot


async def test_hello_brings_no_registration(adapter: Adapter, controller: ScriptedController) -> None:
    async with linking(adapter, controller.address):
        hello = (await (await controller.called()).hear()).hello
    assert hello.kind == fault_report_pb2.REPORTER_KIND_MINDCLUSTER
    assert (hello.reporter_id, hello.incarnation, hello.incarnation_number) == ("adapter-1", "process-1", 3)
    assert not hello.HasField("registration")
    assert not hello.HasField("highest_epoch")


async def test_the_snapshot_has_all_faults_and_the_state_of_every_source(
    adapter: Adapter, controller: ScriptedController
) -> None:
    """A source that has not answered is a problem, not health."""
    async with linking(adapter, controller.address) as link:
        conversation, snapshot = await welcomed(controller)
        assert [(each.source, each.problem) for each in snapshot.hardware_sources] == [
            ("cm-device", "has not answered yet"),
            ("cm-switch", "has not answered yet"),
        ]
        assert link.connected
        assert adapter.feed.problems
        show(adapter, fault("A"), fault("B"))
        while len((message := await conversation.report()).snapshot.hardware_faults) < 2:
            pass
        assert [each.problem for each in message.snapshot.hardware_sources] == ["", ""]
        await until(lambda: not adapter.feed.problems)
        (first, second) = message.snapshot.hardware_faults
        assert {first.key.fault_code, second.key.fault_code} == {"A", "B"}
        assert first.age.ToTimedelta().total_seconds() < 10


async def test_changes_follow_the_snapshot_and_what_is_not_acknowledged_comes_again_in_the_next_one(
    adapter: Adapter, controller: ScriptedController
) -> None:
    show(adapter)
    adapter.feed.refresh()
    async with linking(adapter, controller.address):
        conversation, _ = await welcomed(controller)
        show(adapter, fault("A", FaultLevel.L1))
        first = await conversation.report()
        assert first.hardware_fault.level == fault_report_pb2.FAULT_LEVEL_L1
        conversation.say(ack(first.sequence))
        show(adapter, fault("A"))
        raised = await conversation.report()
        assert raised.hardware_fault.level == fault_report_pb2.FAULT_LEVEL_L6
        conversation.end()
        conversation = await controller.called()
        assert (await conversation.hear()).hello.highest_epoch == EPOCH
        conversation.say(welcome())
        snapshot = await conversation.report()
        assert [each.key.fault_code for each in snapshot.snapshot.hardware_faults] == ["A"]
        show(adapter)
        cleared = await conversation.report()
        assert cleared.hardware_cleared.key.npu_name == "Ascend910-4"
        assert cleared.sequence > snapshot.sequence


async def test_a_fault_that_returns_before_its_end_was_told_is_told_as_another_occurrence(
    adapter: Adapter, controller: ScriptedController
) -> None:
    show(adapter)
    adapter.feed.refresh()
    async with linking(adapter, controller.address):
        conversation, _ = await welcomed(controller)
        show(adapter, fault("A"))
        first = await conversation.report()
        for faults in ((), (fault("A"),)):
            show(adapter, *faults)
            adapter.feed.refresh()
        again = await conversation.report()
        assert again.hardware_fault.key == first.hardware_fault.key
        assert again.hardware_fault.occurrence > first.hardware_fault.occurrence


async def test_a_source_that_breaks_is_told_with_a_snapshot(adapter: Adapter, controller: ScriptedController) -> None:
    show(adapter, fault("A"))
    adapter.feed.refresh()
    async with linking(adapter, controller.address):
        conversation, snapshot = await welcomed(controller)
        assert not snapshot.hardware_faults[0].stale
        adapter.board.broken(Source.CM_DEVICE, "403 Forbidden")
        adapter.feed.touch()
        told = (await conversation.report()).snapshot
        assert [each.problem for each in told.hardware_sources] == 2 * ["403 Forbidden"]
        assert told.hardware_faults[0].stale


async def test_a_node_that_is_not_to_be_believed_is_told_by_name(
    adapter: Adapter, controller: ScriptedController
) -> None:
    show(adapter, fault("A"))
    adapter.board.take(DEVICE, Reading(problem="CheckCode is wrong"), times())
    adapter.feed.refresh()
    async with linking(adapter, controller.address):
        _, snapshot = await welcomed(controller)
        assert [(each.source, each.node_name, each.problem) for each in snapshot.hardware_sources] == [
            ("cm-device", "", ""),
            ("cm-switch", "", ""),
            ("cm-device", "node-a", "CheckCode is wrong"),
        ]
        assert not adapter.feed.problems, "the source as a whole"


async def test_a_storm_of_faults_becomes_a_snapshot(adapter: Adapter, controller: ScriptedController) -> None:
    show(adapter)
    adapter.feed.refresh()
    async with linking(adapter, controller.address):
        conversation, _ = await welcomed(controller)
        storm = [fault(f"{number + 1:08X}") for number in range(2000)]
        show(adapter, *storm)
        told = await conversation.report()
        assert len(told.snapshot.hardware_faults) == 2000
        show(adapter, *storm, fault("NEW"))
        after = await conversation.report()
        assert (after.hardware_fault.key.fault_code, after.sequence) == ("NEW", told.sequence + 1)


async def test_a_storm_of_a_whole_cluster_fits_into_a_snapshot(
    adapter: Adapter, controller: ScriptedController
) -> None:
    """As many bytes as 50,000 usual ones; else the stream would break again and again, and nothing ever be told."""
    storm = [replace(fault(f"{number + 1:08X}"), detail="d" * 1900) for number in range(10_000)]
    show(adapter, *storm)
    adapter.feed.refresh()
    async with linking(adapter, controller.address):
        _, snapshot = await welcomed(controller)
        assert len(snapshot.hardware_faults) == len(storm)


async def test_a_rejected_report_comes_again_and_a_snapshot_when_it_is_asked_for(
    adapter: Adapter, controller: ScriptedController
) -> None:
    show(adapter)
    adapter.feed.refresh()
    async with linking(adapter, controller.address):
        conversation, _ = await welcomed(controller)
        show(adapter, fault("A"))
        first = await conversation.report()
        rejected = fault_report_pb2.Rejected(sequence=first.sequence, reason="OVERLOADED")
        conversation.say(FaultReportResponse(rejected=rejected))
        again = await conversation.report()
        assert (again.hardware_fault.key, again.sequence) == (first.hardware_fault.key, first.sequence + 1)
        conversation.say(
            directive(EPOCH - 1, send_snapshot=True), ack(again.sequence), directive(EPOCH, send_snapshot=True)
        )
        assert (await conversation.report()).sequence == again.sequence + 1
        assert conversation.silent


async def test_heartbeats_name_no_endpoints(adapter: Adapter, controller: ScriptedController) -> None:
    async with linking(adapter, controller.address):
        conversation, _ = await welcomed(controller, heartbeat=0.02)
        for _ in range(3):
            beat = await conversation.beat()
            assert (beat.sequence, len(beat.heartbeat.endpoints)) == (0, 0)


async def test_a_former_leader_is_not_believed(adapter: Adapter, controller: ScriptedController) -> None:
    async with linking(adapter, controller.address):
        conversation, _ = await welcomed(controller)
        conversation.end()
        former = await controller.called()
        await former.hear()
        former.say(welcome(EPOCH - 1))
        await controller.called()
        assert former.silent


async def test_a_refusal_is_tried_again(adapter: Adapter, controller: ScriptedController) -> None:
    async with linking(adapter, controller.address) as link:
        for _ in range(2):
            conversation = await controller.called()
            await conversation.hear()
            conversation.end()
        assert not link.connected


async def test_an_adapter_follows_the_leader_that_a_standby_names(
    adapter: Adapter, controller: ScriptedController
) -> None:
    leader = ScriptedController()
    await leader.start()
    async with linking(adapter, controller.address) as link:
        standby = await controller.called()
        await standby.hear()
        standby.say(FaultReportResponse(not_leader=fault_report_pb2.NotLeader(leader=leader.address)))
        await welcomed(leader)
        assert link.connected
    await leader.stop()
