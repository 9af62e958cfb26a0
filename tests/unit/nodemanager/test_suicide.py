"""A pod ends itself after five abnormal rounds, unless something freezes it."""

import pytest

from nodemanager.core.suicide import ABNORMAL_ROUNDS, FreezeSource, Suicide


def after(suicide: Suicide, rounds: int, *, abnormal: bool = True, frozen: tuple[FreezeSource, ...] = ()) -> Suicide:
    for _ in range(rounds):
        suicide = suicide.after(abnormal=abnormal, frozen=frozen)
    return suicide


def test_five_consecutive_abnormal_rounds_are_due() -> None:
    assert not after(Suicide(enabled=True), ABNORMAL_ROUNDS - 1).due
    assert after(Suicide(enabled=True), ABNORMAL_ROUNDS).due


def test_a_normal_round_starts_the_count_anew() -> None:
    nearly = after(Suicide(enabled=True), ABNORMAL_ROUNDS - 1)
    assert not after(after(nearly, 1, abnormal=False), ABNORMAL_ROUNDS - 1).due


@pytest.mark.parametrize("source", FreezeSource)
def test_every_source_freezes_alone(source: FreezeSource) -> None:
    assert not after(Suicide(enabled=True), 100, frozen=(source,)).due


def test_without_something_that_restarts_the_pod_it_never_ends_itself() -> None:
    assert not after(Suicide(enabled=False), 100).due
