"""The command as a process: bad input, shutdown, crash."""

import asyncio
import signal
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil
import pytest

from motor_ft.model.command import ScaleDownPlan, freeze_plan
from motor_ft.model.errors import Reason
from motor_ft.v1 import (
    common_pb2,
    node_lifecycle_pb2,
    node_lifecycle_pb2_grpc,
    node_manager_pb2,
    node_manager_pb2_grpc,
)
from motor_ft.wire.channel import call, open_channel
from motor_ft.wire.convert import command_to_header, duration_to_pb, plan_to_pb
from tests.integration.gateway.raw_server import Exchange, raw_server
from tests.integration.nodemanager.controller import Conversation, ScriptedController
from tests.integration.nodemanager.gateway import ScriptedGateway, serve
from tests.integration.nodemanager.node import INSTANCE, SLEEP, command
from tests.integration.nodemanager.test_guard import refuses
from tests.integration.nodemanager.test_supervisor import STUBBORN
from tests.support.cluster.shape import CAPABILITY
from tests.support.engine.fake_group import FakeGroup
from tests.support.ports import free_port
from tests.support.processes import Running, python_module
from tests.support.waiting import until

OP = command()


class Pod:
    """Configuration and process of one NodeManager; its Controller and, unless hosted, its gateway are the test's."""

    def __init__(self, directory: Path, controller: ScriptedController, **settings: Any) -> None:
        self.port = free_port()
        self.controller = controller
        self.state = directory / "state"
        self.file = directory / "node.json"
        self.settings: dict[str, Any] = {
            "job_name": "job",
            "model_name": "model",
            "node_name": "node",
            "pod_name": "pod",
            "pod_ip": "127.0.0.1",
            "listen": f"127.0.0.1:{self.port}",
            "controllers": [controller.address],
            "state_dir": str(self.state),
            "dp_size": 4,
            "capability": CAPABILITY,
            "engines": [{"rank": 0, "port": 8000}, {"rank": 1, "port": 8001}],
            **settings,
        }

    def process(self, *arguments: str) -> Running:
        self.file.write_bytes(msgspec.json.encode(self.settings))
        return Running(python_module("nodemanager", "--config", str(self.file), *arguments))

    @asynccontextmanager
    async def running(self, **welcome: Any) -> AsyncIterator[tuple[Running, Conversation]]:
        """The process with an open link."""
        async with self.process() as process:
            conversation, self.snapshot = await self.controller.linked(**welcome)
            yield process, conversation

    @asynccontextmanager
    async def stubs(self) -> AsyncIterator[tuple[Any, Any]]:
        channel = open_channel(f"127.0.0.1:{self.port}")
        try:
            yield (
                node_manager_pb2_grpc.NodeManagerServiceStub(channel),
                node_lifecycle_pb2_grpc.NodeLifecycleServiceStub(channel),
            )
        finally:
            await channel.close()

    def engines(self) -> dict[int, str]:
        return {e.dp_rank: e.engine_incarnation for e in self.snapshot.snapshot.registered}

    def plan(self) -> ScaleDownPlan:
        own = self.engines()
        return freeze_plan(INSTANCE, 1, frozenset({1}), {0: own[0], 2: "far2", 3: "far3"})


@pytest.fixture
async def controller() -> AsyncIterator[ScriptedController]:
    serving = ScriptedController()
    await serving.start()
    yield serving
    await serving.stop()


@pytest.fixture
async def gateway_address(gateway: ScriptedGateway) -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory(prefix="motor-ft-test-") as directory:
        address = f"unix:{directory}/engine.sock"
        async with serve(gateway, address):
            yield address


def guard_request(plan: ScaleDownPlan) -> node_manager_pb2.GuardRequest:
    return node_manager_pb2.GuardRequest(header=command_to_header(OP), lease=duration_to_pb(60), plan=plan_to_pb(plan))


def apply_request(plan: ScaleDownPlan) -> node_manager_pb2.ApplyRequest:
    return node_manager_pb2.ApplyRequest(
        header=command_to_header(OP),
        instruction=common_pb2.INSTRUCTION_SCALE_DOWN,
        dp_ranks=[0],
        removed_dp_ranks=plan.removed,
        dp_master_ip="127.0.0.1",
        plan_hash=plan.plan_hash,
    )


async def fails(pod: Pod, code: int, *texts: str) -> None:
    async with pod.process() as process:
        assert await process.wait() == code
    last = process.output[-1]
    assert last.startswith("motor-nodemanager: ")
    assert all(text in last for text in texts), last
    assert not any("Traceback" in line for line in process.output)


async def test_bad_configuration_is_named_in_one_line(tmp_path: Path, controller: ScriptedController) -> None:
    await fails(Pod(tmp_path, controller, colour="red"), 2, "node.json", "colour: unknown key")


async def test_an_engine_that_does_not_exist_is_named_in_one_line(
    tmp_path: Path, controller: ScriptedController
) -> None:
    engines = [{"rank": 0, "port": 8000, "command": SLEEP}, {"rank": 1, "port": 8001, "command": ["no-such-engine"]}]
    await fails(Pod(tmp_path, controller, engines=engines), 2, "rank 1", "no-such-engine")


async def test_check_config_ends_without_starting_anything(tmp_path: Path, controller: ScriptedController) -> None:
    async with Pod(tmp_path, controller).process("--check-config") as process:
        assert await process.wait() == 0
    assert process.output[-1].endswith("node.json: ok")
    assert not (tmp_path / "state").exists()


async def test_a_port_in_use_is_named_and_no_engine_stays(tmp_path: Path, controller: ScriptedController) -> None:
    pod = Pod(tmp_path, controller, engines=[{"rank": 0, "port": 8000, "command": SLEEP}])
    with socket.create_server(("127.0.0.1", pod.port)):
        await fails(pod, 1, f"127.0.0.1:{pod.port}")


async def test_a_second_node_manager_on_a_state_directory_is_refused(
    tmp_path: Path, controller: ScriptedController
) -> None:
    pod = Pod(tmp_path, controller)
    async with pod.running():
        await fails(pod, 1, "in use by another NodeManager", str(pod.state))


async def test_sigterm_ends_engines_and_process(tmp_path: Path, controller: ScriptedController) -> None:
    pod = Pod(tmp_path, controller, engines=[{"rank": 0, "port": 8000, "command": SLEEP}])
    async with pod.running() as (process, _):
        (engine,) = psutil.Process(process.pid).children()
        process.signal(signal.SIGTERM)
        assert await process.wait() == 0
        assert not engine.is_running()


async def test_stop_answers_then_ends_engines_adopted_ones_too(tmp_path: Path, controller: ScriptedController) -> None:
    async with Running(SLEEP, name="engine") as foreign:
        engines = [
            {"rank": 0, "port": 8000, "command": SLEEP},
            {"rank": 1, "port": 8001, "pid": foreign.pid},
        ]
        pod = Pod(tmp_path, controller, engines=engines)
        async with pod.running() as (process, _), pod.stubs() as (_, lifecycle):
            stop = node_lifecycle_pb2.StopRequest(header=command_to_header(OP), reason="reconfiguration")
            await call(lifecycle.Stop, stop, timeout=10)
            assert await process.wait() == 0
        assert await foreign.wait() == -signal.SIGTERM


async def test_a_stop_that_a_sigkill_cut_short_is_carried_out_by_its_repeat(
    tmp_path: Path, controller: ScriptedController
) -> None:
    """Else an adopted engine would go on, taken for stopped, and never be part of another instance."""
    async with Running(STUBBORN, name="engine") as foreign:
        await foreign.line("deaf")
        pod = Pod(tmp_path, controller, engines=[{"rank": 0, "port": 8000, "pid": foreign.pid}], stop_grace_sec=600)
        stop = node_lifecycle_pb2.StopRequest(header=command_to_header(OP), reason="reconfiguration")
        async with pod.running() as (process, _), pod.stubs() as (_, lifecycle):
            await call(lifecycle.Stop, stop, timeout=10)
            await process.kill()
        pod.settings["stop_grace_sec"] = 0.1
        async with pod.running() as (process, _), pod.stubs() as (_, lifecycle):
            await call(lifecycle.Stop, stop, timeout=10)
            assert await process.wait() == 0
        assert await foreign.wait() == -signal.SIGKILL


async def test_sigkill_and_restart_forget_nothing_and_send_nothing_again(
    tmp_path: Path, controller: ScriptedController, gateway: ScriptedGateway, gateway_address: str
) -> None:
    """Killed between the POST and its answer: guard, epoch and intent are there, the outcome is unknown for ever."""
    pod = Pod(tmp_path, controller, gateway={"address": gateway_address})
    gateway.answer.clear()
    async with pod.running() as (process, _), pod.stubs() as (node, _):
        plan = pod.plan()
        await call(node.Guard, guard_request(plan), timeout=10)
        applying = asyncio.create_task(call(node.Apply, apply_request(plan), timeout=10))
        await gateway.applied.wait()
        await process.kill()
        with refuses(Reason.OUTCOME_UNKNOWN):
            await applying
    gateway.answer.set()
    async with pod.running() as (process, _), pod.stubs() as (node, _):
        with refuses(Reason.GUARD_HELD):
            other = node_manager_pb2.GuardRequest(
                header=command_to_header(command("other", 2)), lease=duration_to_pb(60)
            )
            await call(node.Guard, other, timeout=10)
        again = await call(node.Apply, apply_request(plan), timeout=10)
        assert [outcome.outcome for outcome in again.outcomes] == [common_pb2.APPLY_OUTCOME_UNKNOWN]
        finalize = node_manager_pb2.FinalizeRequest(header=command_to_header(OP), commit=True, retired_dp_ranks=[1])
        await call(node.Finalize, finalize, timeout=10)
        await process.kill()
    async with pod.running():
        assert list(pod.snapshot.snapshot.retired_dp_ranks) == [1]
        assert [state.dp_rank for state in pod.snapshot.snapshot.endpoints] == [0]
    assert len(gateway.applies) == 1


async def test_an_engine_that_ends_is_reported_and_dies_with_a_killed_node_manager(
    tmp_path: Path, controller: ScriptedController
) -> None:
    engines = [{"rank": rank, "port": 8000 + rank, "command": SLEEP} for rank in (0, 1)]
    pod = Pod(tmp_path, controller, engines=engines)
    async with pod.running() as (process, conversation):
        first, second = psutil.Process(process.pid).children()
        first.kill()
        while not (message := await conversation.report()).HasField("process_death"):
            pass
        assert message.process_death.pid == first.pid
        await process.kill()
        await until(lambda: not second.is_running() or second.status() == psutil.STATUS_ZOMBIE)


async def test_a_restart_of_the_engines_outlives_a_killed_node_manager(
    tmp_path: Path, controller: ScriptedController, gateway_address: str
) -> None:
    """Killed right after the answer: its next start launches the engines, and a repeat gets the first answer."""
    engines = [{"rank": rank, "port": 8000 + rank, "command": SLEEP} for rank in (0, 1)]
    pod = Pod(tmp_path, controller, engines=engines, gateway={"address": gateway_address})
    order = node_lifecycle_pb2.RestartEnginesRequest(header=command_to_header(OP), timeout=duration_to_pb(600))
    async with pod.running() as (process, _), pod.stubs() as (_, lifecycle):
        before = pod.engines()
        first = await call(lifecycle.RestartEngines, order, timeout=10)
        assert {engine.dp_rank: engine.engine_incarnation for engine in first.engines} == before
        await process.kill()
    async with pod.running() as (process, _), pod.stubs() as (_, lifecycle):
        assert len(psutil.Process(process.pid).children()) == 2
        assert await call(lifecycle.RestartEngines, order, timeout=10) == first
        assert not set(before.values()) & set(pod.engines().values())


async def test_the_hosted_gateway_reads_engines_and_serves_rest(tmp_path: Path, controller: ScriptedController) -> None:
    rest, metrics = free_port(), free_port()
    async with FakeGroup(dp_size=2, dialect="vllm_v1") as group, aiohttp.ClientSession() as http:
        engines = [{"rank": rank, "port": int(group.url(rank).rpartition(":")[2])} for rank in (0, 1)]
        pod = Pod(
            tmp_path,
            controller,
            dp_size=2,
            engines=engines,
            rest_listen=f"127.0.0.1:{rest}",
            metrics_listen=f"127.0.0.1:{metrics}",
        )
        async with pod.running() as (_, conversation):
            snapshot = pod.snapshot
            while not snapshot.snapshot.ready:
                snapshot = await conversation.report()
            status = f"http://127.0.0.1:{rest}/node-manager/fault-tolerance/status"
            async with http.post(status, json={"endpoint_ids": [0, 1]}) as response:
                assert response.status == 200
                assert {rank: entry["status"] for rank, entry in (await response.json()).items()} == {
                    "0": "healthy",
                    "1": "healthy",
                }
            await group.inject(1, "worker_kill")
            while (message := await conversation.report()).engine_fault.observation.dp_rank != 1:
                pass
            assert message.engine_fault.observation.status == common_pb2.ENGINE_STATUS_DEAD
            async with http.get(f"http://127.0.0.1:{metrics}/readyz") as response:
                assert response.status == 200


async def test_an_order_that_its_abort_overtakes_in_the_gateway_is_not_sent(
    tmp_path: Path, controller: ScriptedController
) -> None:
    """The Controller gave up on Apply while the hosted gateway was still finding out the dialect."""
    slow, go_on = asyncio.Event(), asyncio.Event()
    waiting: asyncio.Queue[str] = asyncio.Queue()

    async def engine(exchange: Exchange) -> None:
        if not slow.is_set():
            await exchange.answer(503, b"{}")
            return
        waiting.put_nowait(exchange.path)
        await go_on.wait()
        await exchange.answer(200 if exchange.path.startswith("/v1") else 404, b"{}")

    async with raw_server(engine) as server:
        pod = Pod(tmp_path, controller, engines=[{"rank": 0, "port": int(server.url.rpartition(":")[2])}])
        async with pod.running(engine_timeout=60) as _, pod.stubs() as (node, _):
            plan = pod.plan()
            await call(node.Guard, guard_request(plan), timeout=10)
            slow.set()
            await waiting.get()  # the one reading at a time of the watcher
            applying = asyncio.create_task(call(node.Apply, apply_request(plan), timeout=10))
            await waiting.get()
            abort = node_manager_pb2.FinalizeRequest(header=command_to_header(OP), commit=False)
            await call(node.Finalize, abort, timeout=10)
            go_on.set()
            (outcome,) = (await applying).outcomes
    assert outcome.outcome == common_pb2.APPLY_OUTCOME_NOT_SENT
    assert "GUARD_REQUIRED" in outcome.detail
    assert not any(request.startswith(b"POST") for request in server.requests)


async def test_a_killed_process_leaves_its_state_only_and_the_next_hosts_its_gateway_again(
    tmp_path: Path, controller: ScriptedController, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    async with FakeGroup(dp_size=1, dialect="vllm_v1") as group:
        pod = Pod(
            tmp_path,
            controller,
            dp_size=1,
            engines=[{"rank": 0, "port": int(group.url(0).rpartition(":")[2])}],
            state_dir=str(tmp_path / ("long" * 30)),
        )
        async with pod.running() as (killed, _):
            await killed.kill()
        async with pod.running() as (_, conversation):
            snapshot = pod.snapshot
            while not snapshot.snapshot.ready:
                snapshot = await conversation.report()
    assert list(temporary.iterdir()) == []
