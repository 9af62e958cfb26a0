"""On the FaultReport streams: what was acknowledged is known, and no engine changes its instance."""

from controller.core.status import InstanceState
from motor_ft.model.engine import EngineStatus
from motor_ft.v1.fault_report_pb2 import FaultReportRequest, FaultReportResponse
from tests.simulation.loop import Process
from tests.simulation.network import OUTSIDE
from tests.simulation.rules.facts import Facts

SHOWN_SEC = 1.5
"""So soon after its acknowledgement a death is on the board, where no write is waited for."""


class EvidenceRules:
    """Fed with every message of a stream."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._deaths: dict[tuple[Process, Process], dict[int, int]] = {}
        self._instances: dict[Process, int] = {}

    def said(self, speaker: Process, hearer: Process, message: bytes) -> None:
        """One message, up or down."""
        if hearer.name.startswith("controller"):
            request = FaultReportRequest.FromString(message)
            if request.HasField("snapshot"):
                self._joined(speaker, {end.engine_incarnation for end in request.snapshot.registered})
            elif request.HasField("process_death"):
                deaths = self._deaths.setdefault((speaker, hearer), {})
                deaths[request.sequence] = request.process_death.dp_rank
            return
        response = FaultReportResponse.FromString(message)
        if response.HasField("welcome"):
            self._instances[hearer] = response.welcome.instance_id
        elif response.HasField("ack"):
            deaths = self._deaths.get((hearer, speaker), {})
            for sequence in [each for each in deaths if each <= response.ack.sequence]:
                self._expect(speaker, hearer, deaths.pop(sequence))

    def _joined(self, node: Process, engines: set[str]) -> None:
        instance_id = self._instances.get(node, 0)
        for engine in sorted(engines):
            if (first := self.facts.engines.get(engine, instance_id)) != instance_id:
                self.facts.break_rule("gone stays gone", f"engine {engine} of instance {first} is in {instance_id}")

    def _expect(self, controller: Process, node: Process, rank: int) -> None:
        instance_id, frozen, heard_at = self._instances.get(node, 0), controller.stops, self.facts.now
        board = self.facts.world.boards.get(controller)
        known = board.get(instance_id) if board else None
        if known is None or known.state in (InstanceState.INITIAL, InstanceState.DELETED):
            return  # what dies on the way to READY is replaced by then

        def look() -> None:
            assert board is not None
            if self.facts.world.vault.asked[controller]:
                self.facts.world.loop.call_later(SHOWN_SEC, look, context=OUTSIDE)
                return
            status = board.get(instance_id)
            undisturbed = controller.alive and node.alive and controller.stops == frozen and not controller.frozen
            if not undisturbed or status is None or status.state is InstanceState.DELETED:
                return
            if self.facts.relaunched.get(instance_id, 0.0) >= heard_at - SHOWN_SEC:
                return  # of engines that were ended anyway nothing is kept
            if rank not in status.dead_committed and status.engine_statuses.get(rank) is not EngineStatus.DEAD:
                self.facts.break_rule("nothing acknowledged is lost", f"rank {rank} of instance {instance_id} has died")

        self.facts.world.loop.call_later(SHOWN_SEC, look, context=OUTSIDE)
