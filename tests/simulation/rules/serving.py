"""At the Coordinators: nobody is sent where nothing answers."""

from typing import Any

from controller.core.phases import Phase
from motor_ft.v1 import coordinator_pb2
from tests.simulation.loop import Process
from tests.simulation.rules.facts import Facts

WINDOW = frozenset({Phase.SCALING_DOWN, Phase.POST_SCALE_CLEANUP})


class ServingRules:
    """Fed with every Refresh as it is sent, and as it is taken."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def sent(self, client: Process, request: bytes) -> None:
        """The leader publishes nothing that is being rebuilt, or that another one has withdrawn before it."""
        message = coordinator_pb2.RefreshRequest.FromString(request)
        if message.event == coordinator_pb2.REFRESH_EVENT_DEL or client is not self.facts.world.vault.leader:
            return
        for each in message.instances:
            record = self.facts.runtimes.get(each.instance_id)
            if record is not None and record.phase is Phase.RECONFIGURING:
                self.facts.break_rule("withdrawn while rebuilt", f"instance {each.instance_id} is published")
            if self.facts.withdrawn_by.get(each.instance_id, client) is not client:
                self.facts.break_rule("withdrawn through a failover", f"instance {each.instance_id} is published")

    def viewed(self, coordinator: Any, request: coordinator_pb2.RefreshRequest) -> None:
        """A Coordinator has taken a change."""
        if request.event == coordinator_pb2.REFRESH_EVENT_DEL:
            return
        for each in request.instances:
            record = self.facts.runtimes.get(each.instance_id)
            if record is None:
                continue
            if record.phase in WINDOW:
                text = f"instance {each.instance_id} is published in {record.phase}"
                self.facts.break_rule("nothing in the window", text)
            if dead := coordinator.view.get(each.instance_id, frozenset()) & set(record.dead_committed):
                self.facts.break_rule("no dead rank", f"instance {each.instance_id} is published with {sorted(dead)}")
