"""The parts of the adapter, driven by tests: real clocks, short pauses."""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from gateway.config import KubernetesConfig
from gateway.mindcluster.core.board import Board
from gateway.mindcluster.core.observed import Source
from gateway.mindcluster.core.slot import Times
from gateway.mindcluster.feed import Feed
from gateway.mindcluster.kubernetes import open_api
from gateway.mindcluster.metrics import MindClusterMetrics
from gateway.mindcluster.watches import build_watches, watched_sources
from motor_ft.model.hardware import HardwareFault
from motor_ft.wire.backoff import Backoff

CIM = {"mx_consumer_cim": "true"}
VOLCANO = {"mx_consumer_volcano": "true"}


def times() -> Times:
    return Times(time.monotonic(), time.time())


def backoff() -> Backoff:
    return Backoff(0.02, 0.05, 2.0, lambda: 0.0)


class RememberingBoard(Board):
    """Remembers every problem that a source ever had."""

    def __init__(self, sources: Iterable[Source]) -> None:
        super().__init__(sources)
        self.history: list[str] = []

    def broken(self, source: Source, problem: str) -> None:
        self.history.append(problem)
        super().broken(source, problem)


class Adapter:
    """A board and its feed."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self.board = RememberingBoard(sources)
        self.metrics = MindClusterMetrics(CollectorRegistry())
        self.feed = Feed(self.board, times, self.metrics)

    @property
    def faults(self) -> list[HardwareFault]:
        """What holds, in order of cards and codes."""
        found = self.board.faults(times()).values()
        return sorted(found, key=lambda fault: (fault.node, fault.npu_name, fault.fault_code))

    @property
    def codes(self) -> list[tuple[str, str]]:
        """Card and code of each."""
        return [(fault.npu_name, fault.fault_code) for fault in self.faults]

    @property
    def problems(self) -> dict[tuple[str, str], str]:
        """Why sources and nodes are not to be believed."""
        states = self.board.states(times())
        return {(state.source, state.node): state.problem for state in states if state.problem}


@asynccontextmanager
async def running(*parts: Coroutine[None, None, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(part, name=f"part {number}") for number, part in enumerate(parts)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error


@asynccontextmanager
async def watching(config: KubernetesConfig) -> AsyncIterator[Adapter]:
    """An adapter with all watches of a configuration."""
    adapter = Adapter(watched_sources(config))
    async with await open_api(config.server, config.kubeconfig) as api:
        watches = build_watches(api, config, adapter.feed, times, backoff)
        async with running(*(watch.run() for watch in watches)):
            yield adapter
