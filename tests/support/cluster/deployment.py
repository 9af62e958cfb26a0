"""The pods and engines of one instance, and what a test does to them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import psutil

from motor_ft.v1 import controller_pb2 as pb
from motor_ft.v1.controller_pb2_grpc import ControllerServiceStub
from nodemanager.process import LAUNCHER
from tests.support.cluster.shape import Shape
from tests.support.cluster.site import Site
from tests.support.cut_proxy import CutProxy
from tests.support.pod_keeper import Backoff, PodKeeper
from tests.support.ports import free_ports
from tests.support.processes import python_module

if TYPE_CHECKING:
    from motor_ft.v1.controller_pb2_grpc import ControllerServiceAsyncStub

START_TIMEOUT_SEC = 60.0


class Deployment:
    """One job of a cluster. ``prefix`` is of the names of its files and processes."""

    def __init__(self, site: Site, shape: Shape, prefix: str = "") -> None:
        self.shape = shape
        self.prefix = prefix
        self.pods: list[PodKeeper] = []
        self.proxies: dict[int, CutProxy] = {}
        self.report_proxies: dict[int, CutProxy] = {}
        self.site = site
        ports = iter(free_ports(3 * len(shape.pods) + shape.dp_size))
        self.pod_ports = [(next(ports), next(ports), next(ports)) for _ in shape.pods]
        self.engine_ports = {rank: next(ports) for rank in range(shape.dp_size)}
        self.group_url = ""

    async def launch_engine_group(self) -> None:
        """Start what the engines have in common, unless they run elsewhere; also the proxies in front of pods.

        Before the Controller, so that they end after it and refuse nobody who still connects.
        """
        if not self.shape.urls:
            flags = [f"--dp-size={self.shape.dp_size}", f"--dialect={self.shape.dialect}", *self.shape.timings.flags()]
            flags += [] if self.shape.engine_ft else ["--no-fault-tolerance"]
            group = await self.site.run(f"{self.prefix}group", "tests.support.engine.group_server", *flags)
            self.group_url = (await group.line(r"group=(\S+)"))[1]
        for number in self.shape.proxied_pods:
            proxy = CutProxy("127.0.0.1", self.pod_ports[number][0])
            self.proxies[number] = await self.site.stack.enter_async_context(proxy)
        for number in self.shape.proxied_reports:
            proxy = CutProxy("127.0.0.1", self.site.controller_port)
            self.report_proxies[number] = await self.site.stack.enter_async_context(proxy)

    async def launch_pods(self) -> None:
        """Start every pod, and with it its engines."""
        for number in range(len(self.shape.pods)):
            config = self.site.write(f"{self.prefix}pod-{number}.toml", self._pod_config(number))
            pod = PodKeeper(
                python_module(self.shape.node_manager_module, "--config", str(config)),
                env=self.site.env,
                output=self.site.folder / f"{self.prefix}pod-{number}.log",
                record=self.site.folder / f"{self.prefix}pod-{number}.jsonl",
                backoff=Backoff(first=0.2, limit=1.0),
            )
            self.pods.append(pod)
            await pod.start()

    async def stop_pods(self) -> None:
        """End every pod."""
        await asyncio.gather(*(pod.stop() for pod in self.pods))

    def _pod_config(self, number: int) -> dict[str, Any]:
        grpc_port, rest_port, metrics_port = self.pod_ports[number]
        state = self.site.folder / f"{self.prefix}pod-{number}"
        state.mkdir(exist_ok=True)
        return {
            "job_name": self.shape.job,
            "model_name": "fake-model",
            "engine_type": "vllm",
            "role": self.shape.role,
            "node_name": f"node-{number}",
            "pod_name": f"{self.shape.job}-{number}",
            "pod_uid": f"{self.shape.job}-{number}" if self.shape.pods_outlive else None,
            "pod_ip": "127.0.0.1",
            "listen": f"127.0.0.1:{grpc_port}",
            "rest_listen": f"127.0.0.1:{rest_port}",
            "metrics_listen": f"127.0.0.1:{metrics_port}",
            "advertise": f"127.0.0.1:{self.proxies[number].port}" if number in self.proxies else None,
            "controllers": self._controllers(number),
            "state_dir": state,
            "dp_size": self.shape.dp_size,
            "tp_size": 1,
            "gateway": {"dialect": self.shape.dialect if self.shape.engine_ft else "auto"},
            "capability": self.shape.pod_capabilities.get(number, self.shape.capability) or None,
            "engines": [self._engine(rank) for rank in self.shape.pods[number]],
        }

    def _controllers(self, number: int) -> list[str]:
        if (proxy := self.report_proxies.get(number)) is not None:
            return [proxy.address]
        return [f"127.0.0.1:{port}" for port in self.site.controller_ports]

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
        card = str(self.shape.first_card + rank)
        return {"rank": rank, "port": own, "command": command, "devices": [{"device_id": card}]}

    # --- look ---

    @asynccontextmanager
    async def stub(self) -> AsyncIterator[ControllerServiceAsyncStub]:
        """A client of the Controller."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.site.controller_port}") as channel:
            yield ControllerServiceStub(channel)

    async def instances(self, *, deleted: bool = False) -> list[pb.Instance]:
        """What the Controller lists of the job now."""
        async with self.stub() as stub:
            request = pb.ListInstancesRequest(show_deleted=deleted)
            listed = (await stub.ListInstances(request, timeout=5, wait_for_ready=True)).instances
        return [instance for instance in listed if instance.job_name == self.shape.job]

    async def until(
        self, condition: Callable[[pb.Instance], bool], what: str, timeout: float = START_TIMEOUT_SEC
    ) -> pb.Instance:
        """Watch the job's instances until one satisfies the condition; survives a restart of the Controller."""
        last: dict[int, pb.Instance] = {}
        try:
            async with asyncio.timeout(timeout):
                while True:
                    async with self.stub() as stub:
                        try:
                            async for update in stub.WatchInstances(pb.WatchInstancesRequest(), wait_for_ready=True):
                                if update.instance.job_name == self.shape.job:
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

    async def engine_log(self) -> dict[str, list[Any]]:
        """Requests, applies and changes of the fake engines, oldest first; nothing of engines that run elsewhere."""
        if self.shape.group is not None:
            return self.shape.group.journal.as_json()
        if not self.group_url:
            return {"applies": [], "changes": []}
        async with self.site.http.get(f"{self.group_url}/_fake/log") as response:
            return dict(await response.json())

    async def applies(self) -> list[dict[str, Any]]:
        """Every apply that reached an engine."""
        return (await self.engine_log())["applies"]

    # --- do ---

    async def inject(self, name: str, rank: int | None = None, **params: object) -> None:
        """One injection into the fake engines (tests/support/engine/injections.py)."""
        self.site.note(name, rank, **params)
        if self.shape.group is not None:
            await self.shape.group.inject(rank, name, **params)
            return
        body = {"name": name, "rank": rank, **params}
        async with self.site.http.post(f"{self.group_url}/_fake/inject", json=body) as response:
            assert response.status == 200, await response.text()

    def engine_process(self, rank: int) -> psutil.Process:
        """The engine process of a rank, not its launcher."""
        number = next(n for n, ranks in enumerate(self.shape.pods) if rank in ranks)
        for process in psutil.Process(self.pods[number].pid).children(recursive=True):
            command = process.cmdline()
            if f"--rank={rank}" in command and str(LAUNCHER) not in command:
                return process
        raise LookupError(f"no process of rank {rank} in pod {number}")

    def kill_engine(self, rank: int) -> None:
        """SIGKILL the engine process of a rank."""
        self.site.note("SIGKILL engine", rank)
        self.engine_process(rank).kill()
