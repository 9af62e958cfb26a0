"""Composition root of the Controller: the only file that builds adapters, in start and stop order."""

import asyncio
import socket
import time
import uuid
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from controller.clock import SystemClock, WallClock
from controller.config import ControllerConfig
from controller.coordinator.grpc import GrpcCoordinator
from controller.coordinator.http import HttpCoordinator
from controller.coordinator.pusher import ServingPusher
from controller.core.ports import Coordinator, Store
from controller.fault_manager.board import Board
from controller.fault_manager.environment import Environment
from controller.fault_manager.history import Histories
from controller.fault_manager.manager import FaultManager
from controller.metrics import ControllerMetrics
from controller.node_managers import GrpcNodeManagers
from controller.recoveries import recoveries
from controller.rpc.controller import ControllerServicer
from controller.rpc.fault_report import FaultReportServicer
from controller.rpc.ledger import OrderLedger
from controller.store.etcd.client import EtcdClient
from controller.store.etcd.member import Login
from controller.store.etcd.store import EtcdStore
from controller.store.etcd.tls import channel_credentials
from controller.store.health import StoreHealth
from controller.store.memory import MemoryStore
from controller.store.sqlite import SqliteStore
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import controller_pb2_grpc, fault_report_pb2_grpc
from motor_ft.wire.config import check
from motor_ft.wire.log import get_logger
from motor_ft.wire.metrics import MetricsServer, RpcMetrics
from motor_ft.wire.policy import POLICIES
from motor_ft.wire.server import RpcServer
from motor_ft.wire.tasks import Tasks
from motor_ft.wire.tls import TlsConfig

log = get_logger(__name__)

STOP_GRACE_SEC = 2.0
DRAIN_SEC = 20.0
"""For transactions to end after SIGTERM; Kubernetes sends SIGKILL 30 s after it, unless told otherwise."""


async def serve(config: ControllerConfig, stop: asyncio.Event) -> None:
    """Run until ``stop`` is set. Raises FtError when it cannot start; leaves nothing behind either way."""
    registry = CollectorRegistry()
    metrics = ControllerMetrics(registry)
    settings = config.fault_tolerance_config.settings
    clock = SystemClock()
    failures: list[FtError] = []

    def end(failure: FtError) -> None:
        """This process must not go on."""
        failures.append(failure)
        stop.set()

    manager: FaultManager
    async with AsyncExitStack() as stack:
        health = StoreHealth(metrics, time.monotonic, lambda: manager.look_again())  # noqa: PLW0108 - it comes later
        store = await _open_store(config, told=health.told, on_lost=end)
        stack.push_async_callback(store.close)
        histories = Histories(clock, str(uuid.uuid4()))
        nodes = GrpcNodeManagers(
            request_timeout_sec=_timeout_sec(config), clock=clock, recorder=histories, tls=config.tls.client()
        )
        stack.push_async_callback(nodes.close)
        publisher = _publisher(config, metrics, end)
        stack.push_async_callback(publisher.close)
        wall = WallClock(clock, metrics.clock_step, lambda: manager.look_again())  # noqa: PLW0108 - it comes later
        degraded = partial(_degraded, health, publisher, wall)
        board = Board()
        strategies = recoveries(
            settings,
            epoch=lambda: manager.epoch,
            nodes=nodes,
            publisher=publisher,
            clock=clock,
            on_stage=metrics.stage,
            recorder=histories,
        )
        manager = FaultManager(
            Environment(
                settings=settings,
                clock=clock,
                new_id=lambda: str(uuid.uuid4()),
                store=store,
                publisher=publisher,
                strategies=strategies,
                board=board,
                histories=histories,
                observer=metrics,
                probe=nodes.probe,
                connect=nodes.connect,
                forget=nodes.forget,
                recycle=nodes.recycle,
                store_problem=lambda: health.problem,
                degraded=degraded,
            )
        )
        tasks = Tasks("controller")
        stack.push_async_callback(tasks.close)
        tasks.spawn("clock", wall.watch())
        tasks.spawn("store", health.watch(store))
        metrics.standing(lambda: manager.refusal() is None)
        http = MetricsServer(
            config.metrics_listen, registry, lambda: str(manager.refusal() or ""), degraded, tls=config.tls
        )
        stack.push_async_callback(http.stop)
        metrics_port = await http.start()
        reports = FaultReportServicer(manager, enabled=settings.enable_fault_tolerance)
        off = not settings.scale_down_enabled
        instances = ControllerServicer(board, histories, manager, clock=clock, scale_down_disabled=off)
        server = _server(config, manager, reports, instances, RpcMetrics(registry))
        stack.push_async_callback(server.stop, STOP_GRACE_SEC)
        port = await server.start()
        if await _done_before(stop, manager.start()):
            publisher.start(manager, lambda: manager.epoch)
            server.set_all_serving(True)
            epoch = manager.epoch
            log.info("controller serves", listen=config.listen, port=port, metrics_port=metrics_port, epoch=epoch)
            await stop.wait()
        server.set_all_serving(False)
        await _step_down(manager, reports, drain=not failures)
    if failures:
        raise failures[0]


def _degraded(health: StoreHealth, publisher: ServingPusher, wall: WallClock) -> tuple[str, ...]:
    """What every instance needs and does not work now, or a person should know."""
    return *health.degraded, *publisher.problems, *wall.degraded


async def _step_down(manager: FaultManager, reports: FaultReportServicer, *, drain: bool) -> None:
    log.info("controller stops")
    if drain:
        await manager.drain(DRAIN_SEC)
    await manager.close()  # nothing is done any more while streams and calls get their time to end
    await reports.step_down()


async def _done_before(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Do the work unless ``stop`` is set first; True when it was done. Raises what it raises."""
    working = asyncio.create_task(work, name="start")
    stopped = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        working.cancel()
        stopped.cancel()
        await asyncio.gather(working, stopped, return_exceptions=True)


def _server(
    config: ControllerConfig,
    manager: FaultManager,
    reports: FaultReportServicer,
    instances: ControllerServicer,
    rpc_metrics: RpcMetrics,
) -> RpcServer:
    """A server that refuses until the manager leads."""
    server = RpcServer(
        name="controller",
        listen=config.listen,
        metrics=rpc_metrics,
        policies=POLICIES,
        commands=OrderLedger(),
        refusal=manager.refusal,
        credentials=config.tls.server(),
        client_certificates=config.tls.client_certificates,
    )
    add_reports = fault_report_pb2_grpc.add_FaultReportServiceServicer_to_server
    server.add("motor_ft.v1.FaultReportService", add_reports, reports)
    add_instances = controller_pb2_grpc.add_ControllerServiceServicer_to_server
    server.add("motor_ft.v1.ControllerService", add_instances, instances)
    server.set_all_serving(False)
    return server


async def raise_epoch(config: ControllerConfig, above: int | None, *, dry_run: bool) -> tuple[int, int]:
    """For an operator: every term that begins from now on is above; returns the stored offset before and after.

    Raises FtError, or ConfigError for a store that needs no operator for that.
    """
    check(config.store.kind == "etcd", "store.kind", f'is "{config.store.kind}", which raises its epoch by itself')
    store = _etcd_store(config, told=lambda _: None, on_lost=lambda _: None)
    try:
        return await store.raise_epoch(above, dry_run=dry_run)
    finally:
        await store.close()


async def _open_store(
    config: ControllerConfig, told: Callable[[str], None], on_lost: Callable[[FtError], None]
) -> Store:
    if config.store.kind == "memory":
        return MemoryStore()
    if config.store.kind == "sqlite":
        return await SqliteStore.open(Path(config.store.path), told, timeout_sec=_timeout_sec(config))
    return _etcd_store(config, told, on_lost)


def _etcd_store(config: ControllerConfig, told: Callable[[str], None], on_lost: Callable[[FtError], None]) -> EtcdStore:
    etcd = config.store.etcd
    credentials = channel_credentials(etcd.ca_file, etcd.cert_file, etcd.key_file) if etcd.tls else None
    login = Login(etcd.user, Path(etcd.password_file)) if etcd.user else None
    return EtcdStore(
        EtcdClient(etcd.targets, credentials=credentials, login=login, timeout_sec=_timeout_sec(config), told=told),
        prefix=etcd.prefix,
        lease_ttl_sec=etcd.lease_ttl_sec,
        address=config.address(socket.gethostname()),
        now=lambda: time.clock_gettime(time.CLOCK_BOOTTIME),  # goes on while this machine sleeps, as etcd's does
        on_lost=on_lost,
    )


def _publisher(config: ControllerConfig, metrics: ControllerMetrics, end: Callable[[FtError], None]) -> ServingPusher:
    return ServingPusher(
        [_coordinator(url, _timeout_sec(config), config.tls) for url in config.coordinators],
        set_interval_sec=config.fault_tolerance_config.coordinator_set_interval_sec,
        sent=metrics.refresh,
        on_crash=lambda task, error: end(FtError(Reason.INTERNAL, f"task {task} crashed: {error!r}; the log has more")),
    )


def _timeout_sec(config: ControllerConfig) -> float:
    """Of one request to the store, a Coordinator or a NodeManager."""
    return config.fault_tolerance_config.dp_scale_down_config.request_timeout_sec


def _coordinator(url: str, timeout_sec: float, tls: TlsConfig) -> Coordinator:
    scheme, _, target = url.partition("://")
    if scheme in {"grpc", "grpcs"}:
        return GrpcCoordinator(target, timeout_sec=timeout_sec, tls=tls.client() if scheme == "grpcs" else None)
    return HttpCoordinator(url, timeout_sec=timeout_sec)
