"""RestartEngines over gRPC, with real engine processes."""

import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from motor_ft.model.command import Command
from motor_ft.model.errors import Reason
from motor_ft.model.topology import EndpointStatus
from motor_ft.v1 import common_pb2, node_lifecycle_pb2
from motor_ft.v1.node_lifecycle_pb2 import RestartEnginesResponse
from motor_ft.wire.channel import call
from motor_ft.wire.convert import command_to_header, duration_to_pb
from nodemanager.core.suicide import ABNORMAL_ROUNDS
from tests.integration.nodemanager.gateway import DEAD, HEALTHY, UNKNOWN, ScriptedGateway
from tests.integration.nodemanager.node import EPOCH, Node, command
from tests.integration.nodemanager.test_guard import refuses
from tests.support.ports import free_port
from tests.support.waiting import until

OP = command("relaunch", generation=2)
UNREACHABLE = common_pb2.OBSERVATION_PROBLEM_UNREACHABLE
# Frontend and EngineCore share one socket, so the port is taken until both are gone; the second is deaf to SIGTERM.
SERVES = (
    "import os, signal, socket, sys, time\n"
    "server = socket.socket()\n"
    "server.bind(('127.0.0.1', int(sys.argv[1])))\n"
    "server.listen()\n"
    "if os.fork() == 0:\n"
    "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print(os.getpid(), flush=True)\n"
    "time.sleep(600)"
)


async def restart(
    node: Node, by: Command = OP, *, timeout: float = 600.0, validate_only: bool = False
) -> RestartEnginesResponse:
    request = node_lifecycle_pb2.RestartEnginesRequest(
        header=command_to_header(by), reason="test", timeout=duration_to_pb(timeout), validate_only=validate_only
    )
    return await call(node.lifecycle.RestartEngines, request, timeout=10)


def ended(answer: RestartEnginesResponse) -> dict[int, str]:
    return {engine.dp_rank: engine.engine_incarnation for engine in answer.engines}


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def incarnations(node: Node) -> dict[int, str]:
    return {rank: node.incarnation(rank) for rank in sorted(node.ranks)}


def statuses(node: Node) -> list[EndpointStatus]:
    return [known.status for known in node.pod.health()]


@pytest.fixture
async def engines(tmp_path: Path, gateway: ScriptedGateway) -> AsyncIterator[Node]:
    """Ranks 0, 1 and 3, which is headless, all launched and ready."""
    node = Node(tmp_path, gateway, ranks=(0, 1, 3), launched=(0, 1, 3))
    async with node.running():
        await node.join()
        node.relaunch.watch()
        await until(lambda: node.state.ready)
        yield node


async def test_all_engines_start_anew_and_become_ready_without_a_report_of_death(
    engines: Node, gateway: ScriptedGateway
) -> None:
    before, old = incarnations(engines), [psutil.Process(known.pid) for known in engines.state.engines.values()]
    await gateway.say(1, UNKNOWN, problem=UNREACHABLE)
    assert ended(await restart(engines)) == before
    assert statuses(engines) == [EndpointStatus.ABNORMAL] * 3
    await until(lambda: not set(before.values()) & set(incarnations(engines).values()))
    assert not any(process.is_running() for process in old)
    await until(lambda: statuses(engines)[0] is EndpointStatus.NORMAL)
    assert (engines.state.ready, statuses(engines)[1]) == (False, EndpointStatus.ABNORMAL), "rank 1 still loads"
    await gateway.say(1, HEALTHY)
    await until(lambda: engines.state.ready)
    assert statuses(engines) == [EndpointStatus.NORMAL] * 3
    assert engines.deaths == []


async def test_new_engines_get_the_ports_of_the_old_and_are_watched_with_their_descendants(
    tmp_path: Path, gateway: ScriptedGateway
) -> None:
    engine = (sys.executable, "-c", SERVES, str(free_port()), "VLLM::EngineCore")
    node = Node(tmp_path, gateway, ranks=(0,), launched=(0,), engine=engine)

    def pids() -> list[int]:
        return [int(pid) for pid in (tmp_path / "engine-rank0.log").read_text().split()]

    async with node.running():
        await node.join()
        await until(lambda: len(pids()) == 2)
        node.relaunch.watch()
        await until(lambda: gateway.watches)
        gateway.watches.clear()
        before = node.incarnation(0)
        await gateway.say(0, UNKNOWN, problem=UNREACHABLE)
        await restart(node)
        await until(lambda: len(pids()) == 4)
        assert not any(map(runs, pids()[:2]))
        await gateway.say(0, HEALTHY)
        await until(lambda: gateway.watches)
        assert node.deaths == []
        launcher = psutil.Process(node.state.engines[0].pid)
        (core,) = set(pids()[2:]) - {child.pid for child in launcher.children()}
        os.kill(core, signal.SIGKILL)
        await until(lambda: node.deaths)
        assert (node.deaths[0].pid, node.deaths[0].incarnation) == (core, node.incarnation(0))
        assert node.incarnation(0) != before


async def test_an_engine_that_ends_on_its_own_after_the_restart_is_reported(engines: Node) -> None:
    before = incarnations(engines)
    await restart(engines)
    await until(lambda: not set(before.values()) & set(incarnations(engines).values()))
    pid = engines.kill_engine(0)
    await until(lambda: engines.deaths)
    assert [(death.rank, death.pid) for death in engines.deaths] == [(0, pid)]
    assert (await restart(engines, validate_only=True)).engines[0].status == DEAD


async def test_a_repeat_gets_the_first_answer_and_starts_nothing_also_after_a_restart(
    tmp_path: Path, gateway: ScriptedGateway
) -> None:
    node = Node(tmp_path, gateway, ranks=(0, 1), launched=(0, 1))
    async with node.running():
        await node.join()
        node.relaunch.watch()
        await until(lambda: node.state.ready)
        first = await restart(node)
        starts = node.state.engine_starts
        await until(lambda: node.state.engine_starts > starts and node.state.ready)
        anew = incarnations(node)
        assert await restart(node, command("another id", generation=2)) == first
        assert node.state.ready
        assert incarnations(node) == anew
        await restart(node, command("relaunch", generation=3))
        await until(lambda: not set(anew.values()) & set(incarnations(node).values()))
    async with node.running():
        node.relaunch.watch()
        assert ended(await restart(node, command("relaunch", generation=3))) == anew
        await until(lambda: node.state.ready)


async def test_retired_ranks_are_started_too_and_stay_retired(engines: Node) -> None:
    await engines.guard(command())
    await engines.finalize(command(), retired=[1])
    before = incarnations(engines)
    assert set(ended(await restart(engines))) == {0, 3}
    await until(lambda: not set(before.values()) & set(incarnations(engines).values()))
    await until(lambda: engines.state.ready)
    assert engines.state.retired == {1}
    assert [known.rank for known in engines.pod.health()] == [0, 3]
    engines.kill_engine(1)
    await until(lambda: engines.deaths)
    assert statuses(engines) == [EndpointStatus.NORMAL] * 2, "the death of a retired rank is no news"


async def test_asking_whether_it_can_be_done_changes_nothing(engines: Node) -> None:
    before = engines.state
    answer = await restart(engines, validate_only=True)
    assert ended(answer) == incarnations(engines)
    assert [(engine.status, engine.headless) for engine in answer.engines] == [
        (HEALTHY, False),
        (HEALTHY, False),
        (UNKNOWN, True),
    ]
    assert engines.state == before
    assert statuses(engines) == [EndpointStatus.NORMAL] * 3


@pytest.mark.parametrize("validate_only", [True, False])
async def test_engines_that_were_not_launched_here_are_not_restarted(node: Node, validate_only: bool) -> None:
    before = node.state
    with refuses(Reason.RELAUNCH_UNSUPPORTED) as caught:
        await restart(node, validate_only=validate_only)
    assert "ranks [0, 1]" in caught.value.message
    assert node.state == before


async def test_an_order_of_the_past_and_one_without_a_time_are_refused(engines: Node) -> None:
    await engines.guard(command("later", generation=3, epoch=EPOCH + 1))
    before = engines.state
    with refuses(Reason.STALE_EPOCH):
        await restart(engines, command(generation=9))
    with refuses(Reason.STALE_GENERATION):
        await restart(engines, command(generation=2, epoch=EPOCH + 1))
    for timeout in (0.0, 3600.1):
        with refuses(Reason.INVALID_REQUEST) as caught:
            await restart(engines, command(generation=4, epoch=EPOCH + 1), timeout=timeout)
        assert caught.value.message.startswith("timeout: ")
    assert engines.state == before


def due(node: Node) -> bool:
    return [node.suicide.judge() for _ in range(ABNORMAL_ROUNDS)][-1].due


async def test_the_relaunch_freezes_suicide_on_its_own_for_its_time(engines: Node, gateway: ScriptedGateway) -> None:
    await gateway.say(0, UNKNOWN, problem=UNREACHABLE)
    engines.suicide.freeze(1000)
    await engines.guard(command(), 60)
    await restart(engines, timeout=300)
    engines.suicide.freeze(0)
    engines.clock.ahead += 60
    assert not due(engines), "neither the end of the collection nor that of the guard thaws the relaunch"
    engines.clock.ahead += 240
    assert due(engines), "it thaws by itself"


async def test_readiness_ends_the_freeze_of_the_relaunch_and_no_other(engines: Node, gateway: ScriptedGateway) -> None:
    starts = engines.state.engine_starts
    await restart(engines)
    await until(lambda: engines.state.engine_starts > starts and engines.state.ready)
    await gateway.say(0, DEAD)
    await until(lambda: statuses(engines)[0] is EndpointStatus.ABNORMAL)
    engines.suicide.freeze(1000)
    assert not due(engines)
    engines.suicide.freeze(0)
    assert due(engines)
