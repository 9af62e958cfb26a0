"""What ``scripts/soak`` calls a leak."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count

import pytest

from scripts.endurance.leaks import LIMITS, Limit, Sample, growth, judge

LIMIT = Limit(10, 0.1)
NOISE = random.Random(1)


def noisy(values: Sequence[float]) -> list[float]:
    """Now and then far above, as while a recovery runs."""
    return [value + NOISE.uniform(0, 5) + (200 if NOISE.random() < 0.1 else 0) for value in values]


@pytest.mark.parametrize(
    ("what", "values", "leaks"),
    [
        ("flat", [100] * 200, False),
        ("grows all the time", [100 + each / 5 for each in range(200)], True),
        ("grows in steps", [100 + each // 40 * 10 for each in range(200)], True),
        ("grows while it warms up", [100 + min(each, 50) for each in range(200)], False),
        ("fills a cache, and then rests", [100 + min(each, 100) / 2 for each in range(200)], False),
        ("grows less than noise", [100 + each / 40 for each in range(200)], False),
        ("grows less than its part of what there is", [10_000 + each for each in range(200)], False),
        ("shrinks", [300 - each for each in range(200)], False),
    ],
)
def test_what_grows_and_goes_on_growing_leaks(what: str, values: list[float], leaks: bool) -> None:
    """Whatever single values are."""
    found = growth(noisy(values), LIMIT)
    assert found is not None
    assert found.leaks is leaks, what


def test_too_few_values_are_not_judged() -> None:
    assert growth([0, 1000] * 7, LIMIT) is None


def samples(name: str, lives: int, seconds: int, **grows: float) -> list[Sample]:
    """One a second of each life; a quantity grows by so much every second, of all lives together."""
    at, found = count(), []
    for life in range(lives):
        for _ in range(seconds):
            now = next(at)
            values = {quantity: int(100 * 2**20 + now * grows.get(quantity, 0)) for quantity in LIMITS}
            found.append(Sample(at=now, name=name, life=life, **values))
    return found


@pytest.mark.parametrize("quantity", LIMITS)
def test_a_leak_of_a_process_that_lives_long_is_found(quantity: str) -> None:
    """And of nothing else."""
    leaky, flat = judge([*samples("leaky", 1, 600, **{quantity: 2**20}), *samples("sound", 1, 600)])
    assert (leaky.name, leaky.leaks, flat.leaks, flat.judged) == ("leaky", [quantity], [], True)


def test_what_every_life_inherits_from_the_one_before_is_found() -> None:
    """Lives that are too short to be judged by themselves."""
    (found,) = judge(samples("pod", 40, 10, rss=2**19))
    assert (found.lives, found.within, found.leaks) == (40, {}, ["rss"])


def test_a_process_that_lived_too_short_is_said_to_be_unjudged() -> None:
    (found,) = judge(samples("pod", 1, 30, rss=2**24))
    assert (found.judged, found.leaks) == (False, [])
