"""One scenario from its begin to its end."""

import gc
from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.loop import DeadlockError, SimLoop
from tests.simulation.patches import patched
from tests.simulation.rules.facts import Broken
from tests.simulation.scenario import Event, Scenario
from tests.simulation.trace import Trace
from tests.simulation.world import World


@dataclass
class Result:
    """How a run went."""

    digest: str
    seconds: float
    steps: int
    broken: list[Broken]
    lines: list[str]
    happened: list[Event]
    counts: Counter[str] = field(default_factory=Counter)


def simulate(scenario: Scenario, *, verbose: bool = False) -> Result:
    """Run it; what went wrong is in the result."""
    gc.freeze()  # else the collection at the end walks over everything that was ever imported
    loop = SimLoop()  # type: ignore[abstract]  # it has all that is asked of it
    trace = Trace(verbose=verbose)
    world = World(scenario, loop, trace)
    facts = world.oracle.facts
    with patched(world):
        try:
            loop.run(world.run())
        except DeadlockError as error:
            facts.break_rule("no deadlock", str(error))
        finally:
            loop.close()
    gc.collect()
    return Result(
        trace.digest,
        loop.time(),
        loop.steps,
        facts.broken,
        trace.lines,
        world.happenings.happened,
        facts.counts,
    )
