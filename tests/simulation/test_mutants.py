"""Every deliberate bug is noticed, and only the bug is: its scene breaks no rule without it."""

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.run import simulate


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_dies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    assert simulate(mutant.scene).broken == []
    mutant.put(monkeypatch)
    assert mutant.rule in {broken.rule for broken in simulate(mutant.scene).broken}
