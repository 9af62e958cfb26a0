"""Histories in which a rule was broken once, made short: it holds in them now."""

from pathlib import Path

import pytest

from tests.simulation.run import simulate
from tests.simulation.scenario import Scenario, load, scenario, store
from tests.simulation.shrink import shrink

CASES = sorted(Path(__file__).parent.glob("cases/*.json"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_what_was_repaired_stays_repaired(file: Path) -> None:
    assert simulate(load(file)).broken == []


def test_a_scenario_that_was_stored_is_the_same(tmp_path: Path) -> None:
    store(tmp_path / "case.json", scenario(5))
    assert load(tmp_path / "case.json") == scenario(5)


def test_what_a_failure_does_not_need_is_left_out() -> None:
    def fails(candidate: Scenario) -> bool:
        return "engine_kill" in {event.kind for event in candidate.events}

    long = next(each for each in map(scenario, range(100)) if fails(each) and len(each.events) > 4)
    short = shrink(long, fails)
    assert [event.kind for event in short.events] == ["engine_kill"]
    assert (short.controllers, short.coordinators, len(short.jobs)) <= (1, 1, len(long.jobs))
