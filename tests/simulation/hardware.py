"""The source of hardware faults: an adapter with a stream of its own, over a board that the scenario writes."""

from types import SimpleNamespace
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from gateway.mindcluster.core.slot import Times
from gateway.mindcluster.feed import Feed
from gateway.mindcluster.link import HardwareLink, Identity
from gateway.mindcluster.metrics import MindClusterMetrics
from motor_ft.model.hardware import FaultKey, FaultLevel, HardwareFault
from motor_ft.wire.tasks import Tasks
from tests.simulation.loop import Process
from tests.simulation.machine import Machine

if TYPE_CHECKING:
    from tests.simulation.world import World


class SimAdapter:
    """``motor-gateway mindcluster`` from its board on."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.machine = Machine("10.7.0.1")
        self._faults: dict[FaultKey, HardwareFault] = {}
        self._feed: Feed | None = None
        self._process: Process | None = None
        self._starts = 0

    def start(self) -> None:
        """A process; nothing happens while one runs."""
        if self._process is None or not self._process.alive:
            self._starts += 1
            self._process = self.world.process("adapter", self.machine)
            self.world.loop.create_task(self._run(), name="adapter", context=self._process.context.copy())

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()

    def fault(self, node: str, card: str, level: str, code: str, raw_level: str) -> None:
        """A card, or a whole node, is faulty."""
        fault = HardwareFault(node=node, npu_name=card, fault_code=code, level=FaultLevel(level), raw_level=raw_level)
        self._faults[fault.key] = fault
        self._touch()

    def cleared(self, node: str) -> None:
        """Nothing is wrong with a node any more."""
        self._faults = {key: fault for key, fault in self._faults.items() if fault.node != node}
        self._touch()

    def clear(self) -> None:
        """Nothing is wrong with any node."""
        self._faults = {}
        self._touch()

    def _touch(self) -> None:
        if self._feed is not None:
            self._feed.touch()

    async def _run(self) -> None:
        loop = self.world.loop
        metrics = MindClusterMetrics(CollectorRegistry())
        board = SimpleNamespace(faults=lambda _: dict(self._faults), states=lambda _: ())
        self._feed = Feed(board, lambda: Times(loop.time(), loop.time()), metrics)  # type: ignore[arg-type]
        link = HardwareLink(
            self.world.controller_addresses,
            self._feed,
            Identity("adapter", f"adapter-{self._starts}", self._starts),
            metrics,
            now=loop.time,
            rng=self.world.chance.random,
        )
        tasks = Tasks("adapter")
        tasks.spawn("feed", self._feed.run())
        await tasks.spawn("link", link.run())
