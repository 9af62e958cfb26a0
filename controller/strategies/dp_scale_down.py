"""Removes the dead ranks of an instance; the survivors go on (RFC section 5)."""

from controller.strategies.transaction import TransactionStrategy


class DpScaleDownStrategy(TransactionStrategy):
    """The transaction of ``scale_down``."""

    name = "dp_scale_down"
