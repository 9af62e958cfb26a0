"""The FaultReport stream against a Controller that a test drives."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from prometheus_client import CollectorRegistry

from motor_ft.model.topology import Registration, Role
from motor_ft.v1 import common_pb2, fault_report_pb2
from motor_ft.v1.fault_report_pb2 import FaultReportResponse
from nodemanager.core.health import DeathReport
from nodemanager.link import Link, Orders
from nodemanager.metrics import NodeMetrics
from nodemanager.pod import Report
from tests.integration.nodemanager.controller import ScriptedController, ack, directive, seconds, welcome
from tests.integration.nodemanager.gateway import DEAD, HEALTHY, UNHEALTHY, ScriptedGateway
from tests.integration.nodemanager.node import EPOCH, INSTANCE, Node, command
from tests.support.waiting import until


@dataclass
class Heard:
    """What the Controller's directives moved."""

    fast: list[bool] = field(default_factory=list)
    freezes: list[float] = field(default_factory=list)


@asynccontextmanager
async def linking(node: Node, *controllers: str, heard: Heard | None = None) -> AsyncIterator[Link]:
    """The pod's watcher and, once that reads, its link."""
    heard = heard or Heard()
    link = Link(
        controllers,
        lambda: registration(node),
        node.pod,
        node.journal,
        node.clock,
        NodeMetrics(CollectorRegistry()),
        Orders(heard.fast.append, heard.freezes.append),
        incarnation="process-1",
        rng=lambda: 0.99,
    )
    tasks = [asyncio.create_task(node.watcher.run(), name="watcher")]
    try:
        await until(lambda: node.gateway.watches)
        tasks.append(asyncio.create_task(link.run(), name="link"))
        yield link
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def registration(node: Node) -> Registration:
    return Registration(
        pod_uid="uid",
        job_name="job",
        model_name="model",
        engine_type="vllm",
        role=Role.UNION,
        node_name="node",
        pod_name="pod",
        pod_ip="127.0.0.1",
        node_manager_address="127.0.0.1:1",
        dp_size=4,
        tp_size=1,
        endpoints=node.pod.endpoints(),
        capability=None,
    )


@pytest.fixture
async def controller() -> AsyncIterator[ScriptedController]:
    serving = ScriptedController()
    await serving.start()
    yield serving
    await serving.stop()


@pytest.fixture
async def linked(node: Node, controller: ScriptedController) -> AsyncIterator[Node]:
    async with linking(node, controller.address):
        yield node


async def test_hello_brings_the_pod_and_the_epoch_is_durable_before_the_snapshot(
    linked: Node, controller: ScriptedController, tmp_path: Path
) -> None:
    conversation = await controller.called()
    first = await conversation.hear()
    hello = first.hello
    assert (first.sequence, hello.reporter_id, hello.incarnation, hello.incarnation_number) == (
        0,
        "uid",
        "process-1",
        1,
    )
    assert (hello.highest_epoch, hello.previous_instance_id) == (EPOCH, INSTANCE)
    assert [endpoint.engine_incarnation for endpoint in hello.registration.endpoints] == [
        linked.incarnation(0),
        linked.incarnation(1),
    ]
    conversation.say(welcome(EPOCH + 3))
    snapshot = await conversation.report()
    assert snapshot.HasField("snapshot")
    last = (tmp_path / "journal").read_bytes().splitlines()[-1]
    assert b'"epoch":%d' % (EPOCH + 3) in last
    assert linked.state.fence.epoch == EPOCH + 3


async def test_a_former_leader_is_not_taken_on(node: Node, controller: ScriptedController) -> None:
    other = ScriptedController()
    await other.start()
    async with linking(node, controller.address, other.address):
        old = await controller.called()
        await old.hear()
        old.say(welcome(EPOCH - 1))
        await other.linked()
        assert old.silent
        assert node.state.fence.epoch == EPOCH
    await other.stop()


async def test_changes_are_reported_once_and_healthy_again_too(
    linked: Node, controller: ScriptedController, gateway: ScriptedGateway
) -> None:
    conversation, snapshot = await controller.linked()
    assert snapshot.snapshot.ready
    assert [said.observation.dp_rank for said in snapshot.snapshot.healthy] == [0, 1]
    for number, status in enumerate((UNHEALTHY, HEALTHY, DEAD), start=1):
        await gateway.say(1, status)
        message = await conversation.report()
        said = message.engine_healthy if status == HEALTHY else message.engine_fault
        assert (said.observation.dp_rank, said.observation.status) == (1, status)
        assert message.sequence == snapshot.sequence + number
        source = common_pb2.EVIDENCE_SOURCE_UNSPECIFIED if status == HEALTHY else message.engine_fault.source
        assert (source == common_pb2.EVIDENCE_SOURCE_ENGINE_REPORTED) is (status != HEALTHY)
        conversation.say(ack(message.sequence))


async def test_what_was_not_acknowledged_comes_again_in_the_snapshot_where_it_still_holds(
    linked: Node, controller: ScriptedController, gateway: ScriptedGateway
) -> None:
    """A Controller acts on some reports at once: none may come again that is over by now."""
    first, snapshot = await controller.linked()
    await gateway.say(0, UNHEALTHY)
    await first.report()
    await gateway.say(1, DEAD)
    fault = await first.report()
    first.end()
    second = await controller.called()
    await second.hear()
    await gateway.say(0, HEALTHY)
    await until(lambda: (report := linked.pod.health()[0].report) and report.source is None)
    second.say(welcome())
    again = await second.report()
    assert again.sequence == snapshot.sequence + 3
    assert [found.observation for found in again.snapshot.faults] == [fault.engine_fault.observation]
    assert [found.observation.dp_rank for found in again.snapshot.healthy] == [0]


async def test_a_rejected_report_is_sent_again_with_a_new_number_after_a_backoff(
    linked: Node, controller: ScriptedController, gateway: ScriptedGateway
) -> None:
    conversation, _ = await controller.linked()
    await gateway.say(1, DEAD)
    fault = await conversation.report()
    conversation.say(
        FaultReportResponse(rejected=fault_report_pb2.Rejected(sequence=fault.sequence, reason="UNKNOWN_INSTANCE")),
        ack(fault.sequence),
    )
    again = await conversation.report()
    assert again.sequence == fault.sequence + 1
    assert again.engine_fault.observation == fault.engine_fault.observation


async def test_heartbeats_name_every_endpoint_that_is_not_retired(linked: Node, controller: ScriptedController) -> None:
    conversation, _ = await controller.linked(heartbeat=0.05)
    message = await conversation.beat()
    assert message.sequence == 0
    assert [state.dp_rank for state in message.heartbeat.endpoints] == [0, 1]
    await linked.guard(command())
    await linked.finalize(command(), retired=[0, 1])
    while (await conversation.beat()).heartbeat.endpoints:
        pass


async def test_with_scale_down_off_a_heartbeat_names_every_endpoint(
    linked: Node, controller: ScriptedController
) -> None:
    """The baseline expects the complete set, whatever was retired before the switch."""
    await linked.guard(command())
    await linked.finalize(command(), retired=[1])
    conversation, _ = await controller.linked(heartbeat=0.05, on=False)
    while len((await conversation.beat()).heartbeat.endpoints) < 2:
        pass


async def test_a_retired_rank_is_silent_everywhere(
    linked: Node, controller: ScriptedController, gateway: ScriptedGateway
) -> None:
    conversation, _ = await controller.linked(heartbeat=0.05)
    await linked.guard(command())
    await linked.finalize(command(), retired=[1])
    while list((snapshot := await conversation.report()).snapshot.retired_dp_ranks) != [1]:
        pass
    await until(lambda: [target.dp_rank for target in gateway.watches[-1].targets] == [0])
    await gateway.say(1, DEAD)
    linked.pod.died(DeathReport(1, linked.incarnation(1), 10, "", 0.0))
    await gateway.say(0, UNHEALTHY)
    report = await conversation.report()
    assert report.HasField("engine_fault")
    assert (report.sequence, report.engine_fault.observation.dp_rank) == (snapshot.sequence + 1, 0)
    assert [state.dp_rank for state in (await conversation.beat()).heartbeat.endpoints] == [0]
    assert [state.dp_rank for state in snapshot.snapshot.endpoints] == [0]
    assert [endpoint.dp_rank for endpoint in snapshot.snapshot.registered] == [0, 1]


async def test_a_process_death_is_reported_beside_what_the_engine_says(
    linked: Node, controller: ScriptedController
) -> None:
    conversation, _ = await controller.linked()
    death = DeathReport(1, linked.incarnation(1), 4711, "EngineCore ended", linked.clock.now() - 2)
    linked.pod.died(death)
    while not (message := await conversation.report()).HasField("process_death"):
        pass
    assert (message.process_death.dp_rank, message.process_death.pid) == (1, 4711)
    assert message.process_death.age.ToTimedelta().total_seconds() == pytest.approx(2, abs=1)
    conversation.say(ack(message.sequence), directive(send_snapshot=True))
    while not (snapshot := (await conversation.report()).snapshot).deaths:
        pass
    assert [found.pid for found in snapshot.deaths] == [4711]


async def test_what_happens_while_another_report_is_written_has_no_negative_age(
    linked: Node, controller: ScriptedController, gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Controller would reject it, and the death be known a backoff later."""
    conversation, _ = await controller.linked()
    take = linked.pod.outbox.next

    def take_while_it_dies(now: float) -> tuple[int, Report] | None:
        if (entry := take(now)) is not None:
            monkeypatch.undo()
            asyncio.get_running_loop().call_soon(lambda: linked.pod.died(death()))
        return entry

    def death() -> DeathReport:
        return DeathReport(1, linked.incarnation(1), 4711, "", linked.clock.now())

    monkeypatch.setattr(linked.pod.outbox, "next", take_while_it_dies)
    await gateway.say(1, UNHEALTHY)
    while not (message := await conversation.report()).HasField("process_death"):
        pass
    assert message.process_death.age.ToNanoseconds() >= 0


async def test_directives_are_done_and_those_of_a_former_leader_are_not(
    node: Node, controller: ScriptedController
) -> None:
    heard = Heard()
    async with linking(node, controller.address, heard=heard):
        conversation, _ = await controller.linked()
        fast = fault_report_pb2.POLL_MODE_FAST
        conversation.say(directive(EPOCH - 1, poll_mode=fast, freeze_suicide=seconds(60)))
        conversation.say(directive(poll_mode=fault_report_pb2.POLL_MODE_NORMAL))
        conversation.say(directive(poll_mode=fast, freeze_suicide=seconds(60)))
        conversation.say(directive(freeze_suicide=seconds(0)))
        await until(lambda: len(heard.freezes) == 2)
    assert heard.fast == [False, False, True], "the first comes with Welcome"
    assert heard.freezes == [60.0, 0.0]


async def test_not_leader_leads_to_the_leader_at_once(node: Node, controller: ScriptedController) -> None:
    leader = ScriptedController()
    await leader.start()
    async with linking(node, controller.address):
        follower = await controller.called()
        await follower.hear()
        follower.say(FaultReportResponse(not_leader=fault_report_pb2.NotLeader(leader=leader.address)))
        conversation, _ = await leader.linked()
        conversation.say(FaultReportResponse(not_leader=fault_report_pb2.NotLeader()))
        await controller.linked()
    await leader.stop()


async def test_a_leader_that_was_just_lost_is_not_followed_at_once(node: Node, controller: ScriptedController) -> None:
    """A follower may learn later that it is gone; asked once more, it is believed."""
    leader = ScriptedController()
    await leader.start()
    async with linking(node, controller.address):
        for named_again in (False, True, True):
            follower = await controller.called()
            await follower.hear()
            follower.say(FaultReportResponse(not_leader=fault_report_pb2.NotLeader(leader=leader.address)))
            if not named_again:
                conversation, _ = await leader.linked()
                conversation.end()
        await leader.linked()
    await leader.stop()


async def test_a_controller_that_says_nothing_is_left(node: Node, controller: ScriptedController) -> None:
    """Although nothing waits for an acknowledgement: it may be frozen while its kernel keeps the connection."""
    async with linking(node, controller.address):
        await controller.linked(heartbeat=0.05, ttl=0.5)
        await controller.linked()


async def test_the_connection_to_a_controller_that_was_left_is_closed(
    node: Node, controller: ScriptedController
) -> None:
    """At once, not when garbage happens to be collected: one that hangs now and then would fill up."""
    port = int(controller.address.rpartition(":")[2])

    def connections() -> int:
        return sum(each.raddr[1:] == (port,) for each in psutil.Process().net_connections("tcp"))

    gc.disable()
    try:
        async with linking(node, controller.address):
            for _ in range(3):
                await controller.linked(heartbeat=0.05, ttl=0.5)
            await controller.linked()
            await until(lambda: connections() == 1)
    finally:
        gc.enable()


async def test_a_controller_that_does_not_acknowledge_is_left(node: Node, controller: ScriptedController) -> None:
    async with linking(node, controller.address):
        frozen = await controller.called()
        await frozen.hear()
        frozen.say(welcome(heartbeat=0.05, ttl=20))
        await frozen.report()
        node.clock.ahead += 21
        await controller.linked()


async def test_what_nobody_acknowledged_in_time_is_sent_again_on_the_next_stream(
    linked: Node, controller: ScriptedController
) -> None:
    """Its old age is that of the last stream, and must not end the new one before it was sent."""
    first = await controller.called()
    await first.hear()
    first.say(welcome(heartbeat=0.05, ttl=20))
    lost = await first.report()
    linked.clock.ahead += 21
    second = await controller.called()
    await second.hear()
    second.say(welcome(heartbeat=0.05, ttl=20))
    again = await second.report()
    assert again.snapshot.registered == lost.snapshot.registered
    second.say(ack(again.sequence))


async def test_a_new_instance_ends_retirement(node: Node, controller: ScriptedController) -> None:
    await node.guard(command())
    await node.finalize(command(), retired=[1])
    async with linking(node, controller.address):
        _, snapshot = await controller.linked(instance_id=INSTANCE + 1)
        assert list(snapshot.snapshot.retired_dp_ranks) == []
        assert [state.dp_rank for state in snapshot.snapshot.endpoints] == [0, 1]


async def test_a_welcome_that_cannot_be_is_refused(node: Node, controller: ScriptedController) -> None:
    async with linking(node, controller.address) as link:
        assert link.problem == "no Controller has answered"
        bad = await controller.called()
        await bad.hear()
        bad.say(welcome(heartbeat=0))
        await until(lambda: link.problem.startswith(f"no link to the Controller {controller.address}: INVALID_REQUEST"))
        await controller.linked()
        await until(lambda: link.connected and link.problem == "no Controller has answered")
        assert bad.silent
