"""A small NodeManager for the tests of the wire layer: real server, real ledger rules, behaviour chosen by the test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from motor_ft.model.command import Command
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import common_pb2, node_manager_pb2, node_manager_pb2_grpc
from motor_ft.wire.authorizer import Authorizer
from motor_ft.wire.channel import open_channel
from motor_ft.wire.metrics import RpcMetrics
from motor_ft.wire.policy import POLICIES, Lease, PolicyTable
from motor_ft.wire.server import RpcServer
from motor_ft.wire.tls import TlsConfig
from tests.support.waiting import until

SERVICE = "motor_ft.v1.NodeManagerService"
TIMEOUT = 10.0
Context = grpc.aio.ServicerContext[Any, Any]

PLAIN = TlsConfig()


class Ledger:
    """Keeps the contract of CommandLedger in memory; ``asked`` says what was asked of it, in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.epoch = 0
        self.refuse_lease: FtError | None = None
        self._calls: dict[str, tuple[bytes, asyncio.Future[bytes | None]]] = {}

    def fence(self, command: Command) -> None:
        self.asked.append("fence")
        if (command.epoch or 0) < self.epoch:
            raise FtError(Reason.STALE_EPOCH, "old epoch", got=command.epoch or 0, current=self.epoch)
        self.epoch = command.epoch or 0

    async def replay(self, method: str, command: Command, payload: bytes) -> bytes | None:
        self.asked.append("replay")
        while command.request_id in self._calls:
            first, answer = self._calls[command.request_id]
            if first != payload:
                raise FtError(Reason.REQUEST_ID_REUSED, "same id, other payload")
            if (response := await answer) is not None:
                return response
        self._calls[command.request_id] = payload, asyncio.get_running_loop().create_future()
        return None

    async def answered(self, method: str, command: Command, payload: bytes, response: bytes) -> None:
        self.asked.append("answered")
        self._calls[command.request_id][1].set_result(response)

    def failed(self, method: str, command: Command, payload: bytes) -> None:
        self.asked.append("failed")
        self._calls.pop(command.request_id)[1].set_result(None)

    def lease(self, policy: Lease, command: Command, plan_hash: str) -> None:
        self.asked.append(f"lease {policy.name} {plan_hash}".strip())
        if self.refuse_lease is not None:
            raise self.refuse_lease


async def nothing(_context: Context) -> None:
    """Do what a servicer does at once."""


async def _one(_context: Context) -> AsyncIterator[None]:
    yield None


class Servicer(node_manager_pb2_grpc.NodeManagerServiceServicer):
    """Does what the test says; every unary method goes through ``act``, the stream through ``watch``."""

    def __init__(self, ledger: Ledger) -> None:
        self.asked = ledger.asked
        self.act: Callable[[Context], Awaitable[None]] = nothing
        self.watch: Callable[[Context], AsyncIterator[None]] = _one

    async def Guard(self, request: node_manager_pb2.GuardRequest, context: Context) -> node_manager_pb2.GuardResponse:
        self.asked.append("guard")
        await self.act(context)
        return node_manager_pb2.GuardResponse(dp_store_port=self.asked.count("guard"))

    async def Status(
        self, request: node_manager_pb2.StatusRequest, context: Context
    ) -> node_manager_pb2.StatusResponse:
        await self.act(context)
        return node_manager_pb2.StatusResponse()

    async def Apply(self, request: node_manager_pb2.ApplyRequest, context: Context) -> node_manager_pb2.ApplyResponse:
        self.asked.append("apply")
        await self.act(context)
        outcome = common_pb2.RankOutcome(observation=self.asked.count("apply"))
        return node_manager_pb2.ApplyResponse(outcomes=[outcome])

    async def Finalize(
        self, request: node_manager_pb2.FinalizeRequest, context: Context
    ) -> node_manager_pb2.FinalizeResponse:
        await self.act(context)
        return node_manager_pb2.FinalizeResponse()

    async def WatchStatus(
        self, request: node_manager_pb2.WatchStatusRequest, context: Context
    ) -> AsyncIterator[node_manager_pb2.WatchStatusResponse]:
        async for _ in self.watch(context):
            yield node_manager_pb2.WatchStatusResponse()

    async def Probe(self, request: node_manager_pb2.ProbeRequest, context: Context) -> node_manager_pb2.ProbeResponse:
        await self.act(context)
        return node_manager_pb2.ProbeResponse()


@dataclass(frozen=True)
class Served:
    """Everything of one running server."""

    server: RpcServer
    servicer: Servicer
    ledger: Ledger
    registry: CollectorRegistry
    address: str
    stub: "node_manager_pb2_grpc.NodeManagerServiceAsyncStub"

    def count(self, metric: str, **labels: str) -> float:
        """Return the value of a counter."""
        return self.registry.get_sample_value(metric, labels) or 0.0

    async def counts(self, wanted: float, metric: str, **labels: str) -> None:
        """Wait for the value of a counter: a client hears the end of its call before the server has counted it."""
        await until(lambda: self.count(metric, **labels) == wanted)


@asynccontextmanager
async def serving(
    *,
    policies: PolicyTable = POLICIES,
    authorizer: Authorizer | None = None,
    token: str = "",
    listen: str = "127.0.0.1:0",
    tls: TlsConfig = PLAIN,
) -> AsyncIterator[Served]:
    """Serve a NodeManagerService and open a channel to it."""
    ledger, registry = Ledger(), CollectorRegistry()
    servicer = Servicer(ledger)
    server = RpcServer(
        name="test",
        listen=listen,
        metrics=RpcMetrics(registry),
        policies=policies,
        commands=ledger,
        authorizer=authorizer,
        credentials=tls.server(),
        client_certificates=tls.client_certificates,
    )
    server.add(SERVICE, node_manager_pb2_grpc.add_NodeManagerServiceServicer_to_server, servicer)
    port = await server.start()
    address = listen if listen.startswith("unix:") else f"127.0.0.1:{port}"
    try:
        async with open_channel(address, peer="node manager", token=token) as channel:
            stub = node_manager_pb2_grpc.NodeManagerServiceStub(channel)
            yield Served(server, servicer, ledger, registry, address, stub)
    finally:
        await server.stop(0)


def header(request_id: str = "r1", epoch: int = 1) -> common_pb2.CommandHeader:
    """Return the header of a valid command."""
    return common_pb2.CommandHeader(instance_id=7, request_id=request_id, controller_epoch=epoch, generation=1)


def guard(request_id: str = "r1", epoch: int = 1) -> node_manager_pb2.GuardRequest:
    """Return a valid Guard."""
    return node_manager_pb2.GuardRequest(header=header(request_id, epoch))


def apply(request_id: str = "r1", epoch: int = 1, port: int = 1) -> node_manager_pb2.ApplyRequest:
    """Return a valid Apply; another ``port`` makes another payload."""
    return node_manager_pb2.ApplyRequest(header=header(request_id, epoch), plan_hash="hash", dp_store_port=port)
