"""With every bound made small, nothing that the daemons keep grows with the number of recoveries."""

import gc
from collections import Counter, deque
from collections.abc import Iterator

import prometheus_client
import pytest

import controller.metrics
import gateway.metrics
import motor_ft.wire.metrics
import nodemanager.metrics
from controller.core.history import History
from gateway.engines import hub
from motor_ft.wire.answers import FirstAnswers
from nodemanager.core import applies, state
from tests.simulation.loop import SimLoop
from tests.simulation.patches import patched
from tests.simulation.scenario import Config, Event, Job, Pod, Scenario
from tests.simulation.trace import Trace
from tests.simulation.world import World

OURS = {"controller", "nodemanager", "gateway", "motor_ft", "prometheus_client"}
FIRST_SEC, CYCLE_SEC = 15.0, 20.0
WARM, LAST = 6, 16
"""Recoveries after which is counted: the first fill what is bounded."""


@pytest.mark.timeout(300)
def test_nothing_grows_from_one_recovery_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps one thing more for each recovery, of any kind, has LAST - WARM more of it at the end."""
    monkeypatch.setattr(hub, "_REMEMBERED", 4)
    monkeypatch.setattr(applies, "KEPT_RECORDS", 3)
    monkeypatch.setattr(state, "KEPT_ANSWERS", 3)
    monkeypatch.setattr(FirstAnswers.__init__, "__defaults__", (3,))
    monkeypatch.setattr(History.__init__, "__defaults__", (20,))
    loop = SimLoop()  # type: ignore[abstract]  # it has all that is asked of it
    world = World(_scenario(), loop, Trace())
    counted: list[Counter[str]] = []
    with patched(world), pytest.MonkeyPatch.context() as patch:
        for module in (controller.metrics, nodemanager.metrics, gateway.metrics, motor_ft.wire.metrics):
            for kind in {"Counter", "Gauge", "Histogram"} & vars(module).keys():
                patch.setattr(module, kind, getattr(prometheus_client, kind))
        for cycle in (WARM, LAST):
            at = FIRST_SEC + cycle * CYCLE_SEC - 2.0
            loop.call_at(at, lambda: counted.append(Counter(_kept(world))), context=world.outside)
        loop.run(world.run())
        loop.close()
    assert world.oracle.facts.broken == []
    assert world.oracle.facts.counts["phase SCALING_DOWN"] == LAST
    warm, last = counted
    assert {what: (warm[what], now) for what, now in last.items() if now - warm[what] >= LAST - WARM} == {}


def _scenario() -> Scenario:
    """One fast recovery after the other: request ids and generations are new, all daemons live on."""
    events = (Event(FIRST_SEC + cycle * CYCLE_SEC, "step_exception", f"0/{cycle % 4}") for cycle in range(LAST))
    job = Job(pods=(Pod((0, 1)), Pod((2, 3))), new_pod=False, boot=1.0, detection=0.5)
    calm_at = FIRST_SEC + LAST * CYCLE_SEC
    return Scenario(1, (job,), tuple(events), Config(fast_recovery=True), calm_at=calm_at)


def _kept(world: World) -> Iterator[str]:
    """Every object of a class of ours, and every item in a collection that is an attribute of one."""
    for process in world.processes:  # the simulator forgets tasks that have ended only now and then
        process.tasks = {task: None for task in process.tasks if not task.done()}
    gc.collect()
    for each in gc.get_objects():
        kind = type(each)
        if str(kind.__module__).partition(".")[0] not in OURS:
            continue
        yield kind.__qualname__
        for name in {*getattr(each, "__dict__", ()), *(slot for base in kind.__mro__ for slot in _slots(base))}:
            value = getattr(each, name, None)
            if isinstance(value, dict | list | set | frozenset | tuple | deque):
                yield from [f"{kind.__qualname__}.{name}"] * len(value)


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
