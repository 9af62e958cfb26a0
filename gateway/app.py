"""Composition roots: the only place where the gateway's parts are built, in start and stop order."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from gateway.config import EngineDaemonConfig, EngineGatewayConfig, RestDaemonConfig
from gateway.engines.client import EngineHttp
from gateway.engines.dialects import CONFIGURABLE
from gateway.engines.fence import Fence
from gateway.engines.hub import Admit, EngineHub
from gateway.metrics import EngineMetrics, RestMetrics
from gateway.rest.controller import controller_routes
from gateway.rest.controller_client import ControllerClient
from gateway.rest.server import RestServer
from gateway.rpc.engine import EngineServicer
from gateway.rpc.ledger import GatewayLedger
from motor_ft.v1 import engine_pb2_grpc
from motor_ft.wire.authorizer import SharedToken, read_token
from motor_ft.wire.log import configure_logging, get_logger
from motor_ft.wire.metrics import MetricsServer, RpcMetrics
from motor_ft.wire.policy import POLICIES
from motor_ft.wire.server import RpcServer

ENGINE_SERVICE = "motor_ft.v1.EngineService"
_GRACE_SEC = 2.0
_log = get_logger(__name__)


class EngineParts(NamedTuple):
    """What a process needs to serve EngineService; ``close`` comes after the server has stopped."""

    servicer: EngineServicer
    ledger: GatewayLedger
    close: Callable[[], Awaitable[None]]


def build_engine_service(
    config: EngineGatewayConfig,
    registry: CollectorRegistry,
    clock: Callable[[], float] = time.monotonic,
    admit: Admit = lambda _: None,
) -> EngineParts:
    """Build EngineService for whatever RpcServer shall serve it; call it inside the running loop.

    ``clock`` is monotonic, in seconds; ``admit`` is the host's word right before an order is sent. Raises ConfigError
    when the token file cannot be read.
    """
    http = EngineHttp(read_token("token_file", config.token_file))
    fence = Fence()
    hub = EngineHub(
        {engine.rank: engine.url.rstrip("/") for engine in config.engines},
        http=http,
        dialect=CONFIGURABLE.get(config.dialect),
        fence=fence,
        clock=clock,
        metrics=EngineMetrics(registry),
        # Readings are far rarer than nanoseconds, so every process of this machine counts on above the one before.
        first=time.monotonic_ns(),
        admit=admit,
    )
    servicer = EngineServicer(hub, timeout=config.request_timeout_sec, clock=clock)
    return EngineParts(servicer, GatewayLedger(fence), hub.close)


async def run_engine(config: EngineDaemonConfig, stop: asyncio.Event) -> None:
    """``motor-gateway engine``, until ``stop`` is set."""
    configure_logging(level=config.log_level, json=config.log_json)
    registry = CollectorRegistry()
    token = read_token("caller_token_file", config.caller_token_file)
    parts = build_engine_service(config.engine, registry)
    server = RpcServer(
        name="motor-gateway",
        listen=config.listen,
        metrics=RpcMetrics(registry),
        policies=POLICIES,
        commands=parts.ledger,
        authorizer=SharedToken(token) if token else None,
        credentials=config.tls.server(),
        client_certificates=config.tls.client_certificates,
    )
    server.add(ENGINE_SERVICE, engine_pb2_grpc.add_EngineServiceServicer_to_server, parts.servicer)
    metrics = MetricsServer(config.metrics_listen, registry, tls=config.tls)
    try:
        _log.info("serving metrics", port=await metrics.start())
        await server.start()
        await stop.wait()
    finally:
        await server.stop(_GRACE_SEC)
        await parts.close()
        await metrics.stop()


async def run_rest(config: RestDaemonConfig, stop: asyncio.Event) -> None:
    """``motor-gateway rest``, until ``stop`` is set."""
    configure_logging(level=config.log_level, json=config.log_json)
    controller = ControllerClient(config.controllers, config.request_timeout_sec, config.tls.client())
    registry = CollectorRegistry()
    rest = RestServer(config.listen, controller_routes(controller), RestMetrics(registry))
    metrics = MetricsServer(config.metrics_listen, registry, controller.problem, tls=config.tls)
    try:
        _log.info("serving metrics", port=await metrics.start())
        _log.info("serving REST", port=await rest.start(), controllers=config.controllers)
        await stop.wait()
    finally:
        await rest.stop()
        await controller.close()
        await metrics.stop()
