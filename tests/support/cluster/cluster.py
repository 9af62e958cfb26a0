"""Starts and stops every process of the system, and does to them what a test or a person wants."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import grpc
import psutil
from aiohttp import ClientSession, ClientTimeout

from motor_ft.v1 import controller_pb2 as pb
from motor_ft.v1.controller_pb2_grpc import ControllerServiceStub
from tests.support.cluster.shape import Shape, toml
from tests.support.cut_proxy import CutProxy
from tests.support.pod_keeper import Backoff, PodKeeper
from tests.support.ports import free_ports
from tests.support.processes import Running, python_module

if TYPE_CHECKING:
    from motor_ft.v1.controller_pb2_grpc import ControllerServiceAsyncStub

START_TIMEOUT_SEC = 60.0


class Cluster:
    """``async with Cluster(folder) as cluster:`` is serving when it is entered.

    ``folder`` collects configuration, state, output of every process and the evidence.
    """

    def __init__(self, folder: Path, shape: Shape | None = None) -> None:
        self.folder = folder
        self.shape = shape or Shape()
        self.pods: list[PodKeeper] = []
        self.proxies: dict[int, CutProxy] = {}
        self.controller: Running | None = None
        self.faults: list[dict[str, object]] = []
        self._stack = AsyncExitStack()
        ports = iter(free_ports(4 + 3 * len(self.shape.pods) + self.shape.dp_size))
        self.controller_port, self.metrics_port = next(ports), next(ports)
        self.rest_port, self.gateway_metrics_port = next(ports), next(ports)
        self.pod_ports = [(next(ports), next(ports), next(ports)) for _ in self.shape.pods]
        self.engine_ports = {rank: next(ports) for rank in range(self.shape.dp_size)}
        self.group_url = ""
        self.coordinator_url = ""
        self.coordinator_admin = ""

    # --- start and stop ---

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start everything and wait until the instance serves; ends what it started when that fails."""
        try:
            await self.launch()
            await self.serving()
        except BaseException:
            await self.stop()
            raise

    async def launch(self) -> None:
        """Start everything without waiting for the instance."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.http = await self._stack.enter_async_context(ClientSession(timeout=ClientTimeout(total=10)))
        if not self.shape.urls:
            group = await self._run("group", "tests.support.engine.group_server", *self._group_flags())
            self.group_url = (await group.line(r"group=(\S+)"))[1]
        coordinator = await self._run("coordinator", "tests.support.coordinator", "--engine-timeout=5")
        ready = await coordinator.line(r"coordinator=(\S+) admin=(\S+)")
        self.coordinator_url, self.coordinator_admin = ready[1], ready[2]
        # Before the Controller, so that they end after it and refuse nobody who still connects.
        for number in self.shape.proxied_pods:
            proxy = CutProxy("127.0.0.1", self.pod_ports[number][0])
            self.proxies[number] = await self._stack.enter_async_context(proxy)
        await self.start_controller()
        for number in range(len(self.shape.pods)):
            await self._start_pod(number)

    async def start_controller(self) -> None:
        """Start the Controller, for the first time or again."""
        config = self._write(
            "controller.toml",
            {
                "listen": f"127.0.0.1:{self.controller_port}",
                "metrics_listen": f"127.0.0.1:{self.metrics_port}",
                "coordinators": [self.coordinator_url],
                "store": {"kind": self.shape.store, "path": self.folder / "controller.db"},
                "fault_tolerance_config": self.shape.fault_tolerance,
            },
        )
        self.controller = await self._run("controller", "controller", "--config", str(config))
        await self.controller.line("controller serves")

    async def start_gateway(self) -> None:
        """Start the REST gateway beside the Controller; returns when it answers."""
        rest = self._write(
            "gateway.toml",
            {
                "listen": f"127.0.0.1:{self.rest_port}",
                "controller": f"127.0.0.1:{self.controller_port}",
                "metrics_listen": f"127.0.0.1:{self.gateway_metrics_port}",
            },
        )
        gateway = await self._run("gateway", "gateway", "rest", "--config", str(rest))
        await gateway.line("serving REST")

    async def kill_controller(self) -> None:
        """SIGKILL, as a crash."""
        assert self.controller is not None
        await self.controller.kill()

    async def stop(self) -> None:
        """End everything that was started, pods first, and keep what it printed."""
        await asyncio.gather(*(pod.stop() for pod in self.pods))
        await self._stack.aclose()

    async def _run(self, name: str, module: str, *arguments: str) -> Running:
        process = Running(python_module(module, *arguments), name=name)
        self._stack.callback(self._keep_output, process)
        return await self._stack.enter_async_context(process)

    def _keep_output(self, process: Running) -> None:
        with (self.folder / f"{process.name}.log").open("a") as file:
            file.writelines(f"{line}\n" for line in process.output)

    def _group_flags(self) -> list[str]:
        return [f"--dp-size={self.shape.dp_size}", f"--dialect={self.shape.dialect}", *self.shape.timings.flags()]

    async def _start_pod(self, number: int) -> None:
        config = self._write(f"pod-{number}.toml", self._pod_config(number))
        pod = PodKeeper(
            python_module("nodemanager", "--config", str(config)),
            output=self.folder / f"pod-{number}.log",
            record=self.folder / f"pod-{number}.jsonl",
            backoff=Backoff(first=0.2, limit=1.0),
        )
        self.pods.append(pod)
        await pod.start()

    def _pod_config(self, number: int) -> dict[str, Any]:
        grpc_port, rest_port, metrics_port = self.pod_ports[number]
        state = self.folder / f"pod-{number}"
        state.mkdir(exist_ok=True)
        return {
            "job_name": self.shape.job,
            "model_name": "fake-model",
            "engine_type": "vllm",
            "role": "union",
            "node_name": f"node-{number}",
            "pod_name": f"{self.shape.job}-{number}",
            "pod_ip": "127.0.0.1",
            "listen": f"127.0.0.1:{grpc_port}",
            "rest_listen": f"127.0.0.1:{rest_port}",
            "metrics_listen": f"127.0.0.1:{metrics_port}",
            "advertise": f"127.0.0.1:{self.proxies[number].port}" if number in self.proxies else None,
            "controllers": [f"127.0.0.1:{self.controller_port}"],
            "state_dir": state,
            "dp_size": self.shape.dp_size,
            "tp_size": 1,
            "gateway": {"dialect": self.shape.dialect},
            "capability": self.shape.pod_capabilities.get(number, self.shape.capability) or None,
            "engines": [self._engine(rank) for rank in self.shape.pods[number]],
        }

    def _engine(self, rank: int) -> dict[str, Any]:
        if self.shape.urls:
            host, port = self.shape.addresses[rank]
            return {"rank": rank, "host": host, "port": port}
        own = self.engine_ports[rank]
        command = [
            *(sys.executable, "-m", "tests.support.engine"),
            f"--group={self.group_url.removeprefix('http://')}",
            f"--rank={rank}",
            f"--dp-size={self.shape.dp_size}",
            f"--dialect={self.shape.dialect}",
            f"--port={own}",
        ]
        return {"rank": rank, "port": own, "command": command, "devices": [{"device_id": str(rank)}]}

    def _write(self, name: str, table: dict[str, Any]) -> Path:
        path = self.folder / name
        path.write_text(toml(table))
        return path

    # --- look ---

    @asynccontextmanager
    async def stub(self) -> AsyncIterator[ControllerServiceAsyncStub]:
        """A client of the Controller."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.controller_port}") as channel:
            yield ControllerServiceStub(channel)

    async def instances(self, *, deleted: bool = False) -> list[pb.Instance]:
        """What the Controller lists now."""
        async with self.stub() as stub:
            request = pb.ListInstancesRequest(show_deleted=deleted)
            return list((await stub.ListInstances(request, timeout=5, wait_for_ready=True)).instances)

    async def until(
        self, condition: Callable[[pb.Instance], bool], what: str, timeout: float = START_TIMEOUT_SEC
    ) -> pb.Instance:
        """Watch the instances until one satisfies the condition; survives a restart of the Controller."""
        last: dict[int, pb.Instance] = {}
        try:
            async with asyncio.timeout(timeout):
                while True:
                    async with self.stub() as stub:
                        try:
                            async for update in stub.WatchInstances(pb.WatchInstancesRequest(), wait_for_ready=True):
                                if update.HasField("instance"):
                                    last[update.instance.instance_id] = update.instance
                                    if condition(update.instance):
                                        return update.instance
                        except grpc.aio.AioRpcError:
                            await asyncio.sleep(0.05)  # the Controller is down; there is nothing to be told by
        except TimeoutError:
            raise TimeoutError(f"no instance {what} within {timeout:g} s; last seen: {last}") from None

    async def serving(self, timeout: float = START_TIMEOUT_SEC, *, after: int = 0) -> pb.Instance:
        """An instance newer than ``after`` that can serve."""
        return await self.until(lambda i: i.can_serve and i.instance_id > after, "serves", timeout)

    async def phase(self, name: str, timeout: float = START_TIMEOUT_SEC) -> pb.Instance:
        """An instance in this phase."""
        wanted = pb.Phase.Value(f"PHASE_{name}")
        return await self.until(lambda i: i.phase == wanted, f"is {name}", timeout)

    async def engine_log(self) -> dict[str, list[dict[str, Any]]]:
        """Applies and changes of the fake engines, oldest first."""
        async with self.http.get(f"{self.group_url}/_fake/log") as response:
            return dict(await response.json())

    async def applies(self) -> list[dict[str, Any]]:
        """Every apply that reached an engine."""
        return (await self.engine_log())["applies"]

    async def views(self) -> list[dict[str, Any]]:
        """Every view that the Coordinator received."""
        async with self.http.get(f"{self.coordinator_admin}/_fake/views") as response:
            return list(await response.json())

    async def rest(self, path: str) -> Any:
        """GET at the REST gateway."""
        async with self.http.get(f"http://127.0.0.1:{self.rest_port}{path}") as response:
            return await response.json()

    async def complete(self) -> int:
        """HTTP status of one completion through the Coordinator."""
        body = {"model": "fake-model", "prompt": "1", "max_tokens": 1}
        async with self.http.post(f"{self.coordinator_url}/v1/completions", json=body) as response:
            await response.read()
            return response.status

    # --- do ---

    async def inject(self, name: str, rank: int | None = None, **params: object) -> None:
        """One injection into the fake engines (tests/support/engine/injections.py)."""
        self.note(name, rank, **params)
        body = {"name": name, "rank": rank, **params}
        async with self.http.post(f"{self.group_url}/_fake/inject", json=body) as response:
            assert response.status == 200, await response.text()

    async def inject_coordinator(self, name: str, **params: object) -> None:
        """One injection into the Coordinator (tests/support/coordinator/server.py)."""
        self.note(f"coordinator {name}", None, **params)
        async with self.http.post(f"{self.coordinator_admin}/_fake/inject", json={"name": name, **params}) as response:
            assert response.status == 200, await response.text()

    def engine_process(self, rank: int) -> psutil.Process:
        """The engine process of a rank."""
        number = next(n for n, ranks in enumerate(self.shape.pods) if rank in ranks)
        for process in psutil.Process(self.pods[number].pid).children(recursive=True):
            if f"--rank={rank}" in process.cmdline():
                return process
        raise LookupError(f"no process of rank {rank} in pod {number}")

    def kill_engine(self, rank: int) -> None:
        """SIGKILL the engine process of a rank."""
        self.note("SIGKILL engine", rank)
        self.engine_process(rank).kill()

    def note(self, what: str, rank: int | None, **params: object) -> None:
        """Write down a fault."""
        self.faults.append({"at": time.time(), "what": what, "rank": rank, **params})
