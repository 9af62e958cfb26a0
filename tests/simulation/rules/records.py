"""At the store: every record is a legal successor of the one before, and true."""

from controller.core.phases import INTERRUPTED, WINDOW, Phase, move
from controller.core.ports import Loaded
from controller.core.records import IdentityRecord, RuntimeRecord
from controller.fault_manager.graveyard import engines_of
from tests.simulation.loop import Process
from tests.simulation.rules.engines import EngineRules
from tests.simulation.rules.facts import Facts


class RecordRules:
    """Fed with every record as it becomes durable."""

    def __init__(self, facts: Facts, engines: EngineRules) -> None:
        self.facts = facts
        self._engines = engines
        self._generations: dict[int, int] = {}
        self._writers: dict[int, Process] = {}

    def written(self, writer: Process, kind: str, instance_id: int, record: object) -> None:
        """A record is durable now."""
        facts = self.facts
        if isinstance(record, IdentityRecord):
            facts.engines |= dict.fromkeys(engines_of(record.pods) - facts.engines.keys(), instance_id)
        if kind == "remove" or (isinstance(record, IdentityRecord) and record.gone_at):
            self._removed(instance_id)
        elif isinstance(record, IdentityRecord):
            facts.identities[instance_id] = record
            if record.isolated or record.dissolved:
                facts.withdrawn_by.setdefault(instance_id, writer)
            else:
                facts.withdrawn_by.pop(instance_id, None)
            facts.world.trace("store", f"instance {instance_id}", f"of {record.job_name} ready={record.ready}")
        elif isinstance(record, RuntimeRecord):
            self._moved(writer, instance_id, record)

    def damaged(self, instance_id: int, stored: Loaded) -> None:
        """This is what a Controller reads now; what cannot be read is as good as removed."""
        if instance_id not in stored.identities:
            self._removed(instance_id)
            return
        size, runtime = stored.identities[instance_id].record.dp_size, stored.runtimes.get(instance_id)
        lost = RuntimeRecord(Phase.RECONFIGURING, 0, tuple(range(size)))
        readable = runtime is not None and runtime.record.original_dp_ranks == lost.original_dp_ranks
        self.facts.runtimes[instance_id] = runtime.record if runtime is not None and readable else lost
        self._generations.pop(instance_id, None)

    def _removed(self, instance_id: int) -> None:
        facts = self.facts
        for known in (facts.runtimes, facts.identities, facts.withdrawn_by):
            known.pop(instance_id, None)
        facts.world.trace("store", f"instance {instance_id}", "removed")

    def _moved(self, writer: Process, instance_id: int, record: RuntimeRecord) -> None:
        facts, me = self.facts, f"instance {instance_id}"
        facts.world.trace("store", me, f"{record.phase} generation {record.generation} dead {record.dead_committed}")
        facts.counts[f"phase {record.phase}"] += 1
        before = facts.runtimes.get(instance_id)
        if before is not None:
            self._follows(writer, instance_id, before, record)
        if not facts.world.scenario.config.scale_down and (record.phase in WINDOW or record.dead_committed):
            facts.break_rule("feature off", f"{me} comes to {record.phase} without {record.dead_committed}")
        if record.generation < self._generations.get(instance_id, 0):
            facts.break_rule("generation", f"{me} falls to {record.generation}")
        self._generations[instance_id], self._writers[instance_id] = record.generation, writer
        facts.runtimes[instance_id] = record
        job = facts.job_of(instance_id)
        if record.phase is Phase.SCALING_DOWN and job is not None and facts.world.scenario.jobs[job].one_server:
            facts.break_rule("only read", f"{me} is to be told something")
        if record.phase is Phase.POST_SCALE_CLEANUP:
            self._committed(instance_id, record)
        facts.world.happenings.moment(f"store {record.phase}", str(instance_id))

    def _follows(self, writer: Process, instance_id: int, before: RuntimeRecord, record: RuntimeRecord) -> None:
        me = f"instance {instance_id}"
        try:
            move(before.phase, record.phase)
        except RuntimeError as error:
            self.facts.break_rule("phases", f"{me}: {error}")
        if not set(before.dead_committed) <= set(record.dead_committed):
            self.facts.break_rule("gone for good", f"{me}: {before.dead_committed}, then {record.dead_committed}")
        interrupted = before.phase in INTERRUPTED and writer is not self._writers.get(instance_id)
        if interrupted and record.phase is not Phase.RECONFIGURING:
            text = f"{me} goes on in {record.phase} after its Controller ended in {before.phase}"
            self.facts.break_rule("nothing is replayed", text)

    def _committed(self, instance_id: int, record: RuntimeRecord) -> None:
        """Every survivor works again."""
        job = self.facts.job_of(instance_id)
        if job is None:
            return
        for rank, seat in sorted(self.facts.world.fleets[job].seats.items()):
            if rank not in record.dead_committed and not self._engines.recovered(seat):
                self.facts.break_rule("commit after recovery", f"{seat} has not recovered")
