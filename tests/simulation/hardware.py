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

    def start(self) -> None:
        """A process."""
        process = self.world.process("adapter", self.machine)
        self.world.loop.create_task(self._run(), name="adapter", context=process.context.copy())

    def fault(self, node: str, card: str, level: str) -> None:
        """A card, or a whole node, is faulty."""
        fault = HardwareFault(node=node, npu_name=card, fault_code="80E01801", level=FaultLevel(level), raw_level=level)
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
            Identity("adapter", "adapter-1", 1),
            metrics,
            now=loop.time,
            rng=self.world.chance.random,
        )
        tasks = Tasks("adapter")
        tasks.spawn("feed", self._feed.run())
        await tasks.spawn("link", link.run())
