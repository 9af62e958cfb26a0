"""Metrics and probes over HTTP."""

import asyncio

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


async def test_memory_descriptors_and_tasks_of_the_process_are_served() -> None:
    """One more task is seen as one more, and as one less when it has ended: a leak shows."""
    server = MetricsServer("127.0.0.1:0", CollectorRegistry())
    async with aiohttp.ClientSession() as session:  # one connection: each has a task of the server
        url = f"http://127.0.0.1:{await server.start()}/metrics"

        async def values() -> dict[str, float]:
            async with session.get(url) as response:
                lines = [line for line in (await response.text()).splitlines() if not line.startswith("#")]
            return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

        before = await values()
        task = asyncio.create_task(asyncio.Event().wait())
        during = await values()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        after = await values()
    await server.stop()
    tasks = [each["motor_ft_asyncio_tasks"] for each in (before, during, after)]
    assert tasks == [tasks[0], tasks[0] + 1, tasks[0]]
    assert before["process_resident_memory_bytes"] > 0
    assert before["process_open_fds"] > 0


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
