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
from dataclasses import replace
from functools import partial

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
EVENTS = 1_000
ROUNDS = 5
QUIET = replace(SETTINGS, heartbeat_interval=3600.0, heartbeat_ttl=36_000.0, strategy_center_check_interval=3600.0)
Costs = dict[str, list[float]]


def fleet(sizes: Sequence[int], turns: int) -> Table:
    """Cost of one event in fleets of each size, and in how many of the first fleet's."""
    configure_logging(level="error")
    costs: dict[int, Costs] = {size: defaultdict(list) for size in sizes}
    for _ in range(turns):
        for size in sizes:
            asyncio.run(_measure(size, costs[size]))
    table = Table(title=f"one of many instances fails, {RANKS} ranks each; the least of {turns} turns")
    table.add_column("with so many instances")
    for size in sizes:
        table.add_column(str(size), justify="right")
    table.add_column(f"{sizes[-1]} : {sizes[0]}", justify="right")
    for name in costs[sizes[0]]:
        least = [min(costs[size][name]) for size in sizes]
        table.add_row(name, *(f"{value * 1e6:.0f} µs" for value in least), f"{least[-1] / least[0]:.2f}")
    return table


async def _measure(size: int, costs: Costs) -> None:
    async with World(*(pod for number in range(size) for pod in _pods(number)), settings=QUIET) as world:
        await world.connect()
        await world.until(lambda: all(world.can_serve(number + 1) for number in range(size)))
        adapter = FakeAdapter(world)
        await adapter.connect()
        gc.collect()
        gc.freeze()  # as the daemons do
        pod = world.pod(1)

        async def stream(number: int) -> None:
            await pod.see(0, H if number % 2 else U)

        async def unary(number: int) -> None:
            pod.engines[0].status = H if number % 2 else U
            fault = SoftwareFault(None, pod.registration.pod_ip, 9000, 0, pod.engines[0].read())
            await world.manager.report_software_fault(fault)

        async def hardware(number: int) -> None:
            await adapter.tell(card(0, 1, level=FaultLevel.L3 if number % 2 else FaultLevel.L1))

        costs["engine fault on a stream, CPU"].append(await _cpu(stream))
        costs["engine fault by REST, CPU"].append(await _cpu(unary))
        costs["hardware fault, CPU"].append(await _cpu(hardware))
        costs["evidence complete -> apply at every survivor"].append(await _recover(world))


async def _cpu(event: Callable[[int], Awaitable[None]]) -> float:
    """CPU seconds for one event, and all that the Controller does because of it."""
    start = time.process_time()
    for number in range(EVENTS):
        await event(number)
        for _ in range(3):  # in which the instance wakes up, decides and shows itself
            await asyncio.sleep(0)
    return (time.process_time() - start) / EVENTS


async def _recover(world: World) -> float:
    """Least seconds of some recoveries of the first instance, of one rank each."""
    engines = world.pod(1).engines | world.pod(2).engines
    times: list[float] = []

    def applied(dead: int) -> bool:
        return all(len(engine.applies) == dead for rank, engine in engines.items() if not 1 <= rank <= dead)

    for dead in range(1, ROUNDS + 1):
        for rank in range(dead, RANKS):
            await world.pod(1 if rank < RANKS // 2 else 2).see(rank, D if rank == dead else U)
        start = time.perf_counter()
        await world.pod(1).see(0, U)
        await until(partial(applied, dead), every=0)
        times.append(time.perf_counter() - start)
        await until(lambda: world.can_serve(1))
    return min(times)


def _pods(number: int) -> list[Registration]:
    half = RANKS // 2
    ranks = (range(half), range(half, RANKS))
    return [
        with_cards(registration(2 * number + pod + 1, ranks[pod], job=f"job-{number}", dp_size=RANKS)) for pod in (0, 1)
    ]
