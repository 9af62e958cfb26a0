"""Random histories: whatever happens in one, every rule of the oracle holds, and every incident ends."""

import pytest

from tests.simulation.run import simulate
from tests.simulation.scenario import scenario

SEEDS = 1000
BATCH = 10


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_every_rule_holds(first: int) -> None:
    """``scripts/simulate --seed S --trace`` shows the history of one."""
    broken = {
        seed: result.broken for seed in range(first, first + BATCH) if (result := simulate(scenario(seed))).broken
    }
    assert not broken, "\n".join(f"seed {seed}: {each}" for seed, rules in broken.items() for each in rules)
