"""Starts and stops every process of the system, and does to them what a test or a person wants."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import ClientSession

from tests.support.cluster.deployment import Deployment
from tests.support.cluster.shape import Shape
from tests.support.cluster.site import Site
from tests.support.ports import free_ports
from tests.support.processes import Running


class Cluster(Deployment):
    """``async with Cluster(folder) as cluster:`` is serving when it is entered.

    ``folder`` collects configuration, state, output of every process and the evidence. The cluster is the first of its
    deployments, and has the Controller and the Coordinator of all of them; ``others`` run beside it.
    """

    def __init__(self, folder: Path, shape: Shape | None = None, *others: Shape) -> None:
        ports = iter(free_ports(4))
        self.controller_port, self.metrics_port = next(ports), next(ports)
        self.rest_port, self.gateway_metrics_port = next(ports), next(ports)
        site = Site(folder, self.controller_port)
        super().__init__(site, shape or Shape())
        self.others = [Deployment(site, other, f"{other.job}-") for other in others]
        self.folder = folder
        self.faults = site.faults
        self.note = site.note
        self.controller: Running | None = None
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
        coordinator = await self.site.run("coordinator", "tests.support.coordinator", "--engine-timeout=5")
        ready = await coordinator.line(r"coordinator=(\S+) admin=(\S+)")
        self.coordinator_url, self.coordinator_admin = ready[1], ready[2]
        await self.start_controller()
        for deployment in self.deployments:
            await deployment.launch_pods()

    async def start_controller(self) -> None:
        """Start the Controller, for the first time or again."""
        config = self.site.write(
            "controller.toml",
            {
                "listen": f"127.0.0.1:{self.controller_port}",
                "metrics_listen": f"127.0.0.1:{self.metrics_port}",
                "coordinators": [self.coordinator_url],
                "store": {"kind": self.shape.store, "path": self.folder / "controller.db"},
                "fault_tolerance_config": self.shape.fault_tolerance,
            },
        )
        self.controller = await self.site.run("controller", "controller", "--config", str(config))
        await self.controller.line("controller serves")

    async def start_gateway(self) -> None:
        """Start the REST gateway beside the Controller; returns when it answers."""
        rest = self.site.write(
            "gateway.toml",
            {
                "listen": f"127.0.0.1:{self.rest_port}",
                "controller": f"127.0.0.1:{self.controller_port}",
                "metrics_listen": f"127.0.0.1:{self.gateway_metrics_port}",
            },
        )
        gateway = await self.site.run("gateway", "gateway", "rest", "--config", str(rest))
        await gateway.line("serving REST")

    async def kill_controller(self) -> None:
        """SIGKILL, as a crash."""
        assert self.controller is not None
        await self.controller.kill()

    async def stop(self) -> None:
        """End everything that was started, pods first, and keep what it printed."""
        await asyncio.gather(*(deployment.stop_pods() for deployment in self.deployments))
        await self.site.stack.aclose()

    # --- look ---

    async def views(self) -> list[dict[str, Any]]:
        """Every view that the Coordinator received."""
        async with self.http.get(f"{self.coordinator_admin}/_fake/views") as response:
            return list(await response.json())

    async def metric(self, name: str) -> float:
        """The value of one of the Controller's metrics that have no labels."""
        async with self.http.get(f"http://127.0.0.1:{self.metrics_port}/metrics") as response:
            lines = (await response.text()).splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

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

    async def inject_coordinator(self, name: str, **params: object) -> None:
        """One injection into the Coordinator (tests/support/coordinator/server.py)."""
        self.note(f"coordinator {name}", None, **params)
        async with self.http.post(f"{self.coordinator_admin}/_fake/inject", json={"name": name, **params}) as response:
            assert response.status == 200, await response.text()
