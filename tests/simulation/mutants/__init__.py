"""Deliberate bugs: the rules of the simulation must notice every one of them."""

from tests.simulation.mutants import controller, found, node_manager
from tests.simulation.mutants.mutant import Mutant

MUTANTS: dict[str, Mutant] = {
    mutant.put.__name__: mutant for mutant in (*controller.MUTANTS, *node_manager.MUTANTS, *found.MUTANTS)
}
"""By what is wrong."""
