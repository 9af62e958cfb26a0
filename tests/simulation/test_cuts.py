"""Every path cut in every phase of the transaction, in every way: bounded, never stuck, never two masters (row 24)."""

from itertools import product

import msgspec
import pytest

from tests.simulation.run import simulate
from tests.simulation.scenario import Config, Event, Job, Pod, Scenario

SECONDS = 12.0
"""Longer than what a heartbeat may be late, so that a cut is noticed; shorter than a recovery may take."""
DEATH = Event(10.0, "worker_kill", "0/1")
NOT_READY = Event(9.0, "says", "0/3", 2.0, "diagnosing", after="store DECIDING")
PHASES = (
    "",
    "store DECIDING",
    "store WAITING_ENGINE_FAULT",
    "store SCALING_DOWN",
    "post apply",
    "arrive Finalize",
    "store POST_SCALE_CLEANUP",
    "store SCALED_DOWN_RUNNING",
)
"""The phase begins at this moment of the history; at none: as soon as the rank has died, while faults are collected."""
PATHS = ("controller 0 - node 0/1", "controller 0 - store", "controller 0 - coordinator 0")
WAYS = {
    "blackhole there": ("cut", SECONDS, "there"),
    "blackhole back": ("cut", SECONDS, "back"),
    "blackhole": ("cut", SECONDS, "both"),
    "reset": ("reset", 0.0, ""),
    "delay": ("storm", SECONDS, ""),
}
ENGINE = "0/2"
ENGINE_WAYS = {"blackhole": ("deaf", 0.0), "reset": ("frontend_kill", 0.0), "delay": ("slow", 0.7)}


def story(phase: str, *troubles: Event) -> Scenario:
    """Rank 1 dies, and at the phase these things happen. Rank 3 is not ready at first."""
    job = Job(pods=(Pod((0, 1)), Pod((2, 3))), detection=1.0, round_time=1.0)
    at = {"after": phase, "at": 9.0} if phase else {"at": 10.1}
    events = (msgspec.structs.replace(each, **at) for each in troubles)
    return Scenario(0, (job,), (*events, DEATH, NOT_READY), Config(store_lease=4.0, ttl=8.0), calm_at=40.0)


def cut(path: str, way: str) -> Event:
    kind, seconds, direction = WAYS[way]
    return Event(0.0, kind, path, seconds, direction)


def wrong(phase: str, *troubles: Event) -> list[str]:
    """What broke; that the phase was never come to as well."""
    result = simulate(story(phase, *troubles))
    missed = {event.kind for event in troubles} - {event.kind for event in result.happened}
    return [*map(str, result.broken), *(f"{kind} did not happen" for kind in sorted(missed))]


@pytest.mark.parametrize(("phase", "path"), [*product(PHASES, PATHS)])
def test_a_cut_between_daemons(phase: str, path: str) -> None:
    found = {way: text for way in WAYS if (text := wrong(phase, cut(path, way)))}
    assert not found


@pytest.mark.parametrize("phase", PHASES)
def test_a_cut_between_a_node_manager_and_an_engine(phase: str) -> None:
    heal = Event(0.0, "frontend_restore", ENGINE, delay=SECONDS)
    troubles = {way: Event(0.0, kind, ENGINE, value) for way, (kind, value) in ENGINE_WAYS.items()}
    found = {way: text for way, trouble in troubles.items() if (text := wrong(phase, trouble, heal))}
    assert not found
