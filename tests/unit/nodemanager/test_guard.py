"""The lease of a transaction: one holder, counted on the boot clock."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motor_ft.model.command import Command, ScaleDownPlan, freeze_plan
from motor_ft.model.errors import FieldError, FtError, Reason
from nodemanager.core.guard import BootTime, Guard, check_apply, check_finalize, take

A = Command(7, "a", 5, 3)
B = Command(7, "b", 5, 4)
REST = Command(7, "rest", None, None)
PLAN = freeze_plan(7, 3, frozenset({1}), {0: "e0", 2: "e2"})


def at(seconds: float, boot_id: str = "boot") -> BootTime:
    return BootTime(boot_id, seconds)


def held(by: Command = A, lease: float = 10.0, plan: ScaleDownPlan | None = None) -> Guard:
    """A guard taken at second 100."""
    return take(None, by, lease, plan, at(100))


def refuses(reason: Reason) -> pytest.RaisesExc[FtError]:
    return pytest.RaisesExc(FtError, check=lambda error: error.reason is reason)


def test_the_same_id_renews_from_now() -> None:
    assert take(held(), A, 20.0, None, at(105)).deadline == 125


def test_another_id_is_refused_while_live_and_told_who_holds_it() -> None:
    with refuses(Reason.GUARD_HELD) as caught:
        take(held(), B, 10.0, None, at(107.5))
    assert caught.value.metadata == {"holder": "a", "remaining": "2.500"}


def test_another_id_may_take_it_after_expiry() -> None:
    assert take(held(), B, 10.0, None, at(110)).holder == B


def test_a_reboot_ends_the_lease_a_process_restart_does_not() -> None:
    assert held().live(at(109.9))
    assert not held().live(at(1, "another boot"))


@pytest.mark.parametrize("lease", [0.0, -1.0, 3600.001, math.nan, math.inf])
def test_a_lease_outside_its_bounds_is_refused(lease: float) -> None:
    with pytest.raises(FieldError) as caught:
        held(lease=lease)
    assert "3600" in caught.value.violations["lease"]


def test_the_longest_lease_is_accepted() -> None:
    assert held(lease=3600.0).live(at(3699.9))


def test_unfenced_never_displaces_a_live_fenced_guard_not_even_with_its_id() -> None:
    for command in (REST, Command(7, "a", None, None)):
        with refuses(Reason.GUARD_HELD):
            take(held(), command, 10.0, None, at(101))
    same_id = Command(7, "a", None, None)
    with refuses(Reason.GUARD_HELD):
        check_apply(held(), same_id, "", at(101))
    with refuses(Reason.GUARD_HELD):
        check_finalize(held(), same_id, commit=True, now=at(101))


def test_fenced_takes_a_live_guard_from_unfenced_which_has_lost_it_then() -> None:
    guard = take(held(REST, lease=3600.0), A, 10.0, PLAN, at(101))
    assert (guard.holder, guard.plan, guard.deadline) == (A, PLAN, 111)
    with refuses(Reason.STALE_REQUEST_ID):
        check_apply(guard, REST, "", at(102))
    with refuses(Reason.GUARD_HELD):
        take(guard, REST, 10.0, None, at(102))


def test_unfenced_does_not_take_it_from_unfenced() -> None:
    with refuses(Reason.GUARD_HELD):
        take(held(REST), replace(REST, request_id="another"), 10.0, None, at(101))


def test_unfenced_works_where_nobody_fenced_holds_it() -> None:
    guard = held(REST)
    assert check_apply(guard, REST, "", at(101)) == guard
    assert check_finalize(guard, REST, commit=False, now=at(101)) == guard


def test_a_plan_stays_attached_and_cannot_change() -> None:
    guard = replace(take(held(), A, 10.0, PLAN, at(101)), dp_store_port=29600)
    renewed = take(guard, A, 10.0, None, at(105))
    assert (renewed.plan, renewed.dp_store_port, renewed.deadline) == (PLAN, 29600, 115)
    other = freeze_plan(7, 3, frozenset({2}), {0: "e0"})
    with refuses(Reason.PLAN_MISMATCH):
        take(renewed, A, 10.0, other, at(106))


def test_a_plan_is_hashed_again_with_instance_and_generation() -> None:
    for wrong in (replace(PLAN, plan_hash="0" * 64), replace(PLAN, removed=(1, 3))):
        with refuses(Reason.PLAN_MISMATCH):
            held(plan=wrong)
    with refuses(Reason.PLAN_MISMATCH):
        held(B, plan=PLAN)


def test_an_unfenced_guard_has_no_plan() -> None:
    with pytest.raises(FieldError):
        held(REST, plan=PLAN)


def test_apply_needs_the_live_guard_of_this_id_epoch_generation_and_plan() -> None:
    guard = held(plan=PLAN)
    assert check_apply(guard, A, PLAN.plan_hash, at(109.9)) == guard
    with refuses(Reason.GUARD_REQUIRED):
        check_apply(None, A, PLAN.plan_hash, at(101))
    with refuses(Reason.STALE_REQUEST_ID):
        check_apply(guard, B, PLAN.plan_hash, at(101))
    with refuses(Reason.STALE_REQUEST_ID):
        check_apply(guard, replace(A, epoch=6), PLAN.plan_hash, at(101))
    with refuses(Reason.GUARD_EXPIRED):
        check_apply(guard, A, PLAN.plan_hash, at(110))
    with refuses(Reason.PLAN_MISMATCH):
        check_apply(guard, A, "", at(101))


def test_commit_is_accepted_late_abort_is_not() -> None:
    assert check_finalize(held(), A, commit=True, now=at(500)) == held()
    with refuses(Reason.GUARD_EXPIRED):
        check_finalize(held(), A, commit=False, now=at(110))


def test_a_late_commit_is_stale_once_another_id_took_over() -> None:
    taken_over = take(held(), B, 10.0, None, at(110))
    with refuses(Reason.STALE_REQUEST_ID):
        check_finalize(taken_over, A, commit=True, now=at(111))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([A, B, REST]),
            st.floats(min_value=0, max_value=5),
            st.floats(min_value=0.1, max_value=8),
        ),
        max_size=30,
    )
)
def test_a_holder_keeps_the_guard_until_its_lease_is_over(steps: list[tuple[Command, float, float]]) -> None:
    """Whatever arrives in whatever order: only the end of a lease lets another id in, but a fenced one over REST."""
    guard: Guard | None = None
    now = 0.0
    for command, pause, lease in steps:
        now += pause
        try:
            taken = take(guard, command, lease, None, at(now))
        except FtError:
            assert guard
            assert guard.live(at(now))
            assert guard.holder != command
            assert guard.holder != REST
            continue
        assert not guard or guard.holder in (command, REST) or not guard.live(at(now))
        assert taken.remaining(at(now)) == pytest.approx(lease)
        guard = taken
