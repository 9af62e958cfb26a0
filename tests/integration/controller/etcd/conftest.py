"""Controllers as processes on a real etcd, which holds an instance already."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from controller.core import assembly
from controller.core.phases import Phase
from controller.core.records import RuntimeRecord
from motor_ft.v1 import controller_pb2 as pb
from motor_ft.v1.controller_pb2_grpc import ControllerServiceStub
from motor_ft.v1.fault_report_pb2 import FaultReportResponse
from motor_ft.v1.fault_report_pb2_grpc import FaultReportServiceStub
from tests.integration.controller.reporters import hello
from tests.support.cluster.shape import toml
from tests.support.etcd import Etcd, open_store
from tests.support.ports import free_ports
from tests.support.processes import Running, python_module
from tests.unit.controller.core.fleet import pod

INSTANCE = 7
GENERATION = 5
PREFIX = "/motor-ft"


SERVICES = ("", "motor_ft.v1.FaultReportService", "motor_ft.v1.ControllerService")


class ControllerProcess(Running):
    """One ``motor-controller`` that has a lease of ``ttl_sec`` while it leads."""

    def __init__(self, folder: Path, name: str, etcd: Etcd, ttl_sec: int) -> None:
        self.port, self.metrics_port = free_ports(2)
        endpoints = [f"http://{endpoint}" for endpoint in etcd.endpoints]
        settings = {
            "listen": f"127.0.0.1:{self.port}",
            "metrics_listen": f"127.0.0.1:{self.metrics_port}",
            "store": {"kind": "etcd", "etcd": {"endpoints": endpoints, "prefix": PREFIX, "lease_ttl_sec": ttl_sec}},
            "fault_tolerance_config": {"enable_dp_scale_down": True},
        }
        self.config = folder / f"{name}.toml"
        self.config.write_text(toml(settings))
        super().__init__(python_module("controller", "--config", str(self.config)), name=name)

    async def ready(self) -> int:
        """Status of /readyz."""
        url = f"http://127.0.0.1:{self.metrics_port}/readyz"
        async with aiohttp.ClientSession() as http, http.get(url) as response:
            return response.status

    async def metric(self, name: str) -> str:
        """Value of a metric without labels."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        async with aiohttp.ClientSession() as http, http.get(url) as response:
            return next(line.split()[1] for line in (await response.text()).splitlines() if line.startswith(f"{name} "))

    async def serves(self) -> list[int]:
        """Health of the process and of its services."""
        async with self._channel() as channel:
            stub: Any = HealthStub(channel)  # typed as synchronous
            return [(await stub.Check(HealthCheckRequest(service=name), timeout=5)).status for name in SERVICES]

    async def hello(self, highest_epoch: int = 0) -> FaultReportResponse:
        """What a pod is told that has followed this epoch; raises AioRpcError."""
        async with self._channel() as channel:
            stream = FaultReportServiceStub(channel).FaultReport(timeout=10)
            message = hello()
            message.hello.highest_epoch = highest_epoch
            await stream.write(message)
            answer = await stream.read()
            assert isinstance(answer, FaultReportResponse)
            return answer

    def _channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.port}")

    async def instances(self) -> list[pb.Instance]:
        """What it lists."""
        async with self._channel() as channel:
            response = await ControllerServiceStub(channel).ListInstances(pb.ListInstancesRequest(), timeout=5)
            return list(response.instances)


Start = Callable[[str, int], Awaitable[ControllerProcess]]


@pytest.fixture
def etcd() -> Iterator[Etcd]:
    with Etcd() as etcd:
        yield etcd


@pytest.fixture
async def start(tmp_path: Path, etcd: Etcd) -> AsyncIterator[Start]:
    """Start a Controller by name and lease; every one is ended with the test."""
    await _fill(etcd)
    async with AsyncExitStack() as stack:

        async def started(name: str, ttl_sec: int) -> ControllerProcess:
            return await stack.enter_async_context(ControllerProcess(tmp_path, name, etcd, ttl_sec))

        yield started


async def _fill(etcd: Etcd) -> None:
    """An instance that has lost rank 2 and serves without it."""
    store = open_store(etcd, PREFIX)
    await store.lead()
    identity = assembly.identity(INSTANCE, (pod(1, (0, 1)), pod(2, (2, 3))))
    runtime = RuntimeRecord(Phase.SCALED_DOWN_RUNNING, GENERATION, (0, 1, 2, 3), dead_committed=(2,))
    await store.save_identity(identity, 0)
    await store.save_runtime(INSTANCE, runtime, 0)
    await store.close()
