"""Removes the dead ranks of an instance; the survivors go on (RFC section 5)."""

from controller.strategies.transaction import TransactionStrategy
from motor_ft.model.engine import Instruction


class DpScaleDownStrategy(TransactionStrategy):
    """The survivors are told to ``scale_down``."""

    name = "dp_scale_down"
    instruction = Instruction.SCALE_DOWN
