"""Brings an instance back whose ranks are all UNHEALTHY and none of them dead (RFC section 4.3, recovery.md section 8).

Guards, fresh readings, withdrawal and the SCALING_DOWN write come before it and a single order is sent, all as in a
scale-down; what is told to every active rank is ``retry``. Nobody is retired, so the guards are given back and the
instance returns to the phase before. A failure is left to the fallback, never to a scale-down. A rank that turns out to
be dead or healthy before anything was sent cancels it: it was not this strategy's case, and nothing has happened yet.
"""

from controller.strategies.transaction import TransactionStrategy
from motor_ft.model.engine import Instruction


class FastRecoveryStrategy(TransactionStrategy):
    """Every active rank is told to ``retry``."""

    name = "fast_recovery"
    instruction = Instruction.RETRY
