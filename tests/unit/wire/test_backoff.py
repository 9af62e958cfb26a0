"""Pauses grow to a maximum, differ between peers and start again after a success."""

from hypothesis import given
from hypothesis import strategies as st

from motor_ft.wire.backoff import Backoff


def test_pauses_grow_up_to_the_maximum_and_start_again() -> None:
    backoff = Backoff(1.0, 5.0, 2.0, rng=lambda: 0.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next() == 1.0


@given(st.floats(0, 1, exclude_max=True))
def test_chance_shortens_a_pause_by_at_most_half(chance: float) -> None:
    assert 0.5 <= Backoff(1.0, 5.0, 2.0, rng=lambda: chance).next() <= 1.0
