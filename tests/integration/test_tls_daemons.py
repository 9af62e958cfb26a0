"""A whole fleet with ``[tls]`` in every configuration: reports, commands and REST, and nothing for anybody else."""

import asyncio
import json
import math
import re
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from motor_ft.model.errors import FtError
from motor_ft.v1 import common_pb2, controller_pb2, controller_pb2_grpc
from motor_ft.wire.channel import call, open_channel
from tests.support.certificates import Authority
from tests.support.engine import FakeGroup
from tests.support.ports import free_ports
from tests.support.processes import Running, python_module


async def test_pods_report_and_are_commanded_and_rest_is_answered_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    port, metrics_port, node_port, node_metrics, rest_port, rest_metrics = free_ports(6)
    controller = f"127.0.0.1:{port}"

    def config(name: str, values: dict[str, object]) -> str:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**values, "tls": authority.files(name)}))
        return str(path)

    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(FakeGroup(1))

        async def start(name: str, *arguments: str) -> Running:
            return await stack.enter_async_context(Running(python_module(*arguments), name=name))

        settings = {"heartbeat_interval_sec": 0.2, "heartbeat_ttl_sec": 5.0}
        values: dict[str, object] = {"listen": controller, "metrics_listen": f"127.0.0.1:{metrics_port}"}
        values |= {"store": {"kind": "memory"}, "fault_tolerance_config": settings}
        leader = await start("controller", "controller", "--config", config("controller", values))
        await leader.line("controller serves")
        pod: dict[str, object] = {"job_name": "job", "model_name": "model", "node_name": "node", "pod_name": "pod"}
        pod |= {"pod_ip": "127.0.0.1", "listen": f"127.0.0.1:{node_port}", "controllers": [controller], "dp_size": 1}
        pod |= {"metrics_listen": f"127.0.0.1:{node_metrics}", "state_dir": str(tmp_path / "state")}
        pod |= {"engines": [{"rank": 0, "port": int(group.url(0).rpartition(":")[2])}]}
        node = await start("nodemanager", "nodemanager", "--config", config("nodemanager", pod))
        rest: dict[str, object] = {"listen": f"127.0.0.1:{rest_port}", "metrics_listen": f"127.0.0.1:{rest_metrics}"}
        gateway = config("rest", rest | {"controllers": [controller]})
        await (await start("gateway", "gateway", "rest", "--config", gateway)).line("serving REST")

        client = authority.tls("operator").client()
        channel = await stack.enter_async_context(open_channel(controller, tls=client))
        stub = controller_pb2_grpc.ControllerServiceStub(channel)
        instance = await watched(stub, lambda instance: instance.can_serve)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        status = f"http://127.0.0.1:{rest_port}/controller/fault_tolerance/status"
        async with http.get(status) as answer:
            assert answer.status == 200
        for metrics in (metrics_port, node_metrics, rest_metrics):
            async with http.get(f"http://127.0.0.1:{metrics}/metrics") as answer:
                (ends,) = re.findall(r"^motor_ft_tls_not_after_seconds (\S+)$", await answer.text(), re.MULTILINE)
            assert time.time() < float(ends) < math.inf
        header = common_pb2.OperatorHeader(
            instance_id=instance.instance_id, request_id="r", operator="ann", reason="to see a command arrive"
        )
        await call(stub.Reconfigure, controller_pb2.ReconfigureRequest(header=header), timeout=10)
        assert await node.wait() == 0, "it was told to stop"

        plain = await stack.enter_async_context(open_channel(controller))
        stranger = controller_pb2_grpc.ControllerServiceStub(plain)
        with pytest.raises(FtError, match="UNAVAILABLE"):
            await call(stranger.ListInstances, controller_pb2.ListInstancesRequest(), timeout=5)


async def watched(
    stub: "controller_pb2_grpc.ControllerServiceAsyncStub", condition: Callable[[controller_pb2.Instance], bool]
) -> controller_pb2.Instance:
    async with asyncio.timeout(60):
        async for change in stub.WatchInstances(controller_pb2.WatchInstancesRequest()):
            if change.HasField("instance") and condition(change.instance):
                return change.instance
    raise AssertionError("the watch has ended")
