"""Composition root: the only place where the NodeManager's parts are built, in start and stop order."""

import asyncio
import os
import random
import re
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

from prometheus_client import CollectorRegistry

from gateway.app import ENGINE_SERVICE, build_engine_service
from gateway.config import EngineAddress, EngineGatewayConfig
from gateway.engines.hub import Admit
from gateway.metrics import RestMetrics
from gateway.rest.node_manager import node_manager_routes
from gateway.rest.server import RestServer
from motor_ft.model.command import Command
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import Registration
from motor_ft.v1 import engine_pb2_grpc, node_lifecycle_pb2_grpc, node_manager_pb2_grpc
from motor_ft.wire.authorizer import read_token
from motor_ft.wire.backoff import Backoff
from motor_ft.wire.log import configure_logging, get_logger
from motor_ft.wire.metrics import MetricsServer, RpcMetrics
from motor_ft.wire.policy import POLICIES
from motor_ft.wire.server import RpcServer
from motor_ft.wire.tasks import Tasks
from nodemanager.clock import SystemClock
from nodemanager.config import NodeManagerConfig
from nodemanager.core.state import check_sending, started
from nodemanager.engines import EngineClient
from nodemanager.journal import Journal
from nodemanager.link import Link, Orders
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
from nodemanager.supervisor import Supervisor
from nodemanager.watcher import Watcher

_GRACE_SEC = 2.0
_log = get_logger(__name__)


class Ending:
    """Why the process ends: a signal, Stop, or something that must be seen in the exit code."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self.with_adopted = False
        self.error: FtError | None = None

    def stopped(self) -> None:
        """The Controller ends the pod, engines that were adopted included."""
        self.with_adopted = True
        self._stop.set()

    def suicide(self) -> None:
        """The pod does not work and shall be started again."""
        self.error = FtError(Reason.SHUTTING_DOWN, "endpoints stayed abnormal; the pod ends itself to be started again")
        self.stopped()

    def crashed(self, task: str, error: BaseException) -> None:
        """A part has ended that must not; the others do not go on without it."""
        self.error = FtError(Reason.INTERNAL, f"task {task} crashed: {error!r}; the log has more")
        self._stop.set()


async def run_node_manager(config: NodeManagerConfig, stop: asyncio.Event) -> None:
    """``motor-nodemanager``, until ``stop`` is set, Stop arrives, or the pod gives itself up (FtError)."""
    configure_logging(level=config.log_level, json=config.log_json)
    ending = Ending(stop)
    async with AsyncExitStack() as stack:
        await _start(config, ending, stack)
        await stop.wait()
        _log.info("shutting down", with_adopted=ending.with_adopted)
    if ending.error is not None:
        raise ending.error


async def _start(config: NodeManagerConfig, ending: Ending, stack: AsyncExitStack) -> None:
    registry, clock = CollectorRegistry(), SystemClock()
    metrics, rpc_metrics = NodeMetrics(registry), RpcMetrics(registry)
    journal = Journal(Path(config.state_dir), metrics.journal)
    stack.push_async_callback(journal.close)
    await journal.update(started)
    pod = Pod([engine.endpoint(config.pod_ip) for engine in config.engines], journal, clock, metrics=metrics)
    supervisor = Supervisor(
        [engine.spec() for engine in config.engines],
        journal,
        clock,
        new_id=_new_id,
        on_death=pod.died,
        log_dir=Path(config.log_dir or config.state_dir),
        pattern=re.compile(config.worker_pattern),
        stop_grace_sec=config.stop_grace_sec,
    )
    stack.push_async_callback(lambda: supervisor.stop(adopted=ending.with_adopted))
    await supervisor.start()

    def admit(command: Command) -> None:
        guard = check_sending(journal.state, command, clock.boot())
        pod.check_meant(guard.plan.survivors if guard.plan else ())

    engines = await _engines(config, registry, rpc_metrics, admit, stack)
    store_port = StorePort(config.store_port.first, config.store_port.last)
    stack.callback(store_port.release)
    service = FtService(
        pod,
        journal,
        engines,
        supervisor,
        store_port,
        clock,
        metrics,
        dp_size=config.dp_size,
        base_port=config.store_port.base,
    )
    tasks = Tasks("nodemanager", ending.crashed)
    stack.push_async_callback(tasks.close)
    watcher = Watcher(pod, engines, supervisor, journal, Backoff(0.1, 2.0, 2.0, random.random))
    suicide = SuicideWatch(pod, journal, clock, enabled=config.suicide, on_due=ending.suicide)
    relaunch = Relaunch(supervisor, watcher, suicide, pod, tasks)
    relaunch.watch()
    ledger = Ledger(journal, service, clock)
    transaction = NodeManagerServicer(service, pod, ledger)
    lifecycle = NodeLifecycleServicer(journal, pod, relaunch, ending.stopped)
    port = await _grpc(config, transaction, lifecycle, ledger, rpc_metrics, stack)
    rest_port = await _rest(config, LocalNode(service, ledger, journal), registry, stack)
    link = Link(
        config.controllers,
        lambda: _registration(config, pod, port, rest_port),
        pod,
        journal,
        clock,
        metrics,
        Orders(watcher.set_fast, suicide.freeze),
        incarnation=_new_id(),
        rng=random.random,
        tls=config.tls.client(),
    )
    if config.metrics_listen:
        http = MetricsServer(
            config.metrics_listen,
            registry,
            lambda: watcher.unready,
            lambda: [*_degraded(journal, link), *pod.problems()],
            tls=config.tls,
        )
        stack.push_async_callback(http.stop)
        await http.start()
    tasks.spawn("suicide", suicide.run())
    tasks.spawn("journal", journal.prove())
    tasks.spawn("link", link.run())


async def _engines(
    config: NodeManagerConfig, registry: CollectorRegistry, rpc_metrics: RpcMetrics, admit: Admit, stack: AsyncExitStack
) -> EngineClient:
    """A client of the standalone gateway, or of the one hosted here, which only this user can reach."""
    gateway = config.gateway
    if not gateway.address:
        address = f"unix:{_private_directory(Path(config.state_dir) / 'gateway', stack)}/engine.sock"
        await _host_gateway(config, address, registry, rpc_metrics, admit, stack)
        client = EngineClient(address)
    else:
        token = read_token("gateway.caller_token_file", gateway.caller_token_file)
        client = EngineClient(gateway.address, token, config.tls.client())
    stack.push_async_callback(client.close)
    return client


def _private_directory(path: Path, stack: AsyncExitStack) -> str:
    """Make a directory that the next start takes over, also from a process that was killed.

    Returned is a way to it through a handle, open as long as ``stack``: a socket's path may have 107 bytes only.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, handle)
    return f"/proc/self/fd/{handle}"


async def _host_gateway(
    config: NodeManagerConfig,
    address: str,
    registry: CollectorRegistry,
    rpc_metrics: RpcMetrics,
    admit: Admit,
    stack: AsyncExitStack,
) -> None:
    endpoints = [engine.endpoint(config.pod_ip) for engine in config.engines if not engine.headless]
    if not endpoints:
        return
    parts = build_engine_service(
        EngineGatewayConfig(
            engines=tuple(EngineAddress(each.rank, f"http://{each.ip}:{each.business_port}") for each in endpoints),
            dialect=config.dialect,
            token_file=config.gateway.token_file,
        ),
        registry,
        admit=admit,
    )
    stack.push_async_callback(parts.close)
    server = RpcServer(
        name="gateway", listen=address, metrics=rpc_metrics, policies=POLICIES, commands=parts.ledger, reflection=False
    )
    server.add(ENGINE_SERVICE, engine_pb2_grpc.add_EngineServiceServicer_to_server, parts.servicer)
    stack.push_async_callback(lambda: server.stop(_GRACE_SEC))
    await server.start()


async def _grpc(
    config: NodeManagerConfig,
    transaction: NodeManagerServicer,
    lifecycle: NodeLifecycleServicer,
    ledger: Ledger,
    metrics: RpcMetrics,
    stack: AsyncExitStack,
) -> int:
    """Serve the Controller; returns the bound port."""
    server = RpcServer(
        name="motor-nodemanager",
        listen=config.listen,
        metrics=metrics,
        policies=POLICIES,
        commands=ledger,
        credentials=config.tls.server(),
        client_certificates=config.tls.client_certificates,
    )
    server.add(
        "motor_ft.v1.NodeManagerService",
        node_manager_pb2_grpc.add_NodeManagerServiceServicer_to_server,
        transaction,
    )
    server.add(
        "motor_ft.v1.NodeLifecycleService",
        node_lifecycle_pb2_grpc.add_NodeLifecycleServiceServicer_to_server,
        lifecycle,
    )
    stack.push_async_callback(lambda: server.stop(_GRACE_SEC))
    return await server.start()


async def _rest(config: NodeManagerConfig, node: LocalNode, registry: CollectorRegistry, stack: AsyncExitStack) -> int:
    """Serve the four FT routes where configured; returns their port, 0 for none."""
    if not config.rest_listen:
        return 0
    metrics = RestMetrics(registry)
    routes = node_manager_routes(node, metrics=metrics, strict_fencing=config.rest_strict_fencing)
    rest = RestServer(config.rest_listen, routes, metrics)
    stack.push_async_callback(rest.stop)
    return await rest.start()


def _registration(config: NodeManagerConfig, pod: Pod, port: int, rest_port: int) -> Registration:
    return Registration(
        pod_uid=config.pod_uid or os.environ.get("MOTOR_FT_POD_UID") or config.pod_name,
        job_name=config.job_name,
        model_name=config.model_name,
        engine_type=config.engine_type,
        role=config.role,
        node_name=config.node_name,
        pod_name=config.pod_name,
        pod_ip=config.pod_ip,
        node_manager_address=config.advertise or f"{config.pod_ip}:{port}",
        dp_size=config.dp_size,
        tp_size=config.tp_size,
        endpoints=pod.endpoints(),
        capability=config.capability.capability() if config.capability else None,
        rest_port=rest_port,
    )


def _degraded(journal: Journal, link: Link) -> Iterator[str]:
    """What does not work beside the engines."""
    if journal.problem:
        yield journal.problem
    if not link.connected:
        yield link.problem


def _new_id() -> str:
    return uuid.uuid4().hex
