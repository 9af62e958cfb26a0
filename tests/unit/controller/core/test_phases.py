"""The phase table is exactly that of recovery.md section 3 with the way back of section 8, and other moves raise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.phases import INTERRUPTED, MOVES, STABLE, WINDOW, IllegalMoveError, Phase, move, restored

N, D, W, S, P, R, X = (
    Phase.NORMAL,
    Phase.DECIDING,
    Phase.WAITING_ENGINE_FAULT,
    Phase.SCALING_DOWN,
    Phase.POST_SCALE_CLEANUP,
    Phase.SCALED_DOWN_RUNNING,
    Phase.RECONFIGURING,
)
LEGAL = {
    (N, D), (N, X), (R, D), (R, X),
    (D, W), (D, S), (D, X), (D, N), (D, R),
    (W, S), (W, X), (W, N), (W, R),
    (S, P), (S, X), (S, N), (S, R),
    (P, R),
    (X, N), (X, R),
}  # fmt: skip


@given(st.sampled_from(Phase), st.sampled_from(Phase))
def test_a_move_is_legal_exactly_when_the_table_of_the_specification_has_it(current: Phase, target: Phase) -> None:
    if current is target or (current, target) in LEGAL:
        assert move(current, target) is target
    else:
        with pytest.raises(IllegalMoveError, match=f"{current} may not become {target}"):
            move(current, target)


def test_disabled_is_never_entered_and_never_left() -> None:
    assert Phase.DISABLED not in MOVES
    assert all(Phase.DISABLED not in targets for targets in MOVES.values())


@given(st.lists(st.sampled_from(Phase)))
def test_no_path_leads_from_scaling_down_back_to_deciding_without_a_stable_phase(path: list[Phase]) -> None:
    """One transaction applies at most once: after SCALING_DOWN the next DECIDING belongs to another one."""
    current, armed = Phase.NORMAL, False
    for target in path:
        try:
            current = move(current, target)
        except IllegalMoveError:
            continue
        armed = current is Phase.SCALING_DOWN or (armed and current not in STABLE)
        assert not (armed and current is Phase.DECIDING)


@pytest.mark.parametrize(
    ("stored", "goes_on"),
    [
        (D, X),
        (W, X),
        (S, X),
        (P, R),
    ],
)
def test_an_interrupted_transaction_is_reconfigured_and_never_replayed(stored: Phase, goes_on: Phase) -> None:
    assert restored(stored) is goes_on


def test_restoring_never_lands_inside_the_transaction_window() -> None:
    assert not any(restored(phase) in WINDOW for phase in WINDOW)
    assert INTERRUPTED < WINDOW
    assert not WINDOW & STABLE
