"""Starts and stops every process of the system, and does to them what a test or a person wants."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cluster.deployment import START_TIMEOUT_SEC, Deployment
from tests.support.cluster.shape import Shape
from tests.support.cluster.site import Site
from tests.support.cut_proxy import CutProxy
from tests.support.ports import free_ports
from tests.support.processes import Running
from tests.support.waiting import until


class Cluster(Deployment):
    """``async with Cluster(folder) as cluster:`` is serving when it is entered.

    ``folder`` collects configuration, state, output of every process and the evidence. The cluster is the first of its
    deployments, and has the Controller and the Coordinator of all of them; ``others`` run beside it.
    """

    def __init__(self, folder: Path, shape: Shape | None = None, *others: Shape) -> None:
        shape = shape or Shape()
        self.rest_port, self.gateway_metrics_port, *self._coordinator_ports = free_ports(4)
        self.metrics_ports = free_ports(shape.controllers)
        site = Site(folder, free_ports(shape.controllers))
        super().__init__(site, shape)
        self.others = [Deployment(site, other, f"{other.job}-") for other in others]
        self.folder = folder
        self.faults = site.faults
        self.note = site.note
        self.controllers: dict[int, Running] = {}
        self.gateway: Running | None = None
        self.coordinator: Running | None = None
        self.coordinator_proxy: CutProxy | None = None
        self.coordinator_url = ""
        self.coordinator_admin = ""

    @property
    def deployments(self) -> list[Deployment]:
        """All of them, itself first."""
        return [self, *self.others]

    @property
    def http(self) -> ClientSession:
        """A client for whatever serves HTTP."""
        return self.site.http

    @property
    def controller(self) -> Running | None:
        """The Controller that tests talk to."""
        return self.controllers.get(self.site.leader)

    @property
    def controller_port(self) -> int:
        """gRPC port of that one."""
        return self.site.controller_port

    @property
    def metrics_port(self) -> int:
        """Metrics port of that one."""
        return self.metrics_ports[self.site.leader]

    # --- start and stop ---

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start everything and wait until every instance serves; ends what it started when that fails."""
        try:
            await self.launch()
            for deployment in self.deployments:
                await deployment.serving()
        except BaseException:
            await self.stop()
            raise

    async def launch(self) -> None:
        """Start everything without waiting for the instances."""
        await self.site.open()
        for deployment in self.deployments:
            await deployment.launch_engine_group()
        await self.start_coordinator()
        if self.shape.proxied_coordinator:
            port = int(self.coordinator_url.rpartition(":")[2])
            self.coordinator_proxy = await self.site.stack.enter_async_context(CutProxy("127.0.0.1", port))
        await self.start_controller()
        for number in range(1, self.shape.controllers):
            await self.start_standby(number)
        for deployment in self.deployments:
            await deployment.launch_pods()

    async def start_coordinator(self) -> None:
        """Start the Coordinator, for the first time or again on its ports, when it has forgotten everything."""
        port, admin = self._coordinator_ports
        flags = [f"--port={port}", f"--admin-port={admin}", "--engine-timeout=5"]
        self.coordinator = await self.site.run("coordinator", "tests.support.coordinator", *flags)
        ready = await self.coordinator.line(r"coordinator=(\S+) admin=(\S+)")
        self.coordinator_url, self.coordinator_admin = ready[1], ready[2]

    async def start_controller(self) -> None:
        """Start the Controller, for the first time or again; returns when it leads."""
        controller = await self._run_controller(self.site.leader)
        await controller.line("controller serves")

    async def start_standby(self, number: int) -> None:
        """Start a Controller behind the one that leads."""
        controller = await self._run_controller(number)
        await controller.line("standing by")

    async def took_over(self, number: int) -> None:
        """This Controller leads from now on."""
        await self.controllers[number].line("controller serves")
        self.site.leader = number

    async def _run_controller(self, number: int) -> Running:
        proxy = self.coordinator_proxy
        config = self.site.write(
            f"controller-{number}.toml",
            {
                "listen": f"127.0.0.1:{self.site.controller_ports[number]}",
                "metrics_listen": f"127.0.0.1:{self.metrics_ports[number]}",
                "coordinators": [f"http://{proxy.address}" if proxy else self.coordinator_url],
                "store": self._store(),
                "fault_tolerance_config": self.shape.fault_tolerance,
            },
        )
        module = self.shape.controller_module
        controller = await self.site.run(f"controller-{number}", module, "--config", str(config))
        self.controllers[number] = controller
        return controller

    def _store(self) -> dict[str, Any]:
        if not self.shape.etcd:
            return {"kind": self.shape.store, "path": self.folder / "controller.db"}
        endpoints = [f"http://{member}" for member in self.shape.etcd]
        etcd = {"endpoints": endpoints, "prefix": f"/{self.folder.name}", "lease_ttl_sec": self.shape.lease_ttl_sec}
        return {"kind": "etcd", "etcd": etcd}

    async def start_gateway(self) -> None:
        """Start the REST gateway beside the Controller, for the first time or again; returns when it answers."""
        rest = self.site.write(
            "gateway.toml",
            {
                "listen": f"127.0.0.1:{self.rest_port}",
                "controllers": [f"127.0.0.1:{self.controller_port}"],
                "metrics_listen": f"127.0.0.1:{self.gateway_metrics_port}",
            },
        )
        self.gateway = await self.site.run("gateway", "gateway", "rest", "--config", str(rest))
        await self.gateway.line("serving REST")

    async def kill_controller(self) -> None:
        """SIGKILL, as a crash."""
        assert self.controller is not None
        await self.controller.kill()

    async def stop(self) -> None:
        """End everything that was started, pods first, and keep what it printed."""
        await asyncio.gather(*(deployment.stop_pods() for deployment in self.deployments))
        await self.site.stack.aclose()

    # --- look ---

    async def views(self, after: float = 0) -> list[dict[str, Any]]:
        """Every view that the Coordinator received, ``after`` a wall clock."""
        async with self.http.get(f"{self.coordinator_admin}/_fake/views?after={after}") as response:
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

    async def metric(self, name: str, port: int | None = None, **labels: str) -> float:
        """Sum of a metric's samples with these labels, of the Controller or of whoever serves metrics at ``port``."""
        async with self.http.get(f"http://127.0.0.1:{port or self.metrics_port}/metrics") as response:
            families = text_string_to_metric_families(await response.text())
        samples = (sample for family in families for sample in family.samples if sample.name == name)
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    # --- do ---

    def signal_at(self, point: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Have a daemon of ``tests.support.killed`` get a signal at this point, once."""
        self.note(f"{number.name} {point}", None)
        (self.folder / "point").write_text(f"{number.name} {point}")

    async def stopped(self, number: int) -> None:
        """Return when this Controller has come to the point, and stands still: a SIGCONT before that would be lost."""
        process = psutil.Process(self.controllers[number].pid)
        await until(lambda: process.status() == psutil.STATUS_STOPPED, START_TIMEOUT_SEC)

    async def inject_coordinator(self, name: str, **params: object) -> None:
        """One injection into the Coordinator (tests/support/coordinator/server.py)."""
        self.note(f"coordinator {name}", None, **params)
        async with self.http.post(f"{self.coordinator_admin}/_fake/inject", json={"name": name, **params}) as response:
            assert response.status == 200, await response.text()
