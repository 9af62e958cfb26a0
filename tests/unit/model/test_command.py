"""One plan per transaction, hashed so that every hop can check it (protocol.md section 3)."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motor_ft.model.command import MAX_REQUEST_ID_LENGTH, freeze_plan, hash_plan, valid_request_id

SURVIVORS = {2: "e2", 0: "e0"}


def test_a_plan_is_ordered_and_names_its_lowest_survivor() -> None:
    plan = freeze_plan(7, 3, frozenset({3, 1}), {2: "e2", 10: "e10"})
    assert plan.removed == (1, 3)
    assert plan.survivors == ((2, "e2"), (10, "e10"))
    assert plan.lowest_survivor == 2


def test_a_plan_without_a_survivor_or_with_a_rank_on_both_sides_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a survivor"):
        freeze_plan(7, 3, frozenset({1}), {})
    with pytest.raises(ValueError, match=r"ranks \[2\] are both"):
        freeze_plan(7, 3, frozenset({1, 2}), SURVIVORS)


def test_the_hash_is_the_same_for_every_hop_and_every_version() -> None:
    """SHA-256 over this JSON text: a change would make daemons of two versions refuse each other."""
    text = '[7,3,[1],[[0,"e0"],[2,"e2"]]]'
    plan = freeze_plan(7, 3, frozenset({1}), SURVIVORS)
    assert plan.plan_hash == hashlib.sha256(text.encode()).hexdigest()
    assert plan.plan_hash == hash_plan(7, 3, plan.removed, plan.survivors)


PLANS = st.tuples(
    st.integers(0, 2),
    st.integers(0, 2),
    st.frozensets(st.integers(4, 6)),
    st.dictionaries(st.integers(0, 3), st.sampled_from(["a", "b", '",', "é"]), min_size=1),
)


@given(PLANS, PLANS)
def test_two_plans_share_a_hash_exactly_when_they_are_the_same_command(
    one: tuple[int, int, frozenset[int], dict[int, str]], other: tuple[int, int, frozenset[int], dict[int, str]]
) -> None:
    assert (freeze_plan(*one).plan_hash == freeze_plan(*other).plan_hash) is (one == other)


@pytest.mark.parametrize("text", ["a", "~ !", "x" * MAX_REQUEST_ID_LENGTH, "3f1c6e1e-0d4b-4c40-9d7e-0d6d0b1f7a11"])
def test_request_ids_of_printable_ascii_are_valid(text: str) -> None:
    assert valid_request_id(text)


@pytest.mark.parametrize("text", ["", "x" * (MAX_REQUEST_ID_LENGTH + 1), "é", "a\n", "a\x00", "a\tb", "\x7f"])
def test_other_request_ids_are_not(text: str) -> None:
    assert not valid_request_id(text)
