"""When engines are read, and what is made of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from motor_ft.model.engine import EngineStatus, EvidenceSource, Problem
from motor_ft.model.topology import EndpointStatus
from motor_ft.v1 import common_pb2
from tests.integration.nodemanager.gateway import UNHEALTHY, UNKNOWN, ScriptedGateway
from tests.integration.nodemanager.node import Node
from tests.support.disk import full_disk
from tests.support.waiting import until

UNREACHABLE = common_pb2.OBSERVATION_PROBLEM_UNREACHABLE


@asynccontextmanager
async def watching(node: Node) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(node.watcher.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


def problem(node: Node, rank: int) -> Problem | None:
    report = node.pod.health()[rank].report
    return report.observation.problem if report else None


async def test_polling_does_not_start_before_every_engine_was_healthy_once(
    node: Node, gateway: ScriptedGateway
) -> None:
    await gateway.say(1, UNKNOWN, problem=UNREACHABLE)
    async with watching(node):
        await until(lambda: gateway.reads > 3)
        assert (gateway.watches, node.state.ready) == ([], False)
        assert [known.status for known in node.pod.health()] == [EndpointStatus.NORMAL, EndpointStatus.INITIAL]
        assert problem(node, 1) is None, "an engine that starts is no fault"
        assert node.watcher.unready.startswith("rank 1 "), "but it is said who is waited for"
        await gateway.say(1, common_pb2.ENGINE_STATUS_HEALTHY)
        await until(lambda: gateway.watches)
        assert node.state.ready
        assert node.watcher.unready == ""


async def test_a_full_disk_delays_readiness_and_ends_nothing(node: Node, gateway: ScriptedGateway) -> None:
    async with watching(node) as task:
        with full_disk((node.directory / "journal").stat().st_size):
            await until(lambda: node.journal.problem)
            assert (node.state.ready, task.done()) == (False, False)
        await until(lambda: node.state.ready)


async def test_a_restarted_node_manager_polls_at_once(tmp_path: Path, gateway: ScriptedGateway) -> None:
    node = Node(tmp_path, gateway, ranks=(0, 1), launched=())
    async with node.running(), watching(node):
        await until(lambda: node.state.ready)
    gateway.watches.clear()
    await gateway.say(1, UNKNOWN, problem=UNREACHABLE)
    async with node.running(), watching(node):
        await until(lambda: problem(node, 1) is Problem.UNREACHABLE)
        report = node.pod.health()[1].report
        assert report is not None
        assert report.source is EvidenceSource.STATUS_UNREACHABLE


async def test_a_gateway_that_is_gone_is_our_problem_and_no_evidence(node: Node, gateway: ScriptedGateway) -> None:
    async with watching(node):
        await until(lambda: gateway.watches)
        await until(lambda: problem(node, 0) is Problem.NONE)
        await node.gateway_down()
        await until(lambda: problem(node, 0) is Problem.LOCAL)
        report = node.pod.health()[0].report
        assert report is not None
        assert (report.source, node.pod.health()[0].status) == (None, EndpointStatus.NORMAL)
        assert node.registry.get_sample_value("motor_ft_engine_problems_total", {"problem": "local"})
        await node.gateway_up()
        await until(lambda: problem(node, 0) is Problem.NONE)


async def test_suspicion_reads_ten_times_a_second(node: Node, gateway: ScriptedGateway) -> None:
    async with watching(node):
        await until(lambda: gateway.watches)
        node.watcher.set_fast(True)
        await until(lambda: len(gateway.watches) == 2)
        node.watcher.set_fast(False)
        await until(lambda: len(gateway.watches) == 3)
    intervals = [watch.interval.ToTimedelta().total_seconds() for watch in gateway.watches]
    assert intervals == [1.0, 0.1, 1.0]


async def test_a_reading_of_another_process_is_an_identity_problem(node: Node, gateway: ScriptedGateway) -> None:
    async with watching(node):
        await until(lambda: gateway.watches)
        await gateway.say(1, UNHEALTHY, engine_incarnation="another")
        await until(lambda: problem(node, 1) is Problem.IDENTITY)
        await gateway.say(1, UNHEALTHY)
        await until(lambda: problem(node, 1) is Problem.NONE)
        report = node.pod.health()[1].report
        assert report is not None
        assert report.observation.status is EngineStatus.UNHEALTHY
