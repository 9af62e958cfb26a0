"""What is done to that which all instances have in common, while they break and recover."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from scripts.endurance.witness import Witness
from tests.support.cluster import Cluster
from tests.support.cluster.hardware import Hardware

EVERY_SEC = (4.0, 16.0)
"""Between the end of one and the begin of the next."""


class Disturbances:
    """``run`` until it is cancelled; ``counts`` has how often what was done.

    Daemons that are measured over a long time are killed only while ``mortal`` says so.
    """

    def __init__(
        self,
        cluster: Cluster,
        hardware: Hardware,
        witness: Witness,
        seed: str,
        calm: AbstractAsyncContextManager[object],
        mortal: Callable[[], bool],
    ) -> None:
        self.counts = Counter[str]()
        self._cluster = cluster
        self._hardware = hardware
        self._witness = witness
        self._random = random.Random(f"{seed} disturbances")
        self._calm = calm
        self._mortal = mortal
        self._always: tuple[Callable[[], Awaitable[None]], ...] = (
            self.coordinator_killed,
            self.coordinator_refuses,
            self.coordinator_slow,
            self.controller_hangs,
        )
        self._daemons = (self.controller_killed, self.gateway_killed, self.adapter_killed)

    async def run(self) -> None:
        """One after the other."""
        while True:
            await self._wait(*EVERY_SEC)
            async with self._calm:
                disturb = self._random.choice(self._always + (self._daemons if self._mortal() else ()))
                await disturb()
                self.counts[disturb.__name__.replace("_", " ")] += 1

    async def coordinator_killed(self) -> None:
        """SIGKILL; what comes in its place has forgotten everything."""
        assert self._cluster.coordinator is not None
        await self._witness.look()
        await self._cluster.coordinator.kill()
        await self._wait(0.0, 2.0)
        await self._cluster.start_coordinator()

    async def coordinator_refuses(self) -> None:
        """Every refresh is answered with an error for a while."""
        await self._cluster.inject_coordinator("error", status=500)
        await self._wait(0.2, 3.0)
        await self._cluster.inject_coordinator("clear")

    async def coordinator_slow(self) -> None:
        """A refresh takes longer than the Controller waits."""
        await self._cluster.inject_coordinator("slow", seconds=self._random.uniform(0.5, 4.0))
        await self._wait(0.2, 3.0)
        await self._cluster.inject_coordinator("clear")

    async def controller_hangs(self) -> None:
        """SIGSTOP and SIGCONT."""
        assert self._cluster.controller is not None
        self._cluster.controller.signal(signal.SIGSTOP)
        await self._wait(0.2, 3.0)
        self._cluster.controller.signal(signal.SIGCONT)

    async def controller_killed(self) -> None:
        """SIGKILL, whatever it is doing, and a start from what is on the disk."""
        await self._cluster.kill_controller()
        await self._wait(0.0, 2.0)
        await self._cluster.start_controller()

    async def gateway_killed(self) -> None:
        """SIGKILL and a start."""
        assert self._cluster.gateway is not None
        await self._cluster.gateway.kill()
        await self._cluster.start_gateway()

    async def adapter_killed(self) -> None:
        """SIGKILL to the one that reports hardware, and a start."""
        assert self._hardware.adapter is not None
        await self._hardware.adapter.kill()
        await self._wait(0.0, 2.0)
        await self._hardware.start_adapter()

    async def _wait(self, least: float, most: float) -> None:
        await asyncio.sleep(self._random.uniform(least, most))
