"""The fake engine as real processes: signals have the effect that engine-contract.md section 2 gives them."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import psutil
import pytest

from tests.support.engine import FAST
from tests.support.engine.client import EngineClient
from tests.support.ports import free_port, free_ports
from tests.support.processes import Running, alive, python_module
from tests.support.waiting import until

SIZE = 3


class Cluster:
    """One group process and its engine processes."""

    def __init__(self, stack: AsyncExitStack, client: EngineClient) -> None:
        self._stack = stack
        self._ports = free_ports(SIZE)
        self.client = client
        self.engines: dict[int, Running] = {}
        self.group_url = ""

    def url(self, rank: int) -> str:
        return f"http://127.0.0.1:{self._ports[rank]}"

    async def start_group(self) -> None:
        command = python_module("tests.support.engine.group_server", f"--dp-size={SIZE}", *FAST.flags())
        self.group = await self._stack.enter_async_context(Running(command, name="group"))
        self.group_url = (await self.group.line(r"READY group=(\S+)"))[1]

    async def launch(self, rank: int, *flags: str) -> Running:
        address = self.group_url.removeprefix("http://")
        shape = (f"--group={address}", f"--dp-size={SIZE}", f"--rank={rank}", f"--port={self._ports[rank]}")
        command = python_module("tests.support.engine", *shape, *flags)
        engine = await self._stack.enter_async_context(Running(command, name=f"engine {rank}"))
        self.engines[rank] = engine
        return engine

    async def launch_all(self) -> None:
        for rank in range(SIZE):
            await self.launch(rank)
        for engine in self.engines.values():
            await engine.line("^READY rank=")

    def child(self, rank: int, title: str) -> psutil.Process:
        """The child process of an engine with this title."""
        children = psutil.Process(self.engines[rank].pid).children()
        return next(child for child in children if child.cmdline() == [f"VLLM::{title}_DP{rank}"])

    async def status(self, rank: int) -> str:
        return str((await self.client.status(self.url(rank)))["status"])

    async def all(self, status: str, *ranks: int) -> None:
        async def reached() -> bool:
            return [await self.status(rank) for rank in ranks] == [status] * len(ranks)

        await until(reached)

    async def scale_down(self, request_id: str, survivors: list[int], removed: list[int]) -> None:
        address = {"dp_master_ip": "127.0.0.1", "dp_store_port": free_port()}
        for rank in survivors:
            code, _ = await self.client.apply(
                self.url(rank), "scale_down", request_id, removed_dp_ranks=removed, **address
            )
            assert code == 202


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        cluster = Cluster(stack, await stack.enter_async_context(EngineClient()))
        await cluster.start_group()
        yield cluster


async def test_survivors_notice_a_killed_process_and_scale_down_twice(cluster: Cluster) -> None:
    """The master goes twice: rank 0 by SIGKILL of its process, rank 1 by SIGKILL of its worker."""
    await cluster.launch_all()
    victims = psutil.Process(cluster.engines[0].pid).children()
    await cluster.engines[0].kill()
    await until(lambda: not any(alive(victim.pid) for victim in victims))
    await cluster.all("unhealthy", 1, 2)
    await cluster.scale_down("a", [1, 2], [0])
    await cluster.all("healthy", 1, 2)

    cluster.child(1, "Worker").kill()
    await cluster.all("dead", 1)
    await cluster.all("unhealthy", 2)
    await cluster.scale_down("b", [2], [0, 1])
    await cluster.all("healthy", 2)
    assert (await cluster.client.complete(cluster.url(2)))[0] == 200
    log = (await cluster.client.call("GET", f"{cluster.group_url}/_fake/log"))[1]
    assert [(apply["rank"], apply["body"]["request_id"]) for apply in log["applies"]] == [
        (1, "a"),
        (2, "a"),
        (2, "b"),
    ]


async def test_a_killed_engine_core_leaves_its_status_until_the_watchdog_ends_the_server(
    cluster: Cluster,
) -> None:
    await cluster.launch_all()
    worker = cluster.child(1, "Worker")
    cluster.child(1, "EngineCore").kill()
    await cluster.all("unhealthy", 0, 2)
    assert await cluster.engines[1].wait() == 1
    assert not alive(worker.pid)


async def test_an_engine_restarted_alone_waits_for_the_rest_unless_told_otherwise(cluster: Cluster) -> None:
    await cluster.launch_all()
    await cluster.engines[2].kill()
    await cluster.all("unhealthy", 0, 1)
    lonely = await cluster.launch(2, "--alone")
    await lonely.line("READY")
    assert await cluster.status(2) == "healthy"
    for rank in (0, 1):
        await cluster.engines[rank].stop()
        await cluster.launch(rank)
    for rank in (0, 1):
        await cluster.engines[rank].line("READY")
    await cluster.all("healthy", 0, 1, 2)


async def test_a_stopped_process_is_noticed_and_its_requests_hang(cluster: Cluster) -> None:
    await cluster.launch_all()
    cluster.engines[2].signal(signal.SIGSTOP)
    hanging = asyncio.create_task(cluster.client.complete(cluster.url(2)))
    await cluster.all("unhealthy", 0, 1)
    assert not hanging.done()
    cluster.engines[2].signal(signal.SIGCONT)
    assert (await hanging)[0] in (200, 503)
    await cluster.all("unhealthy", 2)


async def test_a_stopped_engine_core_keeps_its_healthy_status(cluster: Cluster) -> None:
    await cluster.launch_all()
    cluster.child(2, "EngineCore").suspend()
    await cluster.all("unhealthy", 0, 1)
    assert await cluster.status(2) == "healthy"


async def test_a_rebuilt_group_forms_again_with_new_identities_after_a_clean_end(cluster: Cluster) -> None:
    await cluster.launch_all()
    first = await cluster.engines[0].line(r"incarnation=(\w+)")
    children = psutil.Process(cluster.engines[0].pid).children()
    assert {child.cmdline()[0] for child in children} == {"VLLM::EngineCore_DP0", "VLLM::Worker_DP0"}
    assert [await engine.stop() for engine in cluster.engines.values()] == [0, 0, 0]
    assert not any(alive(child.pid) for child in children)

    await cluster.launch_all()
    await cluster.all("healthy", 0, 1, 2)
    second = await cluster.engines[0].line(r"incarnation=(\w+)")
    assert first[1] != second[1]
    state = (await cluster.client.call("GET", f"{cluster.group_url}/_fake/state"))[1]
    assert state["generation"] == 2


async def test_injections_reach_real_children_and_a_lost_group_ends_its_engines(cluster: Cluster) -> None:
    await cluster.launch_all()
    worker = cluster.child(1, "Worker")
    inject = f"{cluster.group_url}/_fake/inject"
    assert await cluster.client.call("POST", inject, json={"name": "worker_kill", "rank": 1}) == (200, {})
    await cluster.all("dead", 1)
    assert not alive(worker.pid)
    assert (await cluster.client.call("POST", inject, json={"name": "restart", "rank": 1}))[0] == 400

    await cluster.group.kill()
    assert await cluster.engines[0].wait() == 2
    await cluster.engines[0].line("fake engine rank 0: lost the group at 127")


async def test_an_engine_that_cannot_start_says_why(cluster: Cluster) -> None:
    complaints = {
        "--dp-size=9": "the group has dp_size 3, the engine 9",
        "--dialect=vllm_0_33": "the group has dialect vllm_v1, the engine vllm_0_33",
        "--rank=7": "the group has ranks 0 to 2, the engine is rank 7",
        "--group=127.0.0.1:1": "no group at 127.0.0.1:1: ",
        "--host=203.0.113.1": "cannot listen on 203.0.113.1:",
    }
    engines = {complaint: await cluster.launch(0, flag, "--port=0") for flag, complaint in complaints.items()}
    for complaint, engine in engines.items():
        await engine.line(complaint)
        assert await engine.wait() == 2
