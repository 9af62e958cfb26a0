"""Composition root of the Controller: the only file that builds adapters, in start and stop order."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from prometheus_client import CollectorRegistry

from controller.clock import SystemClock
from controller.config import ControllerConfig, StoreConfig
from controller.coordinator.grpc import GrpcCoordinator
from controller.coordinator.http import HttpCoordinator
from controller.coordinator.pusher import ServingPusher
from controller.core.ports import Clock, Coordinator, NodeManagers, Runtime, ServingPublisher, Store, Strategy
from controller.core.transaction import Spec
from controller.fault_manager.board import Board
from controller.fault_manager.environment import Environment, Settings
from controller.fault_manager.manager import FaultManager
from controller.metrics import ControllerMetrics
from controller.node_managers import GrpcNodeManagers
from controller.rpc.controller import ControllerServicer
from controller.rpc.fault_report import FaultReportServicer
from controller.store.memory import MemoryStore
from controller.store.sqlite import SqliteStore
from controller.strategies.dp_scale_down import DpScaleDownStrategy
from controller.strategies.instance_reconfiguration import InstanceReconfiguration, ReconfigurationTimes
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import controller_pb2_grpc, fault_report_pb2_grpc
from motor_ft.wire.log import get_logger
from motor_ft.wire.metrics import MetricsServer, RpcMetrics
from motor_ft.wire.policy import POLICIES
from motor_ft.wire.server import RpcServer

log = get_logger(__name__)

STOP_GRACE_SEC = 2.0


class StrategyFactory:
    """Builds strategies with the adapters of this process."""

    def __init__(
        self,
        settings: Settings,
        assemble_timeout: float,
        *,
        epoch: Callable[[], int],
        nodes: NodeManagers,
        publisher: ServingPublisher,
        clock: Clock,
        metrics: ControllerMetrics,
    ) -> None:
        self._times = ReconfigurationTimes(
            request_timeout=settings.limits.request_timeout,
            retry_interval=settings.limits.poll_interval,
            give_up=settings.heartbeat_ttl + settings.limits.lease,
            assemble_timeout=assemble_timeout,
        )
        self._epoch = epoch
        self._nodes = nodes
        self._publisher = publisher
        self._clock = clock
        self._metrics = metrics

    def dp_scale_down(self, spec: Spec, runtime: Runtime) -> Strategy:
        """One transaction."""
        return DpScaleDownStrategy(
            spec,
            epoch=self._epoch(),
            nodes=self._nodes,
            publisher=self._publisher,
            runtime=runtime,
            clock=self._clock,
            on_stage=self._metrics.stage,
        )

    def instance_reconfiguration(
        self,
        instance_id: int,
        request_id: str,
        addresses: Sequence[str],
        reason: str,
        runtime: Runtime,
        replaced: Callable[[], Awaitable[object]],
    ) -> Strategy:
        """Stop everybody and wait for the replacement."""
        return InstanceReconfiguration(
            instance_id=instance_id,
            request_id=request_id,
            addresses=addresses,
            reason=reason,
            times=self._times,
            replaced=replaced,
            epoch=self._epoch,
            nodes=self._nodes,
            publisher=self._publisher,
            runtime=runtime,
            clock=self._clock,
        )


async def serve(config: ControllerConfig, stop: asyncio.Event) -> None:
    """Run until ``stop`` is set. Raises FtError when it cannot start; leaves nothing behind either way."""
    registry = CollectorRegistry()
    metrics = ControllerMetrics(registry)
    rpc_metrics = RpcMetrics(registry)
    settings = config.fault_tolerance_config.settings
    clock = SystemClock()
    crashes: list[FtError] = []

    def crashed(task: str, error: BaseException) -> None:
        """A part has ended that must not: the others do not go on without it."""
        crashes.append(FtError(Reason.INTERNAL, f"task {task} crashed: {error!r}; the log has more"))
        stop.set()

    async with AsyncExitStack() as stack:
        store = await _open_store(config.store)
        stack.push_async_callback(store.close)
        nodes = GrpcNodeManagers(request_timeout_sec=settings.limits.request_timeout)
        stack.push_async_callback(nodes.close)
        publisher = ServingPusher(
            [_coordinator(url, settings.limits.request_timeout) for url in config.coordinators],
            set_interval_sec=config.fault_tolerance_config.coordinator_set_interval_sec,
            sent=metrics.refresh,
            on_crash=crashed,
        )
        stack.push_async_callback(publisher.close)
        board = Board()
        manager: FaultManager
        strategies = StrategyFactory(
            settings,
            config.fault_tolerance_config.assemble_timeout_sec,
            epoch=lambda: manager.epoch,
            nodes=nodes,
            publisher=publisher,
            clock=clock,
            metrics=metrics,
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
                observer=metrics,
            )
        )
        server = RpcServer(name="controller", listen=config.listen, metrics=rpc_metrics, policies=POLICIES)
        reports = FaultReportServicer(manager, enabled=settings.enable_fault_tolerance)
        instances = ControllerServicer(board, scale_down_disabled=not settings.scale_down_enabled)
        server.add(
            "motor_ft.v1.FaultReportService", fault_report_pb2_grpc.add_FaultReportServiceServicer_to_server, reports
        )
        server.add(
            "motor_ft.v1.ControllerService", controller_pb2_grpc.add_ControllerServiceServicer_to_server, instances
        )
        http = MetricsServer(config.metrics_listen, registry)
        stack.push_async_callback(http.stop)
        metrics_port = await http.start()
        await manager.start()
        stack.push_async_callback(manager.close)
        publisher.start(manager, lambda: manager.epoch)
        stack.push_async_callback(server.stop, STOP_GRACE_SEC)
        port = await server.start()
        log.info("controller serves", listen=config.listen, port=port, metrics_port=metrics_port, epoch=manager.epoch)
        await stop.wait()
        log.info("controller stops")
    if crashes:
        raise crashes[0]


async def _open_store(config: StoreConfig) -> Store:
    if config.kind == "memory":
        return MemoryStore()
    return await SqliteStore.open(Path(config.path))


def _coordinator(url: str, timeout_sec: float) -> Coordinator:
    scheme, _, target = url.partition("://")
    if scheme == "grpc":
        return GrpcCoordinator(target, timeout_sec=timeout_sec)
    return HttpCoordinator(url, timeout_sec=timeout_sec)
