"""What is remembered: welcome, finalize, retirement, answers."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from motor_ft.model.command import Command, freeze_plan
from motor_ft.model.engine import Instruction
from motor_ft.model.errors import FtError, Reason
from nodemanager.core.applies import ApplyOrder
from nodemanager.core.guard import BootTime, take
from nodemanager.core.state import (
    KEPT_ANSWERS,
    RELAUNCH,
    Answer,
    EngineProcess,
    NodeState,
    admit,
    answered,
    began,
    check_not_ended,
    check_sending,
    finalized,
    guarded,
    intended,
    replay,
    stopped,
    welcomed,
)

A = Command(7, "a", 5, 3)
NOW = BootTime("boot", 100)
OWN = frozenset({0, 1})
PLAN = freeze_plan(7, 3, frozenset({1, 2}), {0: "e0", 3: "e3"})


def guarded_state() -> NodeState:
    state = welcomed(NodeState(), 7, 5, 2, scale_down_on=True)
    return guarded(state, take(None, A, 10.0, PLAN, NOW))


def finalize(
    state: NodeState, command: Command = A, *, commit: bool = True, retired: tuple[int, ...] = (1,)
) -> NodeState:
    return finalized(state, command, commit=commit, retired=retired, own=OWN, now=NOW)


def test_commit_retires_and_lifts_the_guard() -> None:
    state = finalize(guarded_state())
    assert (state.guard, state.retired, state.ended) == (None, frozenset({1}), "a")


def test_a_commit_that_is_repeated_changes_nothing() -> None:
    """The process may have been killed between the commit and its answer; an abort is not owed one."""
    state = finalize(guarded_state())
    assert finalize(state) == state
    for retired, commit in (((0,), True), ((), False)):
        with pytest.raises(FtError) as caught:
            finalize(state, commit=commit, retired=retired)
        assert caught.value.reason is Reason.GUARD_REQUIRED


def test_a_pod_whose_engines_are_new_takes_no_part_any_more_in_a_transaction_that_meant_others() -> None:
    """Neither is its guard renewed, nor is a commit accepted, or answered as before; what is retired stays so."""
    old, new = {0: EngineProcess("old")}, {0: EngineProcess("new")}
    relaunch = Answer(RELAUNCH, "7/3", "", b"")
    held = replace(guarded_state(), engines=old, engine_starts=1, ready=True)
    for before in (held, finalize(held)):
        known = replace(before, answers=(relaunch, Answer("Finalize", "7/a", "hash", b"ok")))
        assert began(known, old, 1) == known
        state = began(known, new, 2)
        with pytest.raises(FtError, match="has ended here"):
            check_not_ended(state, A)
        with pytest.raises(FtError) as caught:
            finalize(state)
        assert caught.value.reason is Reason.GUARD_REQUIRED
        assert (state.ready, state.engines, state.answers) == (False, new, (relaunch,))
        assert state.retired == before.retired


def test_abort_thaws_and_retires_nothing() -> None:
    state = finalize(guarded_state(), commit=False, retired=())
    assert (state.guard, state.retired) == (None, frozenset())


@pytest.mark.parametrize(
    ("command", "commit", "retired", "reason"),
    [
        (replace(A, request_id="b"), True, (1,), Reason.STALE_REQUEST_ID),
        (A, True, (1, 2), Reason.UNKNOWN_RANK),
        (A, True, (0, 1), Reason.PLAN_MISMATCH),
        (A, False, (1,), Reason.INVALID_REQUEST),
    ],
)
def test_a_refused_finalize_retires_and_thaws_nothing(
    command: Command, commit: bool, retired: tuple[int, ...], reason: Reason
) -> None:
    state = guarded_state()
    with pytest.raises(FtError) as caught:
        finalize(state, command, commit=commit, retired=retired)
    assert caught.value.reason is reason
    assert state == guarded_state()


def test_retirement_only_grows_until_a_new_instance() -> None:
    state = finalize(guarded_state())
    second = replace(A, request_id="b", generation=4)
    state = guarded(state, take(None, second, 10.0, None, NOW))
    state = finalize(state, second, retired=(0,))
    assert state.retired == {0, 1}
    same_instance = welcomed(state, 7, 6, 4, scale_down_on=True)
    assert same_instance.retired == {0, 1}
    new_instance = welcomed(state, 8, 6, 1, scale_down_on=True)
    assert (new_instance.retired, new_instance.guard, new_instance.ended) == (frozenset(), None, "")


def test_what_is_remembered_does_not_grow_with_the_instances_that_a_pod_was_in() -> None:
    state = guarded_state()
    for instance_id in range(8, 20):
        state = welcomed(state, instance_id, 5, 1, scale_down_on=True)
    assert (state.fence.epoch, dict(state.fence.generations)) == (5, {19: (5, 1)})
    with pytest.raises(FtError) as caught:
        admit(state, A)
    assert caught.value.reason is Reason.UNKNOWN_INSTANCE


def test_a_late_guard_does_not_reopen_a_finalized_transaction() -> None:
    with pytest.raises(FtError) as caught:
        check_not_ended(finalize(guarded_state()), A)
    assert caught.value.reason is Reason.STALE_REQUEST_ID


def test_a_controller_behind_the_highest_epoch_is_not_known() -> None:
    with pytest.raises(FtError) as caught:
        welcomed(guarded_state(), 7, 4, 9, scale_down_on=True)
    assert caught.value.reason is Reason.STALE_EPOCH


def test_a_command_about_another_instance_is_refused() -> None:
    admit(guarded_state(), A)
    for state in (NodeState(), welcomed(NodeState(), 8, 5, 1, scale_down_on=True)):
        with pytest.raises(FtError) as caught:
            admit(state, A)
        assert caught.value.reason is Reason.UNKNOWN_INSTANCE


STEPS: dict[str, Callable[[NodeState], NodeState]] = {
    "guard": lambda state: guarded(state, take(state.guard, A, 10.0, PLAN, NOW)),
    "apply": lambda state: intended(state, A, ApplyOrder(Instruction.SCALE_DOWN, (0,), PLAN.removed)),
    "finalize": finalize,
    "stop": lambda state: stopped(state, A),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("instance_id", "epoch", "generation", "reason"),
    [
        (7, 6, 3, Reason.STALE_EPOCH),
        (7, 5, 4, Reason.STALE_GENERATION),
        (8, 5, 1, Reason.UNKNOWN_INSTANCE),
    ],
)
def test_a_welcome_that_comes_between_arrival_and_write_of_a_command_ends_it(
    step: str, instance_id: int, epoch: int, generation: int, reason: Reason
) -> None:
    """A former leader is fenced from the moment its successor's epoch is durable, not from the next command on."""
    admit(guarded_state(), A)
    state = welcomed(guarded_state(), instance_id, epoch, generation, scale_down_on=True)
    with pytest.raises(FtError) as caught:
        STEPS[step](state)
    assert caught.value.reason is reason


def test_an_order_may_leave_only_while_its_transaction_holds_the_guard() -> None:
    state = guarded_state()
    check_sending(state, A, NOW)
    overtaken = welcomed(state, 7, 6, 3, scale_down_on=True)
    for other, now, reason in (
        (finalize(state, commit=False, retired=()), NOW, Reason.GUARD_REQUIRED),
        (replace(state, guard=take(None, replace(A, request_id="b"), 10.0, None, NOW)), NOW, Reason.STALE_REQUEST_ID),
        (state, BootTime("boot", 110), Reason.GUARD_EXPIRED),
        (overtaken, NOW, Reason.STALE_EPOCH),
    ):
        with pytest.raises(FtError) as caught:
            check_sending(other, A, now)
        assert caught.value.reason is reason


def test_an_unfenced_order_leaves_with_the_fence_that_stands_in_for_its_own() -> None:
    rest = replace(A, epoch=None, generation=None)
    state = replace(guarded_state(), guard=take(None, rest, 10.0, None, NOW))
    check_sending(state, A, NOW)
    with pytest.raises(FtError) as caught:
        check_sending(state, replace(A, request_id="b"), NOW)
    assert caught.value.reason is Reason.STALE_REQUEST_ID


def test_the_first_answer_comes_again_and_only_for_the_same_request() -> None:
    state = answered(NodeState(), A, Answer("Apply", "a", "hash", b"first"))
    assert replay(state, "Apply", "a", "hash") == b"first"
    assert replay(state, "Finalize", "a", "hash") is None
    with pytest.raises(FtError) as caught:
        replay(state, "Apply", "a", "other")
    assert caught.value.reason is Reason.REQUEST_ID_REUSED


def test_answers_are_bounded() -> None:
    state = NodeState()
    for number in range(KEPT_ANSWERS + 1):
        state = answered(state, A, Answer("Apply", str(number), "", b""))
    assert len(state.answers) == KEPT_ANSWERS
    assert replay(state, "Apply", "0", "") is None
