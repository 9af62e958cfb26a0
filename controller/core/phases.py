"""Phases of the recovery of one instance and the only legal moves between them (RFC section 3.1)."""

from enum import StrEnum


class Phase(StrEnum):
    """``DISABLED`` is only reported, never stored."""

    DISABLED = "DISABLED"
    NORMAL = "NORMAL"
    DECIDING = "DECIDING"
    WAITING_ENGINE_FAULT = "WAITING_ENGINE_FAULT"
    SCALING_DOWN = "SCALING_DOWN"
    POST_SCALE_CLEANUP = "POST_SCALE_CLEANUP"
    SCALED_DOWN_RUNNING = "SCALED_DOWN_RUNNING"
    RECONFIGURING = "RECONFIGURING"


STABLE = frozenset({Phase.NORMAL, Phase.SCALED_DOWN_RUNNING})

MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.NORMAL: frozenset({Phase.DECIDING, Phase.RECONFIGURING}),
    Phase.SCALED_DOWN_RUNNING: frozenset({Phase.DECIDING, Phase.RECONFIGURING}),
    Phase.DECIDING: frozenset(
        {
            Phase.WAITING_ENGINE_FAULT,
            Phase.SCALING_DOWN,
            Phase.RECONFIGURING,
            Phase.NORMAL,
            Phase.SCALED_DOWN_RUNNING,
        }
    ),
    Phase.WAITING_ENGINE_FAULT: frozenset(
        {
            Phase.SCALING_DOWN,
            Phase.RECONFIGURING,
            Phase.NORMAL,
            Phase.SCALED_DOWN_RUNNING,
        }
    ),
    # Back to the stable phase before: a fast recovery, which removes nobody.
    Phase.SCALING_DOWN: frozenset({Phase.POST_SCALE_CLEANUP, Phase.RECONFIGURING}) | STABLE,
    Phase.POST_SCALE_CLEANUP: frozenset({Phase.SCALED_DOWN_RUNNING}),
    Phase.RECONFIGURING: frozenset({Phase.NORMAL, Phase.SCALED_DOWN_RUNNING}),
}

WINDOW = frozenset(
    {
        Phase.DECIDING,
        Phase.WAITING_ENGINE_FAULT,
        Phase.SCALING_DOWN,
        Phase.POST_SCALE_CLEANUP,
    }
)
"""The transaction window: partial-loss handling is suppressed in it."""

INTERRUPTED = frozenset({Phase.DECIDING, Phase.WAITING_ENGINE_FAULT, Phase.SCALING_DOWN})


class IllegalMoveError(RuntimeError):
    """A move that the table does not have: a defect of ours, never a state of the fleet."""


def move(current: Phase, target: Phase) -> Phase:
    """Return ``target`` when the table allows it (staying is always allowed); raise IllegalMoveError otherwise."""
    if current is target or target in MOVES.get(current, frozenset()):
        return target
    raise IllegalMoveError(f"{current} may not become {target}")


def restored(stored: Phase) -> Phase:
    """Where a transaction goes on that has left this phase of the WINDOW behind: apply is never replayed (RFC section
    5)."""
    return Phase.SCALED_DOWN_RUNNING if stored is Phase.POST_SCALE_CLEANUP else Phase.RECONFIGURING
