"""Makes a failing scenario short: what the failure does not need is left out."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from tests.simulation.run import simulate
from tests.simulation.scenario import Config, Job, Scenario

T = TypeVar("T", Config, Job)
Fails = Callable[[Scenario], bool]


def fails_as(scenario: Scenario) -> Fails:
    """The test that a shorter scenario must fail: the same rule breaks."""
    rules = {broken.rule for broken in simulate(scenario).broken}

    def fails(candidate: Scenario) -> bool:
        return any(broken.rule in rules for broken in simulate(candidate).broken)

    return fails


def shrink(scenario: Scenario, fails: Fails) -> Scenario:
    """The shortest that is found; every step of the way fails too."""
    shorter: Scenario | None = scenario
    while shorter is not None:
        scenario = shorter
        shorter = next((each for each in _shorter(scenario) if each != scenario and fails(each)), None)
    return scenario


def _shorter(scenario: Scenario) -> Iterator[Scenario]:
    """Candidates, the boldest first."""
    replace = msgspec.structs.replace
    events = scenario.events
    for size in (len(events) // 2, 1):
        for begin in range(0, len(events) if size else 0, size or 1):
            yield replace(scenario, events=events[:begin] + events[begin + size :])
    last = len(scenario.jobs) - 1
    if last and not any(f"{last}/" in event.who for event in events):
        yield replace(scenario, jobs=scenario.jobs[:last])
    yield replace(scenario, controllers=1)
    yield replace(scenario, coordinators=1)
    yield replace(scenario, config=Config())
    yield from (replace(scenario, config=each) for each in _plainer(scenario.config, Config()))
    for number, job in enumerate(scenario.jobs):
        for each in _plainer(job, Job(job.pods)):
            yield replace(scenario, jobs=(*scenario.jobs[:number], each, *scenario.jobs[number + 1 :]))
    yield replace(scenario, delay=0.002, jitter=0.003)


def _plainer(value: T, plain: T) -> Iterator[T]:
    """One field after the other as it is by default."""
    for name in value.__struct_fields__:
        if getattr(value, name) != getattr(plain, name):
            yield msgspec.structs.replace(value, **{name: getattr(plain, name)})
