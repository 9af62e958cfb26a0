"""Random histories: whatever happens in one, every rule of the oracle holds, and every incident ends."""

from collections import Counter

import pytest

from tests.simulation.census import kinds
from tests.simulation.run import simulate
from tests.simulation.scenario import scenario

SEEDS = 160
BATCH = 10
TRIED = """
rank death, second death, healing, freeze, idle survivors, deaf, frontend_kill, slow, says, restart, step_exception
hardware before the death, hardware after the death, hardware and never a death, hardware unmappable
message delay, message loss, message duplication, messages out of order, reply loss, reset
partition, partition of one direction (there), partition of one direction (back)
controller crash and restart at some await, stop_process
node crash and restart at some await, reboot, disk_broken
store failure, store: unknown outcome, leader change, clock step, coordinator_restart, adapter_restart
configuration: scale_down off, configuration: fast_recovery on, configuration: scale_up on, several instances
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_every_rule_holds(first: int) -> None:
    """``scripts/simulate --seed S --trace`` shows the history of one."""
    broken = {
        seed: result.broken for seed in range(first, first + BATCH) if (result := simulate(scenario(seed))).broken
    }
    assert not broken, "\n".join(f"seed {seed}: {each}" for seed, rules in broken.items() for each in rules)


def test_everything_is_tried() -> None:
    """Every kind of fault is in one of these histories."""
    seen = Counter(kind for story in map(scenario, range(SEEDS)) for kind in set(kinds(story, story.events)))
    wanted = {kind for line in TRIED.split("\n") for kind in line.split(", ") if kind}
    assert not {kind for kind in wanted if not seen[kind]}
