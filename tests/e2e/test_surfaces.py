"""How a user reaches a running system: reflection, REST, metrics, and what is said when something is wrong."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from motor_ft.v1 import common_pb2
from tests.e2e.conftest import Start, in_process
from tests.support.cluster import Cluster, Shape
from tests.support.cluster.shape import toml
from tests.support.ports import free_ports
from tests.support.processes import Running, python_module

BUF = Path(sys.executable).parent / "buf"
RFC_FIELDS = [
    *("instance_id", "phase", "original_dp_ranks", "request_id", "dead_committed", "pending_removed_ranks"),
    *("alive_dp_ranks", "fallback_strategy", "gate", "engine_statuses", "serving_published", "last_error", "can_serve"),
]
SMALL = Shape(pods=((0,), (1,)))


async def buf_curl(cluster: Cluster, *arguments: str, method: str = "") -> str:
    """Run ``buf curl`` against the Controller, without a schema file."""
    command = [str(BUF), "curl", "--protocol", "grpc", "--http2-prior-knowledge", *arguments]
    url = f"http://127.0.0.1:{cluster.controller_port}{method}"
    process = await asyncio.create_subprocess_exec(
        *command, url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=cluster.folder
    )
    output, errors = await process.communicate()
    return (output if process.returncode == 0 else errors).decode()


def detail(error: str) -> bytes:
    """ErrorInfo of an error as ``buf curl`` prints it, still encoded."""
    found = next(each for each in json.loads(error)["details"] if each["type"] == "google.rpc.ErrorInfo")
    return base64.b64decode(found["value"] + "==")


async def test_buf_curl_lists_the_services_and_reads_an_instance_by_reflection(start: Start) -> None:
    """Reflection is on; errors carry their reason."""
    async with in_process(SMALL) as shapes, start(*shapes) as (cluster, _):
        listed = await buf_curl(cluster, "--list-services")
        assert {"motor_ft.v1.ControllerService", "motor_ft.v1.FaultReportService", "grpc.health.v1.Health"} <= set(
            listed.split()
        )
        method = "/motor_ft.v1.ControllerService/GetInstance"
        read = json.loads(await buf_curl(cluster, "-d", '{"instanceId": 1}', method=method))["instance"]
        assert (read["instanceId"], read["phase"], read["canServe"]) == ("1", "PHASE_NORMAL", True)
        unknown = await buf_curl(cluster, "-d", '{"instanceId": 99}', method=method)
        assert b"UNKNOWN_INSTANCE" in detail(unknown)
        malformed = await buf_curl(cluster, "-d", '{"pageToken": "?"}', method=method.replace("Get", "List") + "s")
        assert b"INVALID_REQUEST" in detail(malformed)


async def test_the_client_that_the_readme_shows_works(start: Start) -> None:
    """As it is there, with the address of a real Controller, for an instance and for one that is not there."""
    shown = (Path(__file__).parents[2] / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    async with in_process(SMALL) as shapes, start(*shapes) as (cluster, _):
        program = shown.replace("127.0.0.1:PORT", f"127.0.0.1:{cluster.controller_port}")
        for text, printed in ((program, "PHASE_NORMAL"), (program.replace(", 1))", ", 7))"), "UNKNOWN_INSTANCE")):
            async with Running([sys.executable, "-c", text]) as process:
                assert (await process.wait(timeout=60), process.output) == (0, [printed])


async def test_rest_status_has_exactly_the_fields_of_the_specification(start: Start) -> None:
    """RFC section 7: all instances, one instance, an unknown one, a bad id."""
    async with in_process(SMALL) as shapes, start(*shapes) as (cluster, _):
        await cluster.start_gateway()
        everything: dict[str, Any] = await cluster.rest("/controller/fault_tolerance/status")
        assert [list(instance) for instance in everything["instances"]] == [RFC_FIELDS]
        one = await cluster.rest("/controller/fault_tolerance/status?instance_id=1")
        assert list(one) == RFC_FIELDS
        assert (one["phase"], one["original_dp_ranks"], one["can_serve"]) == ("NORMAL", [0, 1], True)
        base = f"http://127.0.0.1:{cluster.rest_port}/controller/fault_tolerance/status"
        for query, status in (("?instance_id=99", 404), ("?instance_id=x", 400)):
            async with cluster.http.get(base + query) as response:
                assert response.status == status, query


async def test_a_software_fault_over_rest_is_evidence(start: Start) -> None:
    """RFC section 4.4: the report of a registered pod's rank reaches the FaultManager."""
    async with in_process(SMALL) as shapes, start(*shapes) as (cluster, _):
        await cluster.start_gateway()
        body = {
            "pod_ip": "127.0.0.1",
            "node_manager_port": cluster.pod_ports[1][0],
            "engine_id": 1,
            "engine_status": 2,
            "exception_type": "RuntimeError",
            "exception_message": "peer lost",
            "additional_info": {},
        }
        url = f"http://127.0.0.1:{cluster.rest_port}/controller/report_software_fault"
        async with cluster.http.post(url, json=body) as response:
            assert (response.status, await response.json()) == (200, {"accepted": True})
        await cluster.until(
            lambda i: i.engine_statuses[1] == common_pb2.ENGINE_STATUS_UNHEALTHY, "shows the reported status"
        )
        async with cluster.http.post(url, json={**body, "node_manager_port": 1}) as response:
            assert response.status == 400
            assert (await response.json())["accepted"] is False


async def test_every_daemon_serves_metrics(start: Start) -> None:
    """Outcomes of RPCs everywhere; phases at the Controller."""
    async with in_process(SMALL) as shapes, start(*shapes) as (cluster, _):
        await cluster.start_gateway()
        ports = [cluster.metrics_port, cluster.gateway_metrics_port, *(http for _, _, http in cluster.pod_ports)]
        await cluster.rest("/controller/fault_tolerance/status")
        texts = []
        for port in ports:
            async with cluster.http.get(f"http://127.0.0.1:{port}/metrics") as response:
                assert response.status == 200
                texts.append(await response.text())
        assert 'motor_ft_phase{instance_id="1",phase="NORMAL"} 1.0' in texts[0]
        assert all("motor_ft_" in text for text in texts)


async def refused(module: str, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a daemon that should not start."""
    async with Running(python_module(module, *arguments)) as process:
        code = await process.wait(timeout=30)
        return code, "\n".join(process.output)


CONTROLLER = {"listen": "127.0.0.1:0", "metrics_listen": "127.0.0.1:0", "store": {"kind": "memory"}}
WRONG: dict[str, tuple[dict[str, object], str]] = {
    "unknown key": ({"fault_tolerance_config": {"enabel_dp_scale_down": True}}, "fault_tolerance_config.enabel"),
    "wrong type": (
        {"fault_tolerance_config": {"heartbeat_ttl_sec": "soon"}},
        "fault_tolerance_config.heartbeat_ttl_sec",
    ),
    "impossible": (
        {"fault_tolerance_config": {"fault_collection_timeout_sec": 110.0}},
        "fault_tolerance_config.fault_collection_timeout_sec",
    ),
    "no such scheme": ({"coordinators": ["ftp://x"]}, "coordinators[0]"),
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_configuration_that_cannot_be_used_is_named_by_its_key(tmp_path: Path, what: str) -> None:
    """Exit code 2, one line with file and key path, nothing left behind."""
    table, key = WRONG[what]
    path = tmp_path / "controller.toml"
    path.write_text(toml({**CONTROLLER, **table}))
    code, output = await refused("controller", "--config", str(path))
    left = await asyncio.to_thread(os.listdir, tmp_path)
    assert code == 2
    assert str(path) in output
    assert key in output
    assert "Traceback" not in output
    assert left == ["controller.toml"]


async def test_a_port_in_use_is_named_and_nothing_stays(tmp_path: Path) -> None:
    """Exit code 1."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for key in ("listen", "metrics_listen"):
            path = tmp_path / "controller.toml"
            path.write_text(toml({**CONTROLLER, key: address}))
            code, output = await refused("controller", "--config", str(path))
            assert code == 1
            assert address in output
            assert "Traceback" not in output


async def test_a_second_controller_on_the_same_store_is_refused(tmp_path: Path) -> None:
    """The file is named; the first one is not disturbed."""
    path = tmp_path / "controller.toml"
    path.write_text(toml({**CONTROLLER, "store": {"path": tmp_path / "controller.db"}}))
    async with Running(python_module("controller", "--config", str(path))) as first:
        await first.line("controller serves")
        code, output = await refused("controller", "--config", str(path))
        assert code == 1
        assert "controller.db" in output
        assert first.returncode is None


async def test_engines_that_are_down_or_answer_garbage_at_start_are_named_and_nothing_serves(folder: Path) -> None:
    """The NodeManager waits for readiness and says which engine; the instance is not published."""
    down, garbage = free_ports(2)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nok?!")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", garbage)
    async with server:
        shape = Shape(pods=((0, 1),), urls=(f"http://127.0.0.1:{down}", f"http://127.0.0.1:{garbage}"))
        cluster = Cluster(folder, shape)
        try:
            await cluster.launch()
            seen = await cluster.until(lambda i: len(i.engine_statuses) > 0, "shows its engines")
            assert not seen.can_serve
        finally:
            await cluster.stop()


async def test_sigterm_ends_every_daemon_and_its_engines(folder: Path) -> None:
    """Clean exit codes, no process left."""
    async with Cluster(folder, SMALL) as cluster:
        assert cluster.controller is not None
        pod = psutil.Process(cluster.pods[0].pid)
        children = pod.children(recursive=True)
        assert children
        pod.send_signal(signal.SIGTERM)
        _, alive = await asyncio.to_thread(psutil.wait_procs, [pod, *children], 20)
        assert alive == []
        assert cluster.controller.returncode is None
        assert await cluster.controller.stop() == 0
