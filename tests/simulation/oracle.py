"""What must hold, whatever happens: everything that the world shows goes through here to its rules."""

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from motor_ft.v1 import coordinator_pb2
from nodemanager.core.state import NodeState
from tests.simulation.engines import Seat
from tests.simulation.loop import PROCESS, Process
from tests.simulation.rpc import Answer
from tests.simulation.rules.commands import CommandRules
from tests.simulation.rules.engines import EngineRules
from tests.simulation.rules.evidence import EvidenceRules
from tests.simulation.rules.facts import Facts, healthy
from tests.simulation.rules.records import RecordRules
from tests.simulation.rules.serving import ServingRules

if TYPE_CHECKING:
    from tests.simulation.world import World

PATIENCE_SEC = 600.0
"""After the last trouble every incident has ended by then."""


class Oracle:
    """``facts.broken`` fills up."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.facts = Facts(world)
        self.engines = EngineRules(self.facts)
        self.commands = CommandRules(self.facts, self.engines)
        self.evidence = EvidenceRules(self.facts)
        self.records = RecordRules(self.facts, self.engines)
        self.serving = ServingRules(self.facts)

    # --- what the world shows ---

    def engine_changed(self, job: int, generation: int, rank: int | None, kind: str, detail: object) -> None:
        """Of one fleet."""
        text = json.dumps(detail, default=str, sort_keys=True)
        self.world.trace("engine", f"job {job} rank {rank}", f"{generation} {kind} {text}")
        self.engines.changed()

    def posted(self, seat: Seat, body: bytes) -> None:
        """An order has reached an engine."""
        self.engines.posted(seat, body)

    def sent(self, client: Process, address: str, method: str, request: bytes) -> None:
        """A client lets a request go."""
        self.commands.sent(client, address, method, request)
        if method == "Refresh":
            self.serving.sent(client, request)

    def called(self, server: Process, method: str, request: bytes) -> None:
        """A request has reached a server."""
        if (pod := self.world.pod_of(server)) is not None:
            self.commands.called(server, pod.uid, method, request)

    def answered(self, server: Process, method: str, request: bytes, answer: Answer) -> None:
        """It was answered."""
        self.commands.answered(server, method, request, answer)

    def journalled(self, directory: str, state: NodeState) -> None:
        """A NodeManager has made a state durable."""
        uid = directory.rpartition("/")[2]
        self.facts.states[uid] = state
        self.commands.journalled(uid, state)

    def said(self, speaker: Process, hearer: Process, method: str, message: bytes) -> None:
        """On a stream."""
        if method == "FaultReport" and "adapter" not in (speaker.name, hearer.name):
            self.evidence.said(speaker, hearer, message)

    def written(self, writer: Process, kind: str, instance_id: int, record: object) -> None:
        """A record has become durable."""
        self.records.written(writer, kind, instance_id, record)

    def viewed(self, coordinator: Any, request: coordinator_pb2.RefreshRequest) -> None:
        """A Coordinator has taken a change."""
        self.serving.viewed(coordinator, request)

    def defect(self, event: Mapping[str, Any]) -> None:
        """A daemon has met an exception that it did not expect."""
        self.facts.break_rule("no defect", f"{event.get('event')}: {event.get('exc_info')!r}")

    def ended(self) -> None:
        """The daemon that says so has ended in good order."""
        me, process = asyncio.current_task(), PROCESS.get()
        assert process is not None
        names = [task.get_name() for task in process.tasks if not task.done() and task is not me]
        if left := [name for name in names if name != "people"]:  # who are no part of it
            self.facts.break_rule("no leak", f"{process.name} ends and leaves {left}")

    # --- the end ---

    async def settled(self, seconds: float) -> None:
        """Wait until everything was well for so long; that it never becomes so breaks a rule."""
        loop = self.world.loop
        until, well_since = loop.time() + PATIENCE_SEC, None
        while well_since is None or loop.time() - well_since < seconds:
            wrong = self.wrong()
            if self.facts.broken:
                return
            if wrong and loop.time() > until:
                self.facts.break_rule("every incident ends", wrong)
                return
            well_since = None if wrong else loop.time() if well_since is None else well_since
            await asyncio.sleep(1.0)
        self.commands.ended()

    def wrong(self) -> str:
        """What is not as it should be, now; empty when every job serves, or waits for a person."""
        texts = [text for job in range(len(self.world.scenario.jobs)) if (text := self._wrong(job))]
        return "; ".join(texts)

    def _wrong(self, job: int) -> str:
        mine = [key for key in self.facts.identities if self.facts.job_of(key) == job]
        if not mine:
            return self._never_ready(job)
        newest = max(mine)
        status = self.world.status(newest)
        if status is not None and status.automation_stopped:
            self.facts.counts["automation stopped"] += 1
            return ""
        record = self.facts.runtimes[newest]
        ranks = frozenset(record.original_dp_ranks) - frozenset(record.dead_committed)
        for host in self.world.coordinators:
            view = {key: held for key, held in host.servicer.routed().items() if key in mine}
            if view != {newest: ranks}:
                return f"job {job}: {host.name} holds {view}, not {sorted(ranks)} of {newest} ({record.phase})"
        seats = self.world.fleets[job].seats
        if sick := [rank for rank in sorted(ranks) if not healthy(seats[rank])]:
            return f"job {job}: ranks {sick} serve and are not healthy ({record.phase})"
        return ""

    def _never_ready(self, job: int) -> str:
        """An engine that ends before READY stays so where its pod may not end itself, or cannot see it."""
        shape, seats = self.world.scenario.jobs[job], self.world.fleets[job].seats
        restarts = shape.suicide and shape.mode != "endpoint"
        if not restarts and not all(map(healthy, seats.values())):
            self.facts.counts["never ready"] += 1
            return ""
        return f"job {job} has no instance"

    def left_over(self, processes: list[Process]) -> None:
        """Nothing may run after the end."""
        for process in processes:
            if left := [task.get_name() for task in process.tasks if not task.done()]:
                self.facts.break_rule("no leak", f"{process.name} leaves {left}")
        for error in self.world.loop.errors:
            self.facts.break_rule("no defect", f"{error.get('message')}: {error.get('exception')!r}")
