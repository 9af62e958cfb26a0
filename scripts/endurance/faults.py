"""What is done to one instance. Everything that is not a death is taken back again, a little later."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import psutil

from tests.support.cluster import Deployment
from tests.support.cluster.hardware import Hardware
from tests.support.cut_proxy import CutProxy, Direction


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fault happens: a deployment and those of its ranks that serve. ``random`` makes every choice."""

    deployment: Deployment
    hardware: Hardware
    alive: tuple[int, ...]
    random: random.Random

    def rank(self) -> int:
        """Any rank that serves."""
        return self.random.choice(self.alive)

    async def wait(self, least: float, most: float) -> None:
        """Some seconds."""
        await asyncio.sleep(self.random.uniform(least, most))

    def pod_of(self, rank: int) -> int:
        """Number of the pod, which is also that of its node."""
        return next(number for number, ranks in enumerate(self.deployment.shape.pods) if rank in ranks)


Fault = Callable[[Place], Awaitable[frozenset[int]]]
"""Returns the ranks that are dead now, for certain: an instance must not serve with them any more."""


async def worker_killed(place: Place) -> frozenset[int]:
    """A worker process dies."""
    await place.deployment.inject("worker_kill", rank := place.rank())
    return frozenset({rank})


async def core_killed(place: Place) -> frozenset[int]:
    """EngineCore dies, and its API server a little later."""
    await place.deployment.inject("engine_kill", rank := place.rank())
    return frozenset({rank})


async def engine_killed(place: Place) -> frozenset[int]:
    """SIGKILL to the engine's main process."""
    place.deployment.kill_engine(rank := place.rank())
    return frozenset({rank})


async def two_die(place: Place) -> frozenset[int]:
    """The second one at any moment of the recovery from the first one."""
    ranks = place.random.sample(place.alive, min(2, len(place.alive)))
    for rank in ranks:
        await place.deployment.inject("worker_kill", rank)
        await place.wait(0.0, 1.5)
    return frozenset(ranks)


async def steps_fail(place: Place) -> frozenset[int]:
    """Some engines raise, so that all become UNHEALTHY and nobody is dead."""
    for rank in place.random.sample(place.alive, place.random.randint(1, len(place.alive))):
        await place.deployment.inject("step_exception", rank)
    return frozenset()


async def core_hangs(place: Place) -> frozenset[int]:
    """EngineCore takes no part in collectives for a while; its API server answers."""
    await place.deployment.inject("freeze", rank := place.rank())
    await place.wait(0.2, 3.0)
    await place.deployment.inject("unfreeze", rank)
    return frozenset()


async def engine_hangs(place: Place) -> frozenset[int]:
    """SIGSTOP and SIGCONT to the engine's main process."""
    process = place.deployment.engine_process(rank := place.rank())
    place.deployment.site.note("SIGSTOP engine", rank)
    process.suspend()
    await place.wait(0.2, 3.0)
    with suppress(psutil.NoSuchProcess):
        process.resume()
    return frozenset()


async def engine_deaf(place: Place) -> frozenset[int]:
    """Its port refuses connections for a while: DEAD that is withdrawn when it heals in time."""
    await place.deployment.inject("frontend_kill", rank := place.rank())
    await place.wait(0.1, 2.0)
    await place.deployment.inject("frontend_restore", rank)
    return frozenset()


APPLY_FAILURES = (
    "vote_failure",
    "drop_after_202",
    "drop_before_reply",
    "apply_error",
    "completions_fail",
    "non_json",
    "insufficient_redundancy",
)


async def apply_fails(place: Place) -> frozenset[int]:
    """A rank dies, and a survivor does not do what it is told."""
    dead, *others = place.random.sample(place.alive, len(place.alive))
    if others:
        await place.deployment.inject(place.random.choice(APPLY_FAILURES), others[0])
    await place.deployment.inject("worker_kill", dead)
    return frozenset({dead})


@asynccontextmanager
async def broken_card(place: Place, rank: int) -> AsyncIterator[None]:
    """The rank's card is reported as broken meanwhile."""
    card, node = f"Ascend910-{place.deployment.shape.first_card + rank}", place.pod_of(rank)
    place.hardware.breaks(card, node=node)
    try:
        yield
    finally:
        place.hardware.heals(card, node=node)


async def card_breaks(place: Place) -> frozenset[int]:
    """Hardware that the engines do not notice, for shorter or longer than they are waited for."""
    async with broken_card(place, place.rank()):
        await place.wait(0.2, 5.0)
    return frozenset()


async def card_breaks_then_rank_dies(place: Place) -> frozenset[int]:
    """Hardware first; it may clear while the engines recover."""
    rank = place.rank()
    async with broken_card(place, rank):
        await place.wait(0.0, 3.0)
        await place.deployment.inject("worker_kill", rank)
        await place.wait(0.2, 3.0)
    return frozenset({rank})


async def rank_dies_then_card_breaks(place: Place) -> frozenset[int]:
    """Software first."""
    await place.deployment.inject("worker_kill", rank := place.rank())
    await place.wait(0.0, 1.0)
    async with broken_card(place, rank):
        await place.wait(0.2, 3.0)
    return frozenset({rank})


async def node_manager_killed(place: Place) -> frozenset[int]:
    """SIGKILL: the pod and its engines go with it, and a new pod comes."""
    number = place.random.randrange(len(place.deployment.pods))
    place.deployment.site.note("SIGKILL NodeManager", None, pod=number)
    with suppress(ProcessLookupError):
        os.kill(place.deployment.pods[number].pid, signal.SIGKILL)
    return frozenset()


async def node_manager_hangs(place: Place) -> frozenset[int]:
    """SIGSTOP and SIGCONT: its engines go on, and are neither read nor reported meanwhile."""
    pod = psutil.Process(place.random.choice(place.deployment.pods).pid)
    place.deployment.site.note("SIGSTOP NodeManager", None, pid=pod.pid)
    await place.deployment.inject("worker_kill", rank := place.rank())
    pod.suspend()
    await place.wait(0.2, 7.0)
    with suppress(psutil.NoSuchProcess):
        pod.resume()
    return frozenset({rank})


async def commands_cut(place: Place) -> frozenset[int]:
    """A rank dies, and the Controller does not reach a NodeManager for a while."""
    await place.deployment.inject("worker_kill", rank := place.rank())
    await _cut(place, place.deployment.proxies)
    return frozenset({rank})


async def reports_cut(place: Place) -> frozenset[int]:
    """A rank dies, and a NodeManager does not reach the Controller for a while."""
    await place.deployment.inject("worker_kill", rank := place.rank())
    await _cut(place, place.deployment.report_proxies)
    return frozenset({rank})


async def _cut(place: Place, proxies: dict[int, CutProxy]) -> None:
    proxy = proxies[place.random.randrange(len(proxies))]
    await place.wait(0.0, 0.5)
    directions: list[Direction] = place.random.choice([["up"], ["down"], ["up", "down"]])
    proxy.cut(directions, place.random.choice(["blackhole", "reset"]))
    try:
        await place.wait(0.2, 2.5)
    finally:
        proxy.heal()


FAULTS: dict[Fault, int] = {
    worker_killed: 4,
    core_killed: 2,
    engine_killed: 2,
    two_die: 4,
    steps_fail: 2,
    core_hangs: 2,
    engine_hangs: 2,
    engine_deaf: 2,
    apply_fails: 2,
    card_breaks: 1,
    card_breaks_then_rank_dies: 2,
    rank_dies_then_card_breaks: 2,
    node_manager_killed: 1,
    node_manager_hangs: 2,
    commands_cut: 2,
    reports_cut: 2,
}
"""How often each one is chosen, in comparison with the others."""

SPARING: dict[Fault, int] = {steps_fail: 1}
"""Those after which the same processes go on, as long as they are recovered from."""


def name(fault: Fault) -> str:
    """For people."""
    return getattr(fault, "__name__", "").replace("_", " ").strip()
