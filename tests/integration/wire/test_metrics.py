"""Metrics and probes over HTTP."""

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.config import ConfigError
from motor_ft.wire.metrics import MetricsServer, RpcMetrics


async def get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


async def test_metrics_and_probes_are_served() -> None:
    registry = CollectorRegistry()
    metrics = RpcMetrics(registry)
    metrics.ended("/service/Method", "OK")
    metrics.took("/service/Method", 0.1)
    metrics.refused(Reason.GUARD_HELD)
    unready, degraded = "it does not lead", list[str]()
    server = MetricsServer("127.0.0.1:0", registry, lambda: unready, lambda: degraded)
    port = await server.start()
    assert await get(port, "/healthz") == (200, "ok\n")
    assert await get(port, "/readyz") == (503, "not ready: it does not lead\n")
    unready = ""
    assert await get(port, "/readyz") == (200, "ready\n")
    degraded.append("the store is slow")
    assert await get(port, "/readyz") == (200, "ready\ndegraded: the store is slow\n")
    status, text = await get(port, "/metrics")
    await server.stop()
    assert status == 200
    assert 'motor_ft_rpc_total{code="OK",method="Method",service="service"} 1.0' in text
    assert 'motor_ft_refusals_total{reason="GUARD_HELD"} 1.0' in text
    assert 'motor_ft_refusals_total{reason="GUARD_EXPIRED"} 0.0' in text
    assert 'motor_ft_rpc_seconds_count{method="Method",service="service"} 1.0' in text


async def test_an_address_that_is_taken_is_named() -> None:
    first = MetricsServer("127.0.0.1:0", CollectorRegistry())
    port = await first.start()
    with pytest.raises(FtError, match=f"cannot listen on 127.0.0.1:{port}"):
        await MetricsServer(f"127.0.0.1:{port}", CollectorRegistry()).start()
    await first.stop()


@pytest.mark.parametrize("listen", ["127.0.0.1", ":80", "host:x", "host:65536", ""])
async def test_an_address_that_is_none_is_named(listen: str) -> None:
    with pytest.raises(ConfigError, match="must be host:port"):
        await MetricsServer(listen, CollectorRegistry()).start()


async def test_an_ipv6_address_is_written_in_brackets() -> None:
    server = MetricsServer("[::1]:0", CollectorRegistry())
    assert await server.start() > 0
    await server.stop()
