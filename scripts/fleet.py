"""What a fault of one instance costs a Controller that has others beside it, in this process.

A whole FaultManager with its strategies, and NodeManagers that answer at once and send no heartbeats: what is left is
the Controller's own work for the event. Fleets of all sizes take turns, and of every number the least of all turns
counts, because a busy machine only ever adds to it.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from rich.table import Table

from controller.core.reports import SoftwareFault
from motor_ft.model.hardware import FaultLevel
from motor_ft.model.topology import Registration
from motor_ft.wire.log import configure_logging
from tests.support.waiting import until
from tests.support.world.hardware import FakeAdapter, card, with_cards
from tests.support.world.pods import D, H, U, registration
from tests.support.world.world import SETTINGS, World

RANKS = 16
"""Of every instance, on two pods."""
EVENTS = 200
"""Of each kind in one turn."""
QUIET = replace(SETTINGS, heartbeat_interval=3600.0, heartbeat_ttl=36_000.0, strategy_center_check_interval=3600.0)


def fleet(sizes: Sequence[int], turns: int) -> Table:
    """Cost of one event in fleets of each size, and in how many of the first fleet's."""
    configure_logging(level="error")
    costs = asyncio.run(_measure(sizes, turns))
    table = Table(title=f"one of many instances fails, {RANKS} ranks each; the least of {turns} turns")
    table.add_column("with so many instances")
    for size in sizes:
        table.add_column(str(size), justify="right")
    table.add_column(f"{sizes[-1]} : {sizes[0]}", justify="right")
    for name, found in costs.items():
        least = [min(found[size]) for size in sizes]
        table.add_row(name, *(f"{value * 1e6:.0f} µs" for value in least), f"{least[-1] / least[0]:.2f}")
    return table


async def _measure(sizes: Sequence[int], turns: int) -> dict[str, dict[int, list[float]]]:
    """Seconds by kind of event and size of the fleet."""
    costs: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    async with AsyncExitStack() as stack:
        fleets = {size: Fleet(await stack.enter_async_context(_world(size))) for size in sizes}
        for size, each in fleets.items():
            await each.start(size)
        gc.collect()
        gc.freeze()  # as the daemons do
        for turn in range(turns):
            for size, each in fleets.items():
                for name, event in each.events.items():
                    costs[name][size].append(await _cpu(event))
                if (dead := turn + 1) < RANKS - 1:
                    costs["evidence complete -> apply at every survivor"][size].append(await each.recover(dead))
    return costs


class Fleet:
    """Instances of one Controller, and what happens to the first of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._adapter = FakeAdapter(world)
        self._pods = (world.pod(1), world.pod(2))
        self.events: dict[str, Callable[[int], Awaitable[None]]] = {
            "engine fault on a stream, CPU": self._stream,
            "engine fault by REST, CPU": self._unary,
            "hardware fault, CPU": self._hardware,
        }

    async def start(self, size: int) -> None:
        """All serve, and their hardware is well."""
        await self._world.connect()
        await until(lambda: all(self._world.can_serve(number + 1) for number in range(size)), timeout=600)
        await self._adapter.connect()

    async def _stream(self, number: int) -> None:
        await self._pods[0].see(0, H if number % 2 else U)

    async def _unary(self, number: int) -> None:
        engine = self._pods[0].engines[0]
        engine.status = H if number % 2 else U
        await self._world.manager.report_software_fault(SoftwareFault(None, "10.0.0.1", 9000, 0, engine.read()))

    async def _hardware(self, number: int) -> None:
        await self._adapter.tell(card(0, 1, level=FaultLevel.L3 if number % 2 else FaultLevel.L1))

    async def recover(self, dead: int) -> float:
        """One more rank dies; seconds from the last evidence to the apply at every survivor."""
        engines = self._pods[0].engines | self._pods[1].engines
        survivors = [engines[0], *(engines[rank] for rank in range(dead + 1, RANKS))]
        for rank in range(dead, RANKS):
            await self._pods[rank * 2 // RANKS].see(rank, D if rank == dead else U)
        start = time.perf_counter()
        await self._pods[0].see(0, U)
        await until(lambda: all(len(engine.applies) == dead for engine in survivors), every=0)
        seconds = time.perf_counter() - start
        await until(lambda: self._world.can_serve(1))
        return seconds


async def _cpu(event: Callable[[int], Awaitable[None]]) -> float:
    """CPU seconds for one event, and all that the Controller does because of it."""
    start = time.process_time()
    for number in range(EVENTS):
        await event(number)
        for _ in range(3):  # in which the instance wakes up, decides and shows itself
            await asyncio.sleep(0)
    return (time.process_time() - start) / EVENTS


def _world(size: int) -> World:
    return World(*(pod for number in range(size) for pod in _registrations(number)), settings=QUIET)


def _registrations(number: int) -> list[Registration]:
    half = RANKS // 2
    ranks = (range(half), range(half, RANKS))
    return [
        with_cards(registration(2 * number + pod + 1, ranks[pod], job=f"job-{number}", dp_size=RANKS)) for pod in (0, 1)
    ]
