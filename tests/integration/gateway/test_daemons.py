"""``motor-gateway`` as processes: start, serve, stop, and one clear line when that cannot be."""

import json
import re
import signal
import socket
from pathlib import Path

import aiohttp
import pytest

from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import engine_pb2, engine_pb2_grpc
from motor_ft.wire.channel import call, open_channel
from tests.integration.gateway.rest_fakes import FakeController, serve_controller
from tests.support.engine import FakeGroup
from tests.support.ports import free_port
from tests.support.processes import ROOT, Running, python_module


def config(tmp_path: Path, **values: object) -> str:
    path = tmp_path / "gateway.json"
    path.write_text(json.dumps({"metrics_listen": "127.0.0.1:0"} | values))
    return str(path)


def gateway(*arguments: str) -> Running:
    return Running(python_module("gateway", *arguments), name="motor-gateway")


async def port_of(daemon: Running, event: str) -> int:
    line = (await daemon.line(f".*{event}.*")).group()
    return int(re.findall(r'"port": ?(\d+)', line)[0])


async def ended(daemon: Running) -> tuple[int, str]:
    """Exit code and output."""
    return await daemon.process.wait(), "\n".join(daemon.output)


async def test_the_engine_daemon_serves_counts_and_stops(tmp_path: Path) -> None:
    listen = f"unix:{tmp_path}/engine.sock"
    async with FakeGroup(1) as group:
        engine = {"engines": [{"rank": 0, "url": group.url(0)}]}
        async with gateway("engine", "--config", config(tmp_path, listen=listen, engine=engine)) as daemon:
            metrics_port = await port_of(daemon, "serving metrics")
            await daemon.line('"event":"serving"')
            async with open_channel(listen) as channel, aiohttp.ClientSession() as session:
                stub = engine_pb2_grpc.EngineServiceStub(channel)
                target = engine_pb2.EngineTarget(dp_rank=0, engine_incarnation="e1")
                request = engine_pb2.GetEngineStatusRequest(targets=[target])
                assert len((await call(stub.GetEngineStatus, request, timeout=5.0)).observations) == 1
                async with session.get(f"http://127.0.0.1:{metrics_port}/metrics") as answer:
                    text = await answer.text()
            assert 'motor_ft_engine_reads_total{problem=""} 1.0' in text
            assert "motor_ft_rpc_total" in text
            daemon.process.send_signal(signal.SIGTERM)
            assert (await ended(daemon))[0] == 0


async def test_the_rest_daemon_serves_and_stops(tmp_path: Path) -> None:
    async with serve_controller(FakeController()) as controller:
        arguments = config(tmp_path, listen="127.0.0.1:0", controllers=[controller])
        async with gateway("rest", "--config", arguments) as daemon, aiohttp.ClientSession() as session:
            port = await port_of(daemon, "serving REST")
            async with session.get(f"http://127.0.0.1:{port}/controller/fault_tolerance/status") as answer:
                assert await answer.json() == {"instances": []}
            daemon.process.send_signal(signal.SIGINT)
            assert (await ended(daemon))[0] == 0


async def test_the_rest_daemon_is_ready_while_a_controller_leads_and_says_why_it_is_not(tmp_path: Path) -> None:
    controller = FakeController()
    address = f"127.0.0.1:{free_port()}"
    arguments = config(tmp_path, listen="127.0.0.1:0", controllers=[address])
    async with gateway("rest", "--config", arguments) as daemon, aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{await port_of(daemon, 'serving metrics')}/readyz"
        await daemon.line("serving REST")

        async def readiness() -> tuple[int, str]:
            async with session.get(url) as answer:
                return answer.status, await answer.text()

        status, why = await readiness()
        assert status == 503
        assert why.startswith("not ready: CONTROLLER_UNREACHABLE: no Controller answers for the fleet now")
        assert address in why
        async with serve_controller(controller, address):
            while (ready := await readiness())[0] == 503:
                assert "CONTROLLER_UNREACHABLE" in ready[1]
            assert ready == (200, "ready\n")
            controller.refusal = FtError(Reason.NOT_LEADER, "stands by")
            status, why = await readiness()
            assert (status, "NOT_LEADER" in why) == (503, True)


@pytest.mark.parametrize("name", ["engine", "rest"])
async def test_an_unknown_key_ends_it_with_one_line_that_names_it(tmp_path: Path, name: str) -> None:
    async with gateway(name, "--config", config(tmp_path, colour="red")) as daemon:
        code, output = await ended(daemon)
    assert code == 2
    assert "gateway.json" in output
    assert len(output.splitlines()) == 1


@pytest.mark.parametrize("name", ["engine", "rest", "mindcluster"])
async def test_a_configuration_can_be_checked_without_a_start(name: str) -> None:
    example = "mindcluster" if name == "mindcluster" else f"gateway-{name}"
    path = ROOT / "docs" / f"{example}.example.toml"
    async with gateway(name, "--config", str(path), "--check-config") as daemon:
        assert await ended(daemon) == (0, f"{path}: ok")


async def test_a_port_in_use_ends_it_with_a_line_that_names_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = config(tmp_path, listen=listen, controllers=[f"127.0.0.1:{free_port()}"])
        async with gateway("rest", "--config", arguments) as daemon:
            code, output = await ended(daemon)
    assert code == 1
    assert listen in output.splitlines()[-1]
    assert "Traceback" not in output


async def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    engine = {"engines": [{"rank": 0, "url": "http://127.0.0.1:1"}], "token_file": "/nowhere/token"}
    async with gateway("engine", "--config", config(tmp_path, listen="127.0.0.1:0", engine=engine)) as daemon:
        code, output = await ended(daemon)
    assert code == 2
    assert "/nowhere/token" in output
    assert "Traceback" not in output


async def test_help_tells_of_both_daemons() -> None:
    async with gateway("--help") as daemon:
        code, output = await ended(daemon)
    assert code == 0
    assert "engine" in output
    assert "rest" in output
    async with gateway() as daemon:
        assert (await ended(daemon))[0] == 2
