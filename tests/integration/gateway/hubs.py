"""A hub over a fake engine group."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from gateway.engines.client import EngineHttp
from gateway.engines.dialect import Order
from gateway.engines.dialects import CONFIGURABLE
from gateway.engines.engine import Target
from gateway.engines.fence import Fence
from gateway.engines.hub import Apply, EngineHub
from gateway.metrics import EngineMetrics
from motor_ft.model.command import Command
from motor_ft.model.engine import Instruction
from motor_ft.model.errors import FtError, Reason
from tests.support.engine import FakeGroup

COMMANDED = {name: dialect for name, dialect in CONFIGURABLE.items() if dialect.instructions}
"""The dialects with orders."""


class Clock:
    """A clock that stands still until it is set."""

    now = 100.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


class Hub(EngineHub):
    """The hub with what surrounds it."""

    fence: Fence
    clock: Clock
    registry: CollectorRegistry
    ended: set[str]
    """Request ids that the host of the hub does not let out any more."""


@asynccontextmanager
async def open_hub(engines: FakeGroup | dict[int, str], dialect: str = "auto", token: str = "") -> AsyncIterator[Hub]:
    """Open a hub; its clock stands still."""
    if isinstance(engines, FakeGroup):
        engines = {rank: engines.url(rank) for rank in range(engines.config.dp_size)}
    fence, clock, registry = Fence(), Clock(), CollectorRegistry()
    ended: set[str] = set()

    def admit(command: Command) -> None:
        if command.request_id in ended:
            raise FtError(Reason.GUARD_REQUIRED, "finalized meanwhile")

    hub = Hub(
        engines,
        http=EngineHttp(token),
        dialect=CONFIGURABLE.get(dialect),
        fence=fence,
        clock=clock,
        metrics=EngineMetrics(registry),
        admit=admit,
    )
    hub.fence, hub.clock, hub.registry, hub.ended = fence, clock, registry, ended
    try:
        yield hub
    finally:
        await hub.close()


def targets(ranks: Iterable[int], incarnation: str = "e1") -> tuple[Target, ...]:
    """Engines as the NodeManager names them."""
    return tuple(Target(rank, incarnation) for rank in ranks)


def order(
    ranks: Iterable[int],
    request_id: str = "r1",
    removed: tuple[int, ...] = (),
    *,
    epoch: int = 5,
    incarnation: str = "e1",
    ip: str = "127.0.0.1",
    port: int = 29500,
    deadline: float = 160.0,
    timeout: float = 5.0,
) -> Apply:
    """A scale-down when ranks are removed, else a retry."""
    sent = Order(request_id, Instruction.RETRY)
    if removed:
        sent = Order(request_id, Instruction.SCALE_DOWN, removed, ip, port)
    return Apply(Command(7, request_id, epoch, 1), sent, targets(ranks, incarnation), deadline, timeout)


def metric(hub: Hub, name: str, **labels: str) -> float:
    """A counter's value."""
    return hub.registry.get_sample_value(name, labels) or 0.0
