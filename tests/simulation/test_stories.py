"""Stories come to what they are told for, and no rule is broken in them."""

import pytest

from tests.simulation.run import simulate
from tests.simulation.stories import STORIES


@pytest.mark.parametrize("name", STORIES)
def test_a_story(name: str) -> None:
    scenario, says = STORIES[name]
    result = simulate(scenario, verbose=True)
    assert result.broken == []
    assert any(says in line for line in result.lines)
