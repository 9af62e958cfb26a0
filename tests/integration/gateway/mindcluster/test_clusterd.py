"""ClusterD's stream and query: what either cannot tell the other does, and silence is never health."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from gateway.config import ClusterDConfig
from gateway.mindcluster.clusterd import ClusterD, Timing, open_clusterd, read_credentials
from gateway.mindcluster.core.observed import Source
from motor_ft.clusterd.fault_pb2 import Status
from motor_ft.wire.config import ConfigError
from tests.integration.gateway.mindcluster.adapter import Adapter, backoff, running, times
from tests.support.certificates import Authority
from tests.support.clusterd import FakeClusterD, npu_fault
from tests.support.ports import free_port
from tests.support.waiting import until

QUICK = Timing(request_sec=2.0, query_interval_sec=0.05, min_gap_sec=0.01, settled_sec=0.05, stable_sec=0.0)
FATAL = npu_fault("node-a", "4", "80E18402", "SeparateNPU")
OTHER = npu_fault("node-b", "0", "80E18005", "RestartNPU")


@pytest.fixture
async def server() -> AsyncIterator[FakeClusterD]:
    async with FakeClusterD() as serving:
        yield serving


@asynccontextmanager
async def asking(
    address: str, *, timing: Timing = QUICK, credentials: grpc.ChannelCredentials | None = None
) -> AsyncIterator[Adapter]:
    adapter = Adapter([Source.CLUSTERD_QUERY, Source.CLUSTERD_STREAM])
    channel = open_clusterd(address, credentials)
    clusterd = ClusterD(
        channel, "motor-ft-1", adapter.feed, times, backoff=backoff, timing=timing, cards_elsewhere=True
    )
    try:
        async with running(clusterd.subscribe(), clusterd.query()):
            yield adapter
    finally:
        await channel.close()


def sources(adapter: Adapter) -> dict[str, tuple[str, ...]]:
    """Which sources believe in which fault."""
    return {fault.npu_name: fault.sources for fault in adapter.faults if not fault.stale}


async def test_a_fault_of_a_job_is_told_at_once_and_its_end_too(server: FakeClusterD) -> None:
    server.job("job-1", [FATAL])
    server.cluster([FATAL])
    async with asking(server.address) as adapter:
        await until(lambda: sources(adapter) == {"npu-4": ("clusterd-query", "clusterd-stream")})
        assert adapter.problems == {}
        server.job("job-2", [OTHER])
        await until(lambda: sources(adapter).get("npu-0") == ("clusterd-stream",))
        server.cluster([])
        server.job("job-1", [])
        server.job("job-2", [])
        await until(lambda: not adapter.faults)
    assert server.roles == ["motor-ft-1"]


async def test_a_query_sees_what_belongs_to_no_job(server: FakeClusterD) -> None:
    async with asking(server.address) as adapter:
        await until(lambda: server.subscribers and not adapter.problems)
        server.cluster([OTHER])
        await until(lambda: sources(adapter) == {"npu-0": ("clusterd-query",)})


async def test_a_stream_that_ends_begins_anew_and_a_query_follows_at_once(server: FakeClusterD) -> None:
    """Proxies cut silent streams every minute: what is confirmed by the query stays confirmed."""
    server.job("job-1", [FATAL])
    server.cluster([FATAL])
    async with asking(server.address, timing=replace(QUICK, query_interval_sec=60)) as adapter:
        await until(lambda: sources(adapter) == {"npu-4": ("clusterd-query", "clusterd-stream")})
        queries = server.queries
        server.cut()
        await until(lambda: len(server.roles) == 2 and server.queries > queries)
        assert adapter.problems == {}
        await until(lambda: sources(adapter) == {"npu-4": ("clusterd-query", "clusterd-stream")})


async def test_what_cleared_while_nobody_listened_is_not_confirmed(server: FakeClusterD) -> None:
    """Normal is never told to a new subscriber; how soon the query ends it is the board's test."""
    server.job("job-1", [FATAL])
    async with asking(server.address) as adapter:
        await until(lambda: sources(adapter) == {"npu-4": ("clusterd-stream",)})
        server.delete_job("job-1")
        server.cut()
        await until(lambda: len(server.roles) == 2)
        assert sources(adapter) == {}
        assert [fault.stale for fault in adapter.faults] == [True]


async def test_streams_that_end_early_are_a_problem(server: FakeClusterD) -> None:
    """Two subscribers with one role end each other's streams for ever."""
    async with asking(server.address, timing=replace(QUICK, stable_sec=60)) as adapter:
        await until(lambda: server.subscribers and not adapter.problems)
        server.cut()
        await until(lambda: "same role" in adapter.problems.get(("clusterd-stream", ""), ""))


async def test_a_refused_registration_is_a_problem_with_its_text(server: FakeClusterD) -> None:
    server.refuse = Status(code=500, info="too many jobs")
    async with asking(server.address, timing=replace(QUICK, stable_sec=60)) as adapter:
        await until(lambda: "500 too many jobs" in adapter.problems.get(("clusterd-stream", ""), ""))
        server.refuse = None
        await until(lambda: not adapter.problems)


@pytest.mark.parametrize(("code", "text"), [(200, "no signal"), (429, "429")])
async def test_an_answer_without_a_signal_keeps_what_is_known_and_is_a_problem(
    server: FakeClusterD, code: int, text: str
) -> None:
    server.cluster([FATAL])
    async with asking(server.address) as adapter:
        await until(lambda: sources(adapter) == {"npu-4": ("clusterd-query",)})
        server.no_signal = code
        await until(lambda: text in adapter.problems.get(("clusterd-query", ""), ""))
        assert [fault.stale for fault in adapter.faults] == [True]


async def test_a_service_that_goes_away_keeps_its_faults_until_it_is_back(server: FakeClusterD) -> None:
    server.job("job-1", [FATAL])
    server.cluster([FATAL])
    async with asking(server.address, timing=replace(QUICK, stable_sec=60)) as adapter:
        await until(lambda: len(sources(adapter).get("npu-4", ())) == 2)
        await server.stop()
        await until(lambda: len(adapter.problems) == 2)
        assert [fault.stale for fault in adapter.faults] == [True]
        await server.start()
        await until(lambda: not adapter.problems and sources(adapter))


async def test_a_service_that_is_not_there_is_a_problem() -> None:
    async with asking(f"127.0.0.1:{free_port()}", timing=replace(QUICK, stable_sec=60)) as adapter:
        await until(lambda: all("UNAVAILABLE" in problem for problem in adapter.problems.values()))
        assert len(adapter.problems) == 2


async def test_a_server_in_plain_text_is_a_problem_for_who_asks_for_tls(server: FakeClusterD) -> None:
    async with asking(server.address, credentials=grpc.ssl_channel_credentials()) as adapter:
        await until(lambda: "UNAVAILABLE" in adapter.problems["clusterd-query", ""])


def test_certificates_are_read_where_they_are_configured(tmp_path: Path) -> None:
    assert read_credentials(ClusterDConfig(address="h:1")) is None
    ca = tmp_path / "ca.pem"
    with pytest.raises(ConfigError, match=r"clusterd.ca_file: cannot read .*ca\.pem: No such file"):
        read_credentials(ClusterDConfig(address="h:1", ca_file=str(ca)))
    ca.write_text("-----BEGIN CERTIFICATE-----")
    with pytest.raises(ConfigError, match=r"clusterd: .*ca\.pem cannot be used together"):
        read_credentials(ClusterDConfig(address="h:1", ca_file=str(ca)))
    assert read_credentials(ClusterDConfig(address="h:1", ca_file=Authority(tmp_path).ca_file))
