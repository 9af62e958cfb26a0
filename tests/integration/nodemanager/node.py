"""A NodeManager of real parts on a real server, with a scripted gateway behind it."""

import asyncio
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path

from prometheus_client import CollectorRegistry

from motor_ft.model.command import Command, ScaleDownPlan, freeze_plan
from motor_ft.model.topology import Endpoint
from motor_ft.v1 import common_pb2, node_lifecycle_pb2_grpc, node_manager_pb2, node_manager_pb2_grpc
from motor_ft.wire.backoff import Backoff
from motor_ft.wire.channel import call, open_channel
from motor_ft.wire.convert import command_to_header, duration_to_pb, plan_to_pb
from motor_ft.wire.metrics import RpcMetrics
from motor_ft.wire.policy import POLICIES
from motor_ft.wire.server import RpcServer
from motor_ft.wire.tasks import Tasks
from nodemanager.clock import SystemClock
from nodemanager.core.guard import BootTime
from nodemanager.core.health import DeathReport
from nodemanager.core.state import NodeState, started, welcomed
from nodemanager.engines import EngineClient
from nodemanager.journal import Journal
from nodemanager.metrics import NodeMetrics
from nodemanager.pod import Pod
from nodemanager.relaunch import Relaunch
from nodemanager.rpc.ledger import Ledger
from nodemanager.rpc.local import LocalNode
from nodemanager.rpc.node_lifecycle import NodeLifecycleServicer
from nodemanager.rpc.node_manager import NodeManagerServicer
from nodemanager.service import FtService
from nodemanager.store_port import StorePort
from nodemanager.suicide import SuicideWatch
from nodemanager.supervisor import EngineSpec, Supervisor
from nodemanager.watcher import Watcher
from tests.integration.nodemanager.gateway import ScriptedGateway, serve
from tests.support.ports import free_port

INSTANCE = 7
EPOCH = 5
DP_SIZE = 4
BASE_PORT = 40000
SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")


class TestClock(SystemClock):
    """The machine's clock, which a test can advance."""

    __test__ = False

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead

    def boot(self) -> BootTime:
        boot = super().boot()
        return BootTime(boot.boot_id, boot.seconds + self.ahead)


def command(request_id: str = "op", generation: int = 1, epoch: int = EPOCH) -> Command:
    return Command(INSTANCE, request_id, epoch, generation)


class Node:
    """One pod of an instance of four ranks; ``launched`` have a process, the others only an endpoint, 3 is headless."""

    def __init__(
        self,
        directory: Path,
        gateway: ScriptedGateway,
        ranks: Sequence[int],
        launched: Sequence[int],
        engine: Sequence[str] = SLEEP,
    ) -> None:
        self.gateway = gateway
        self.directory = directory
        self.ranks = ranks
        self.clock = TestClock()
        self.stops = asyncio.Event()
        self.first_port = free_port()
        self.deaths: list[DeathReport] = []
        self._launched = launched
        self._engine = tuple(engine)
        self._ids = count()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Node"]:
        """Start on what the directory holds; leaving it forgets everything that is not on disk."""
        async with AsyncExitStack() as stack:
            await self._start(stack)
            yield self

    async def _start(self, stack: AsyncExitStack) -> None:
        self.registry = CollectorRegistry()
        clock, metrics = self.clock, NodeMetrics(self.registry)
        self.journal = Journal(self.directory, metrics.journal)
        stack.push_async_callback(self.journal.close)
        await self.journal.update(started)
        endpoints = [Endpoint(rank, "127.0.0.1", 8000 + rank, headless=rank == 3) for rank in self.ranks]
        self.pod = Pod(endpoints, self.journal, clock, metrics=metrics)
        self.supervisor = Supervisor(
            [EngineSpec(rank, self._engine if rank in self._launched else ()) for rank in self.ranks],
            self.journal,
            clock,
            new_id=lambda: f"id{next(self._ids)}",
            on_death=self._died,
            log_dir=self.directory,
            pattern=re.compile("VLLM::"),
            stop_grace_sec=5.0,
        )
        stack.push_async_callback(lambda: self.supervisor.stop(adopted=False))
        await self.supervisor.start()
        # A path of a test may be longer than a socket's name may be.
        socket = stack.enter_context(tempfile.TemporaryDirectory(prefix="motor-ft-test-"))
        self.address = f"unix:{socket}/engine.sock"
        self._gateway_up = await stack.enter_async_context(AsyncExitStack())
        await self.gateway_up()
        engines = EngineClient(self.address)
        stack.push_async_callback(engines.close)
        store_port = StorePort(self.first_port, self.first_port)
        stack.callback(store_port.release)
        self.service = FtService(
            self.pod,
            self.journal,
            engines,
            self.supervisor,
            store_port,
            clock,
            metrics,
            dp_size=DP_SIZE,
            base_port=40000,
        )
        self.ledger = Ledger(self.journal, self.service, clock)
        self.local = LocalNode(self.service, self.ledger, self.journal)
        self.watcher = Watcher(self.pod, engines, self.supervisor, self.journal, Backoff(0.01, 0.05, 2.0, lambda: 0.0))
        self.suicide = SuicideWatch(self.pod, self.journal, clock, enabled=True, on_due=lambda: None)
        tasks = Tasks("node")
        stack.push_async_callback(tasks.close)
        self.relaunch = Relaunch(self.supervisor, self.watcher, self.suicide, self.pod, tasks)
        await self._serve(stack)

    async def _serve(self, stack: AsyncExitStack) -> None:
        server = RpcServer(
            name="test",
            listen="127.0.0.1:0",
            metrics=RpcMetrics(CollectorRegistry()),
            policies=POLICIES,
            commands=self.ledger,
        )
        servicer = NodeManagerServicer(self.service, self.pod, self.ledger)
        add = node_manager_pb2_grpc.add_NodeManagerServiceServicer_to_server
        server.add("motor_ft.v1.NodeManagerService", add, servicer)
        add_lifecycle = node_lifecycle_pb2_grpc.add_NodeLifecycleServiceServicer_to_server
        lifecycle = NodeLifecycleServicer(self.journal, self.pod, self.relaunch, self.stops.set)
        server.add("motor_ft.v1.NodeLifecycleService", add_lifecycle, lifecycle)
        stack.push_async_callback(lambda: server.stop(0.5))
        self.port = await server.start()
        channel = open_channel(f"127.0.0.1:{self.port}", peer="node")
        stack.push_async_callback(channel.close)
        self.stub = node_manager_pb2_grpc.NodeManagerServiceStub(channel)
        self.lifecycle = node_lifecycle_pb2_grpc.NodeLifecycleServiceStub(channel)

    async def gateway_up(self) -> None:
        await self._gateway_up.enter_async_context(serve(self.gateway, self.address))

    async def gateway_down(self) -> None:
        await self._gateway_up.aclose()

    async def join(self, instance_id: int = INSTANCE, epoch: int = EPOCH, *, on: bool = True) -> None:
        """What Welcome does."""
        await self.journal.update(lambda state: welcomed(state, instance_id, epoch, 0, scale_down_on=on))

    def _died(self, death: DeathReport) -> None:
        self.deaths.append(death)
        self.pod.died(death)

    @property
    def state(self) -> NodeState:
        return self.journal.state

    def incarnation(self, rank: int) -> str:
        return self.state.engines[rank].incarnation

    def kill_engine(self, rank: int) -> int:
        """SIGKILL, from outside."""
        pid = self.state.engines[rank].pid
        assert pid, "not launched"
        os.kill(pid, signal.SIGKILL)
        return pid

    def plan(self, removed: Sequence[int] = (1,), generation: int = 1) -> ScaleDownPlan:
        """The plan in which everybody else stays; ranks of other pods have made-up incarnations."""
        own = self.state.engines
        stay = {
            rank: own[rank].incarnation if rank in own else f"far{rank}"
            for rank in range(DP_SIZE)
            if rank not in removed
        }
        return freeze_plan(INSTANCE, generation, frozenset(removed), stay)

    async def guard(
        self, by: Command, lease: float | None = 60.0, plan: ScaleDownPlan | None = None
    ) -> node_manager_pb2.GuardResponse:
        request = node_manager_pb2.GuardRequest(
            header=command_to_header(by),
            lease=duration_to_pb(lease) if lease is not None else None,
            plan=plan_to_pb(plan) if plan else None,
        )
        return await call(self.stub.Guard, request, timeout=10)

    def apply_request(
        self, by: Command, plan: ScaleDownPlan, *ranks: int, port: int | None = None
    ) -> node_manager_pb2.ApplyRequest:
        return node_manager_pb2.ApplyRequest(
            header=command_to_header(by),
            instruction=common_pb2.INSTRUCTION_SCALE_DOWN,
            dp_ranks=ranks,
            removed_dp_ranks=plan.removed,
            dp_master_ip="127.0.0.1",
            dp_store_port=port,
            plan_hash=plan.plan_hash,
        )

    async def apply(self, request: node_manager_pb2.ApplyRequest) -> node_manager_pb2.ApplyResponse:
        return await call(self.stub.Apply, request, timeout=10)

    async def finalize(
        self, by: Command, *, commit: bool = True, retired: Sequence[int] = ()
    ) -> node_manager_pb2.FinalizeResponse:
        request = node_manager_pb2.FinalizeRequest(
            header=command_to_header(by), commit=commit, retired_dp_ranks=retired
        )
        return await call(self.stub.Finalize, request, timeout=10)

    async def status(self, by: Command, *ranks: int) -> node_manager_pb2.StatusResponse:
        request = node_manager_pb2.StatusRequest(header=command_to_header(by), dp_ranks=ranks)
        return await call(self.stub.Status, request, timeout=10)

    async def probe(self, by: Command, *ranks: int, timeout: float = 5.0) -> node_manager_pb2.ProbeResponse:
        request = node_manager_pb2.ProbeRequest(
            header=command_to_header(by), dp_ranks=ranks, timeout=duration_to_pb(timeout)
        )
        return await call(self.stub.Probe, request, timeout=10)
