"""What a mutant is, and the scenes of most of them."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.simulation.scenario import Config, Event, Job, Pod, Scenario

Patch = pytest.MonkeyPatch


class Mutant(NamedTuple):
    """A bug, which ``put`` puts into the daemons for one run, a scene that brings it out, and the rule it breaks."""

    put: Callable[[Patch], None]
    scene: Scenario
    rule: str


JOB = Job(pods=(Pod((0, 1)), Pod((2, 3))), detection=1.0, round_time=2.0)
CONFIG = Config(store_lease=4.0, ttl=8.0)
ADOPTED = Job(pods=JOB.pods, mode="adopted", restart=0.5)
DEATH = Event(10.0, "worker_kill", "0/1")
SECOND = Event(30.0, "worker_kill", "0/2")


def scene(
    *events: Event, controllers: int = 1, delay: float = 0.001, config: Config = CONFIG, job: Job = JOB
) -> Scenario:
    """Four ranks in two pods, and exactly this happens to them."""
    return Scenario(0, (job,), events, config, controllers, delay=delay, jitter=delay, calm_at=60.0)


def at(moment: str, kind: str, who: str = "", value: float = 0.0, text: str = "") -> Event:
    """When a recovery comes to this moment."""
    return Event(9.0, kind, who, value, text, after=moment)


def engine(rank: int, text: str) -> Event:
    """Of its next order."""
    return Event(9.0, "engine_trouble", f"0/{rank}", 1.0, text)
