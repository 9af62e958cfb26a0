"""What must hold, whatever happens: watched from outside, at the network, the engines, the store and the disks."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpc import StatusCode

from controller.core.phases import Phase, move
from controller.core.records import IdentityRecord, RuntimeRecord
from controller.core.transaction import Limits
from motor_ft.v1 import coordinator_pb2, node_lifecycle_pb2, node_manager_pb2
from motor_ft.wire.convert import duration_from_pb
from nodemanager.core.state import NodeState
from tests.simulation.engines import Seat
from tests.simulation.loop import Process
from tests.simulation.rpc import Answer
from tests.support.engine.states import Process as RankProcess
from tests.support.engine.states import Status

if TYPE_CHECKING:
    from tests.simulation.world import World

PATIENCE_SEC = 600.0
"""After the last trouble every incident has ended by then."""
MOMENT_SEC = 15.0
"""So long ago a socket may have been silent for a removal that is under way."""
WINDOW = frozenset({Phase.SCALING_DOWN, Phase.POST_SCALE_CLEANUP})
TRANSACTION = frozenset({"Guard", "Status", "Apply", "Finalize", "WatchStatus"})
COMMANDS: dict[str, Any] = {
    "Guard": node_manager_pb2.GuardRequest,
    "Apply": node_manager_pb2.ApplyRequest,
    "Finalize": node_manager_pb2.FinalizeRequest,
    "Stop": node_lifecycle_pb2.StopRequest,
}


@dataclass(frozen=True)
class Broken:
    """A rule that did not hold."""

    rule: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.at:.3f} s: {self.text}"


@dataclass(frozen=True)
class Plan:
    """What the engines of one transaction are told."""

    removed: tuple[int, ...]
    master: str
    port: int


class Oracle:
    """``broken`` fills up; ``counts`` says what the runs have gone through."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.broken: list[Broken] = []
        self.counts: Counter[str] = Counter()
        self.runtimes: dict[int, RuntimeRecord] = {}
        self.identities: dict[int, IdentityRecord] = {}
        self._generations: dict[int, int] = {}
        self._told: Counter[tuple[int, str]] = Counter()
        self._plans: dict[str, Plan] = {}
        self._frozen: dict[tuple[int, int], str] = {}
        self._epochs: dict[str, int] = {}
        self._commands: dict[str, int] = {}
        self._dead_at: dict[tuple[str, int], float] = {}

    def break_rule(self, rule: str, text: str) -> None:
        """Something must not be."""
        self.broken.append(Broken(rule, self.world.loop.time(), text))
        self.world.trace("BROKEN", rule, text)

    # --- engines ---

    def engine_changed(self, job: str, generation: int, rank: int | None, kind: str, detail: object) -> None:
        """Of one fleet."""
        self.world.trace(
            "engine", f"{job} rank {rank}", f"{generation} {kind} {json.dumps(detail, default=str, sort_keys=True)}"
        )

    def posted(self, seat: Seat, body: bytes) -> None:
        """An order that has reached an engine."""
        order = json.loads(body)
        request_id = order.get("request_id", "")
        self.counts[f"apply {order['instruction']}"] += 1
        key = (seat.engine.root.pid, request_id)
        self._told[key] += 1
        if request_id and self._told[key] > 1:
            self.break_rule("apply once", f"rank {seat.engine.rank} was told {request_id} {self._told[key]} times")
        if order["instruction"] == "scale_down":
            self._check_removal(seat, request_id, order["params"])

    def _check_removal(self, seat: Seat, request_id: str, params: dict[str, Any]) -> None:
        plan = Plan(tuple(params["removed_dp_ranks"]), params["dp_master_ip"], params["dp_store_port"])
        me = f"{seat.engine.job} rank {seat.engine.rank}"
        if self._plans.setdefault(request_id, plan) != plan:
            self.break_rule("one plan", f"{me} was told {plan}, others {self._plans[request_id]}")
        fleet = self.world.fleets[int(seat.engine.job.removeprefix("job-"))]
        for rank in plan.removed:
            if not self._dead(seat, fleet.seats[rank]):
                self.break_rule("only DEAD is removed", f"{me} is told to go on without rank {rank}, which lives")
        if seat.engine.rank in plan.removed:
            self.break_rule("apply only to survivors", f"{me} is told to remove itself")
        survivors = sorted(set(range(fleet.config.dp_size)) - set(plan.removed))
        if survivors and fleet.seats[survivors[0]].machine.name != plan.master:
            self.break_rule(
                "master", f"{me}: the store moves to {plan.master}, the lowest survivor is rank {survivors[0]}"
            )
        if (
            seat.rank is not None
            and seat.rank.status in (Status.HEALTHY, Status.DIAGNOSING)
            and not seat.rank.core_gone
        ):
            self.break_rule("apply only to U", f"{me} is {seat.rank.status}")
        self._check_epoch(seat, request_id)

    def _check_epoch(self, seat: Seat, request_id: str) -> None:
        pod = self.world.owner(int(seat.engine.job.removeprefix("job-")), seat.engine.rank)
        epoch = self._commands.get(request_id, 0)
        if epoch < self._epochs.get(pod.uid, 0):
            self.break_rule("fence", f"{pod.name} sends for epoch {epoch}, it knew {self._epochs[pod.uid]}")

    def _dead(self, told: Seat, removed: Seat) -> bool:
        """It is gone, or another engine is in its place, or it was beyond reach a moment ago."""
        strange = told.rank is None or removed.rank is None or told.rank.group is not removed.rank.group
        key, now = (removed.engine.job, removed.engine.rank), self.world.loop.time()
        if strange or gone(removed):
            self._dead_at[key] = now
        return now - self._dead_at.get(key, -1e9) < MOMENT_SEC

    # --- commands ---

    def called(self, client: Process, server: Process, method: str, request: bytes) -> None:
        """A request has reached a server."""
        if method in TRANSACTION and not self.world.scenario.config.scale_down:
            self.break_rule("feature off", f"{method} reached {server.name}")
        if (kind := COMMANDS.get(method)) is not None:
            header = kind.FromString(request).header
            self._commands[header.request_id] = header.controller_epoch

    def answered(self, client: Process, server: Process, method: str, request: bytes, answer: Answer) -> None:
        """It was answered."""
        self.counts[f"{method} {answer.code.name}"] += 1
        if (kind := COMMANDS.get(method)) is None or answer.code is not StatusCode.OK:
            return
        message = kind.FromString(request)
        if method == "Guard":
            self._guarded(message, node_manager_pb2.GuardResponse.FromString(answer.body))

    def _guarded(self, request: Any, response: Any) -> None:
        lease, config = duration_from_pb(request.lease), self.world.scenario.config
        most = Limits(config.request_timeout, config.poll, config.execution).lease
        if lease > most or duration_from_pb(response.remaining) > lease:
            self.break_rule("lease", f"{lease} s were asked for, at most {most} s are right")
        if request.HasField("plan"):
            key = (request.header.instance_id, request.header.generation)
            if self._frozen.setdefault(key, request.plan.plan_hash) != request.plan.plan_hash:
                self.break_rule("one plan", f"two plans for instance and generation {key}")

    def journalled(self, directory: str, state: NodeState) -> None:
        """A NodeManager has made a state durable."""
        uid = directory.rpartition("/")[2]
        epoch = state.fence.epoch or 0
        if epoch < self._epochs.get(uid, 0):
            self.break_rule("fence", f"{uid} falls from epoch {self._epochs[uid]} to {epoch}")
        self._epochs[uid] = epoch

    def said(self, speaker: Process, hearer: Process, method: str, message: bytes) -> None:
        """On a stream."""

    # --- store ---

    def written(self, kind: str, instance_id: int, record: object) -> None:
        """A record has become durable."""
        if kind == "remove":
            self.runtimes.pop(instance_id, None)
            self.identities.pop(instance_id, None)
            self.world.trace("store", f"instance {instance_id}", "removed")
        elif isinstance(record, IdentityRecord):
            self.identities[instance_id] = record
            self.world.trace("store", f"instance {instance_id}", f"identity of {record.job_name} ready={record.ready}")
        elif isinstance(record, RuntimeRecord):
            self._moved(instance_id, record)

    def _moved(self, instance_id: int, record: RuntimeRecord) -> None:
        text = f"{record.phase} generation {record.generation} dead {record.dead_committed}"
        self.world.trace("store", f"instance {instance_id}", text)
        self.counts[f"phase {record.phase}"] += 1
        before = self.runtimes.get(instance_id)
        if before is not None:
            try:
                move(before.phase, record.phase)
            except RuntimeError as error:
                self.break_rule("phases", f"instance {instance_id}: {error}")
            if not set(before.dead_committed) <= set(record.dead_committed):
                self.break_rule(
                    "gone for good", f"instance {instance_id}: {before.dead_committed} {record.dead_committed}"
                )
        if record.generation < self._generations.get(instance_id, 0):
            self.break_rule("generation", f"instance {instance_id} falls to {record.generation}")
        self._generations[instance_id] = record.generation
        self.runtimes[instance_id] = record
        self.world.happenings.moment(f"store {record.phase}", str(instance_id))

    # --- serving ---

    def viewed(self, coordinator: Any, request: coordinator_pb2.RefreshRequest) -> None:
        """A Coordinator has taken a change."""
        if request.event == coordinator_pb2.REFRESH_EVENT_DEL:
            return
        for each in request.instances:
            record = self.runtimes.get(each.instance_id)
            if record is None:
                continue
            if record.phase in WINDOW:
                self.break_rule("nothing in the window", f"instance {each.instance_id} is published in {record.phase}")
            if dead := coordinator.view[each.instance_id] & set(record.dead_committed):
                self.break_rule("no dead rank", f"instance {each.instance_id} is published with {sorted(dead)}")

    # --- the end ---

    async def settled(self, seconds: float) -> None:
        """Wait until everything was well for so long; that it never becomes so breaks a rule."""
        loop = self.world.loop
        until, well_since = loop.time() + PATIENCE_SEC, None
        while well_since is None or loop.time() - well_since < seconds:
            wrong = self.wrong()
            if self.broken:
                return
            if wrong and loop.time() > until:
                self.break_rule("every incident ends", wrong)
                return
            well_since = None if wrong else loop.time() if well_since is None else well_since
            await asyncio.sleep(1.0)

    def wrong(self) -> str:
        """What is not as it should be, now; empty when every job serves, or waits for a person."""
        if not self.world.scenario.config.scale_down:
            return ""
        texts = [text for job in range(len(self.world.scenario.jobs)) if (text := self._wrong(job))]
        return "; ".join(texts)

    def _wrong(self, job: int) -> str:
        mine = [key for key, record in self.identities.items() if record.job_name == f"job-{job}"]
        if not mine:
            return f"job {job} has no instance"
        newest = max(mine)
        if self._stopped(newest):
            return ""
        record = self.runtimes[newest]
        ranks = frozenset(record.original_dp_ranks) - frozenset(record.dead_committed)
        for host in self.world.coordinators:
            view = {key: held for key, held in host.servicer.view.items() if key in mine}
            if view != {newest: ranks}:
                return f"job {job}: {host.name} holds {view}, not {sorted(ranks)} of {newest} ({record.phase})"
        fleet = self.world.fleets[job]
        if sick := [rank for rank in sorted(ranks) if not healthy(fleet.seats[rank])]:
            return f"job {job}: ranks {sick} serve and are not healthy ({record.phase})"
        return ""

    def _stopped(self, instance_id: int) -> bool:
        status = self.world.status(instance_id)
        return status is not None and status.automation_stopped

    def left_over(self, processes: list[Process]) -> None:
        """Nothing may run after the end."""
        for process in processes:
            if left := [task.get_name() for task in process.tasks if not task.done()]:
                self.break_rule("no leak", f"{process.name} leaves {left}")
        for error in self.world.loop.errors:
            self.break_rule("no defect", f"{error.get('message')}: {error.get('exception')!r}")

    def defect(self, event: Mapping[str, Any]) -> None:
        """A daemon has logged an unexpected exception."""
        self.break_rule("no defect", f"{event.get('event')}: {event.get('exc_info')!r}")


def gone(seat: Seat) -> bool:
    """What may count as DEAD now: no engine, an engine that says so, or a socket that does not answer."""
    rank = seat.rank
    if rank is None or not seat.serves or seat.deaf:
        return True
    return rank.status is Status.DEAD or rank.executor_lost or rank.core_gone


def healthy(seat: Seat) -> bool:
    """It serves."""
    rank = seat.rank
    return seat.serves and rank is not None and rank.status is Status.HEALTHY and rank.process is RankProcess.RUNNING
