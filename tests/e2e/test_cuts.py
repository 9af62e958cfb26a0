"""Row 24: one connection is cut in one direction while a scale-down is at one step. All pairs of link and phase, and of
phase and direction, but not every combination; those are the simulator's.

The Controller stops itself at the step, the connection is cut, and it goes on. What comes of it is bounded: the
survivors serve, or the instance is rebuilt once the cut is over. Cuts follow each other as in ``test_kill_controller``.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from motor_ft.v1 import controller_pb2 as pb
from tests.e2e.checks import completions_work, rebuilt, reconfiguring, scaled_down
from tests.e2e.conftest import Start
from tests.e2e.test_kill_controller import POINTS
from tests.support.cluster import SCALED, Cluster, Shape
from tests.support.cut_proxy import BOTH, CutProxy, Direction, Mode
from tests.support.engine import FakeGroup
from tests.support.etcd import Etcd

DECIDING = "after Persist DECIDING 1"
READY = "after Query 2"
SCALING_DOWN = "after Persist SCALING_DOWN 1"
APPLIED = "after Apply 2"
RENEWED = "after Guard 6"
COMMITTED = "after Persist POST_SCALE_CLEANUP 1"
UP: list[Direction] = ["up"]
DOWN: list[Direction] = ["down"]
pytestmark = pytest.mark.timeout(300)  # of a chain, on a machine that has a lot to do


@dataclass(frozen=True, slots=True)
class Cut:
    """``rebuilds``: nothing else can come of it; None: what comes first decides."""

    point: str
    directions: Iterable[Direction] = BOTH
    mode: Mode = "blackhole"
    rebuilds: bool | None = None


CUTS: dict[str, list[Cut]] = {
    # of the pod that has the lowest survivor
    "commands": [
        Cut(DECIDING, UP, rebuilds=True),
        Cut(READY, BOTH, "reset", rebuilds=True),
        Cut(SCALING_DOWN, DOWN, rebuilds=True),
        Cut(APPLIED, UP, rebuilds=True),
        Cut(RENEWED, DOWN),
    ],
    "reports": [
        Cut(DECIDING, DOWN, rebuilds=False),
        Cut(SCALING_DOWN, UP, rebuilds=False),
        Cut(APPLIED, BOTH, "reset", rebuilds=False),
        Cut(COMMITTED, UP, rebuilds=False),
    ],
    "coordinator": [
        Cut(READY, UP, rebuilds=True),
        Cut(APPLIED, DOWN, rebuilds=False),
        Cut(COMMITTED, BOTH, "reset", rebuilds=False),
    ],
    # of rank 2, a survivor
    "engine": [
        Cut(DECIDING, DOWN, rebuilds=True),
        Cut(SCALING_DOWN, UP, rebuilds=True),
        Cut(APPLIED, BOTH, "reset"),
    ],
    "etcd": [
        Cut(DECIDING, UP, rebuilds=True),
        Cut(APPLIED, BOTH, "reset", rebuilds=True),
        Cut(COMMITTED, DOWN, rebuilds=False),
    ],
}


@pytest.mark.parametrize("link", CUTS)
async def test_row_24_a_cut_connection_has_a_bounded_outcome(start: Start, etcd: Etcd, link: str) -> None:
    """Never stuck, nobody told twice; a Controller that is cut from etcd gives up its lead."""
    async with FakeGroup(dp_size=3) as group, proxies(group, etcd) as (to_engine, to_etcd):
        urls = [group.url(rank) for rank in range(3)]
        shape = Shape(
            ((0,), (1, 2)),
            urls=(*urls[:2], f"http://{to_engine.address}"),
            group=group,
            etcd=(to_etcd.address,) if link == "etcd" else (),
            proxied_pods=(0,),
            proxied_reports=(0,),
            proxied_coordinator=True,
            controller_module="tests.support.killed.controller",
            fault_tolerance={**SCALED, "engine_poll_interval_sec": 0.5},
        )
        async with start(shape) as (cluster, _):
            between = {
                "commands": cluster.proxies[0],
                "reports": cluster.report_proxies[0],
                "coordinator": cluster.coordinator_proxy,
                "engine": to_engine,
                "etcd": to_etcd,
            }[link]
            assert between is not None
            for cut in CUTS[link]:
                assert cut.point in POINTS
                await survives(cluster, group, between, cut)
            await completions_work(cluster)


@asynccontextmanager
async def proxies(group: FakeGroup, etcd: Etcd) -> AsyncIterator[tuple[CutProxy, CutProxy]]:
    """In front of the engine of rank 2, and of etcd."""
    ports = (group.port(2), etcd.nodes[0].client_port)
    async with AsyncExitStack() as stack:
        engine, store = [await stack.enter_async_context(CutProxy("127.0.0.1", port)) for port in ports]
        yield engine, store


async def survives(cluster: Cluster, group: FakeGroup, between: CutProxy, cut: Cut) -> None:
    """From an instance that serves to the next one."""
    old = await cluster.serving()
    before = len(await cluster.applies())
    cluster.signal_at(cut.point, signal.SIGSTOP)
    await cluster.inject("worker_kill", 1)
    await cluster.stopped(0)
    between.cut(cut.directions, cut.mode)
    controller = cluster.controllers[0]
    controller.signal(signal.SIGCONT)
    if cluster.shape.etcd:
        assert await controller.wait() == 1
        assert "NOT_LEADER" in controller.output[-1]
        between.heal()
        await cluster.start_controller()
    ended = await cluster.until(
        lambda i: (
            i.instance_id == old.instance_id and i.phase in {pb.PHASE_RECONFIGURING, pb.PHASE_SCALED_DOWN_RUNNING}
        ),
        "has an outcome",
    )
    between.heal()
    fell_back = ended.phase == pb.PHASE_RECONFIGURING
    assert cut.rebuilds in {None, fell_back}, f"{cut}: {ended.last_error}"
    if not fell_back:
        await scaled_down(cluster, [1])
        for rank in (0, 2):
            await cluster.inject("worker_kill", rank)
        await reconfiguring(cluster, old)
    await group.rebuild()
    await rebuilt(cluster, old)
    told = Counter(apply["rank"] for apply in (await cluster.applies())[before:])
    assert told <= Counter({0: 1, 2: 1}), str(cut)
    if not fell_back:
        assert told == Counter({0: 1, 2: 1}), str(cut)
