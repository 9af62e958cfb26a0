"""What a Controller holds does not grow with what has happened: neither with recoveries nor with instances."""

import asyncio
import gc
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from types import FunctionType, ModuleType

import pytest
from prometheus_client import CollectorRegistry

from controller.core.history import History
from controller.core.status import InstanceState
from controller.fault_manager.environment import Settings
from controller.metrics import ControllerMetrics
from tests.support.world.pods import TWO_PODS, U, registration
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

KEPT = 3
"""Instances that are gone and remembered, here."""
KEPT_EVENTS = 20
"""Of one instance, here."""
FULL = 10
"""Cycles after which nothing may grow any more."""
CONTAINERS = (dict, set, frozenset, list, tuple, deque)
OUTSIDE = (type, ModuleType, asyncio.AbstractEventLoop, int, float)  # some numbers are one object, others are not


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real metrics, and bounds that are reached soon."""
    registry = CollectorRegistry()
    monkeypatch.setattr("tests.support.world.world.Observed", lambda: ControllerMetrics(registry))
    monkeypatch.setattr("controller.fault_manager.history.History", partial(History, KEPT_EVENTS))
    for name in ("board.KEPT_DELETED", "history.KEPT_DELETED", "graveyard.KEPT"):
        monkeypatch.setattr(f"controller.fault_manager.{name}", KEPT)


def held(world: World) -> Counter[str]:
    """Objects that the Controller holds and what is in them, by type; not what the world around it remembers."""
    for pod in world.pods.values():
        pod.heard.clear()  # the Controller holds where it says something
    gc.collect()
    controller = world.controller
    left: list[object] = [controller.manager, controller.board, controller.histories, *controller.strategies.values()]
    seen: dict[int, object] = {}
    while left:
        thing = left.pop()
        if id(thing) in seen or isinstance(thing, OUTSIDE) or type(thing).__module__.startswith("tests."):
            continue
        seen[id(thing)] = thing
        left += thing.__closure__ or () if isinstance(thing, FunctionType) else gc.get_referents(thing)
    sizes: Counter[str] = Counter()
    for thing in seen.values():
        sizes[type(thing).__qualname__] += 1 + (len(thing) if isinstance(thing, CONTAINERS) else 0)
    return sizes


async def replaced(world: World, number: int) -> None:
    """New pods with new engines take the place of all, and are scaled down."""
    for pod in world.pods.values():
        await pod.disconnect()
    world.pods.clear()
    for place, ranks in ((1, [0, 1]), (2, [2, 3])):
        await world.add(registration(2 * number + place, ranks)).connect()
    instance_id = number + 1
    await world.until(lambda: world.can_serve(instance_id))
    await world.lose(3)
    await world.until(lambda: world.status(instance_id).dead_committed == (3,) and world.can_serve(instance_id))


async def relaunched(world: World, number: int) -> None:
    """All engines of the instance start anew, because of one."""
    await world.see(1, U)
    await world.until(lambda: len(world.controller.started) == number and world.can_serve())


@pytest.mark.parametrize(
    ("cycle", "settings", "names"),
    [(replaced, SETTINGS, 0), (relaunched, replace(SETTINGS, enable_dp_scale_down=False), 4 * FULL)],
)
async def test_the_same_is_held_after_ten_cycles_and_after_twenty(
    cycle: Callable[[World, int], Awaitable[None]], settings: Settings, names: int
) -> None:
    """Engines, requests and, where all is replaced, pods and instances are new each time.

    Of an engine that a relaunch has ended the name is held until its instance is gone: it stays ended.
    """
    async with World(*TWO_PODS, settings=settings) as world:
        await world.serve()
        for number in range(1, FULL + 1):
            await cycle(world, number)
        before = held(world)
        assert before["FaultManager"] == before["ControllerMetrics"] == 1
        for number in range(FULL + 1, 2 * FULL + 1):
            await cycle(world, number)
        assert held(world) - before == +Counter(str=names, frozenset=names)


async def test_channels_are_held_to_the_pods_that_there_are_and_to_no_other() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        for number in range(1, 4):
            await replaced(world, number)
        nodes, pods = world.controller.nodes, world.pods.values()
        await world.until(lambda: world.status(3) is None or world.status(3).state is InstanceState.DELETED)
        assert set(nodes.connected) - set(nodes.forgotten) == {pod.registration.node_manager_address for pod in pods}
