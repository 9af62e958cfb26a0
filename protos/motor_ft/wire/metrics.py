"""RPC metrics, and the HTTP server for them and for probes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from motor_ft.model.errors import Reason
from motor_ft.wire.http import HttpServer
from motor_ft.wire.tls import TlsConfig

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class RpcMetrics:
    """Outcomes, refusals and durations of the RPCs that a process serves."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["service", "method"]
        self._rpcs = Counter("motor_ft_rpc", "RPCs that ended.", [*labels, "code"], registry=registry)
        self._refusals = Counter("motor_ft_refusals", "RPCs refused.", ["reason"], registry=registry)
        self._seconds = Histogram(
            "motor_ft_rpc_seconds", "Duration of unary RPCs.", labels, registry=registry, buckets=_BUCKETS
        )
        for reason in Reason:
            self._refusals.labels(reason)  # a rate needs the zero before the first one

    def ended(self, method: str, code: str) -> None:
        """Count an RPC; ``method`` is the full name, ``code`` the gRPC code's."""
        _, service, name = method.split("/")
        self._rpcs.labels(service, name, code).inc()

    def took(self, method: str, seconds: float) -> None:
        """Record how long a unary RPC took."""
        _, service, name = method.split("/")
        self._seconds.labels(service, name).observe(seconds)

    def refused(self, reason: Reason) -> None:
        """Count a refusal; also for those that end no RPC, like a rejected report."""
        self._refusals.labels(reason).inc()


class MetricsServer(HttpServer):
    """``/metrics``, ``/healthz`` (the loop turns) and ``/readyz``.

    ``unready`` says why the process cannot do its work, empty when it can, and may have to ask somebody for it;
    ``degraded`` says what does not work meanwhile. Beside what the registry has ``/metrics`` tells memory, file
    descriptors and CPU of the process (``process_…``), the tasks of its loop, and when its certificate ends.
    """

    def __init__(
        self,
        listen: str,
        registry: CollectorRegistry,
        unready: Callable[[], str | Awaitable[str]] = lambda: "",
        degraded: Callable[[], Sequence[str]] = lambda: (),
        *,
        tls: TlsConfig | None = None,
    ) -> None:
        self._registry = registry
        self._unready = unready
        self._degraded = degraded
        ProcessCollector(registry=registry)
        tasks = Gauge("motor_ft_asyncio_tasks", "Tasks of the event loop that have not ended.", registry=registry)
        tasks.set_function(lambda: len(asyncio.all_tasks()))
        ends = Gauge(
            "motor_ft_tls_not_after_seconds",
            "When the own certificate ends, since the epoch; +Inf without one.",
            registry=registry,
        )
        ends.set_function((tls or TlsConfig()).not_after)
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
            ]
        )
        super().__init__(listen, app)

    async def _metrics(self, _request: web.Request) -> web.Response:
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        return web.Response(body=generate_latest(self._registry), headers=headers)

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        unready = self._unready()
        why = unready if isinstance(unready, str) else await unready
        lines = [f"not ready: {why}" if why else "ready", *(f"degraded: {what}" for what in self._degraded())]
        return web.Response(status=503 if why else 200, text="".join(f"{line}\n" for line in lines))
