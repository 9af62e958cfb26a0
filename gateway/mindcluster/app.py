"""Composition root of ``motor-gateway mindcluster``: apart from the other daemons, which need no Kubernetes."""

import asyncio
import os
import random
import socket
import time
import uuid
from contextlib import AsyncExitStack
from pathlib import Path

from prometheus_client import CollectorRegistry

from gateway.config import MindClusterDaemonConfig
from gateway.mindcluster.clusterd import ClusterD, Timing, open_clusterd, read_credentials
from gateway.mindcluster.core.board import Board
from gateway.mindcluster.core.observed import Source
from gateway.mindcluster.core.slot import Times
from gateway.mindcluster.feed import Feed
from gateway.mindcluster.kubernetes import open_api
from gateway.mindcluster.link import HardwareLink, Identity
from gateway.mindcluster.metrics import MindClusterMetrics
from gateway.mindcluster.starts import count_start
from gateway.mindcluster.watches import build_watches, read_conditions, watched_sources
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.backoff import Backoff
from motor_ft.wire.log import configure_logging, get_logger
from motor_ft.wire.metrics import MetricsServer
from motor_ft.wire.tasks import Tasks

_log = get_logger(__name__)


async def run_mindcluster(config: MindClusterDaemonConfig, stop: asyncio.Event) -> None:
    """Report hardware faults until ``stop`` is set; a part that crashes ends the process with FtError."""
    configure_logging(level=config.log_level, json=config.log_json)
    crashes: list[FtError] = []

    def crashed(task: str, error: BaseException) -> None:
        crashes.append(FtError(Reason.INTERNAL, f"task {task} crashed: {error!r}; the log has more"))
        stop.set()

    async with AsyncExitStack() as stack:
        tasks = Tasks("mindcluster", crashed)
        await _start(config, tasks, stack)
        stack.push_async_callback(tasks.close)
        await stop.wait()
    if crashes:
        raise crashes[0]


async def _start(config: MindClusterDaemonConfig, tasks: Tasks, stack: AsyncExitStack) -> None:
    registry = CollectorRegistry()
    metrics = MindClusterMetrics(registry)
    reporter_id = config.reporter_id or os.environ.get("MOTOR_FT_POD_UID") or socket.gethostname()
    identity = Identity(reporter_id, uuid.uuid4().hex, count_start(Path(config.state_dir)))
    sources = watched_sources(config.kubernetes) if config.kubernetes else []
    cards_elsewhere = Source.CM_DEVICE in sources
    if config.clusterd:
        sources += [Source.CLUSTERD_QUERY, Source.CLUSTERD_STREAM]
    board = Board(
        sources,
        debounce_codes=config.debounce_codes,
        debounce_sec=config.debounce_sec,
        node_selector=config.kubernetes.node_selector if config.kubernetes else "",
        conditions=read_conditions(config.kubernetes) if config.kubernetes else (),
    )
    feed = Feed(board, _times, metrics)
    link = HardwareLink(
        config.controllers, feed, identity, metrics, now=time.monotonic, rng=random.random, tls=config.tls.client()
    )
    http = MetricsServer(config.metrics_listen, registry, lambda: _unready(feed, link), tls=config.tls)
    stack.push_async_callback(http.stop)
    _log.info("serving metrics", port=await http.start(), reporter_id=reporter_id)

    if config.kubernetes:
        api = await open_api(config.kubernetes.server, config.kubernetes.kubeconfig)
        stack.push_async_callback(api.close)
        for watch in build_watches(api, config.kubernetes, feed, _times, _backoff):
            tasks.spawn(f"watch {watch.name}", watch.run())
    if config.clusterd:
        channel = open_clusterd(config.clusterd.address, read_credentials(config.clusterd))
        stack.push_async_callback(channel.close)
        clusterd = ClusterD(
            channel,
            f"{config.clusterd.role}-{reporter_id}",
            feed,
            _times,
            backoff=_backoff,
            timing=Timing(config.clusterd.request_timeout_sec, config.clusterd.query_interval_sec),
            cards_elsewhere=cards_elsewhere,
        )
        tasks.spawn("clusterd stream", clusterd.subscribe())
        tasks.spawn("clusterd query", clusterd.query())
    tasks.spawn("feed", feed.run())
    tasks.spawn("link", link.run())


def _unready(feed: Feed, link: HardwareLink) -> str:
    problems = feed.problems if link.connected else [link.problem, *feed.problems]
    return "; ".join(problems)


def _times() -> Times:
    return Times(time.monotonic(), time.time())


def _backoff() -> Backoff:
    return Backoff(0.5, 30.0, 2.0, random.random)
