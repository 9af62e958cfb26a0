"""The histories that ``scripts/test`` runs have every kind of fault in them."""

from collections import Counter

from tests.simulation.census import kinds
from tests.simulation.damage import DAMAGES
from tests.simulation.scenario import AGAIN, CONSOLE, GATEWAY, IN_HIS_NAME, MISFITS, STRANGE, scenario

SEEDS = 1000
TRIED = """
rank death, second death, healing, freeze, idle survivors, deaf, frontend_kill, slow, says, restart, step_exception
hardware before the death, hardware after the death, hardware and never a death, hardware unmappable
message delay, message loss, message duplication, messages out of order, reply loss, reset
partition, partition of one direction (there), partition of one direction (back)
controller crash and restart at some await, stop_process
node crash and restart at some await, reboot, disk_broken, disk_slow, terminate, lag
store failure, store: unknown outcome, leader change, clock step, coordinator_restart, adapter_restart
configuration: scale_down off, configuration: fast_recovery on, configuration: scale_up on, several instances
configuration: pods that differ, engine turns at some moment
"""


def test_everything_is_tried() -> None:
    seen = Counter(kind for story in map(scenario, range(SEEDS)) for kind in set(kinds(story, story.events)))
    wanted = {kind for line in TRIED.split("\n") for kind in line.split(", ") if kind}
    wanted |= {f"strange: {what}" for what in (*STRANGE, *IN_HIS_NAME, *CONSOLE, *MISFITS, *AGAIN, GATEWAY)}
    wanted |= {f"damage: {what}" for what in DAMAGES}
    assert not {kind for kind in wanted if not seen[kind]}
