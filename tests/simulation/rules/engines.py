"""At the engines: who is told what, once, and only in the right state."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.simulation.engines import Seat
from tests.simulation.rules.facts import Facts, gone
from tests.support.engine.states import Status

if TYPE_CHECKING:
    from tests.simulation.pods import SimPod


@dataclass(frozen=True, slots=True)
class Plan:
    """What the engines of one transaction are told."""

    removed: tuple[int, ...]
    master: str
    port: int


class EngineRules:
    """Fed with every order and with every visible change of an engine."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._told: Counter[tuple[int, str]] = Counter()
        self._plans: dict[str, Plan] = {}
        self._survivors: dict[str, frozenset[int]] = {}
        self._unrecovered: dict[int, str] = {}
        self._alive_since: dict[int, float] = {}
        self._gone: set[int] = set()

    def changed(self) -> None:
        """Some engine is another than before."""
        for fleet in self.facts.world.fleets:
            for seat in fleet.seats.values():
                pid = seat.engine.root.pid
                if seat.rank is not None and seat.rank.status is Status.HEALTHY:
                    self._unrecovered.pop(pid, None)
                if gone(seat):
                    self._gone.add(pid)
                elif pid in self._gone or pid not in self._alive_since:
                    self._gone.discard(pid)
                    self._alive_since[pid] = self.facts.now

    def posted(self, seat: Seat, body: bytes) -> None:
        """An order has reached an engine."""
        if self.facts.world.scenario.jobs[seat.engine.job].one_server:
            self._break("only read", f"{seat} is told {body!r}")
            return
        order = json.loads(body)
        me, pid, request_id = str(seat), seat.engine.root.pid, order.get("request_id", "")
        self.facts.counts[f"post {order['instruction']}"] += 1
        self._told[pid, request_id] += 1
        if request_id and self._told[pid, request_id] > 1:
            self._break("apply once", f"{me} was told {request_id} {self._told[pid, request_id]} times")
        if (before := self._unrecovered.get(pid, request_id)) != request_id:
            self._break("no second attempt", f"{me} is told {request_id} and has not recovered since {before}")
        self._unrecovered[pid] = request_id
        works = seat.rank is not None and seat.rank.status in (Status.HEALTHY, Status.DIAGNOSING) and not gone(seat)
        if works and not self._unseen(seat, request_id):
            self._break("apply only to U", f"{me} works")
        if order["instruction"] == "scale_down":
            self._removal(seat, request_id, order["params"])
        if not self.facts.world.scenario.config.scale_down:
            self._break("feature off", f"{me} is told {order}")
        if request_id in self.facts.commands:
            self._authorized(seat, request_id)

    def recovered(self, seat: Seat) -> bool:
        """It has become healthy since it was told something."""
        return seat.engine.root.pid not in self._unrecovered

    def committed(self, pod: "SimPod", request_id: str, retired: frozenset[int]) -> None:
        """A pod stands by a commit: its survivors are the engines that were told, and none of the removed is left."""
        seats = self.facts.world.fleets[pod.job].seats
        told = {pid for pid, request in self._told if request == request_id}
        groups = [seat.rank.group for seat in seats.values() if seat.engine.root.pid in told and seat.rank]
        for rank, pid in self.facts.supervised[pod.uid].items():
            if rank in pod.seconds:
                if rank in retired and pod.seconds[rank].root.alive:
                    self._break("removed ranks are ended", f"headless rank {rank} of {pod.name} still runs")
                continue
            left = seats[rank].engine.root.alive and (own := seats[rank].rank) is not None and own.group in groups
            if pid and rank in retired and left:
                self._break("removed ranks are ended", f"{seats[rank]} still runs")
            if pid and rank in self._survivors.get(request_id, ()) and pid not in told:
                self._break("commit after recovery", f"{seats[rank]} was never told to go on")

    def _unseen(self, seat: Seat, request_id: str) -> bool:
        """It took the place of another since that was asked, and nobody watches its process; it refuses by itself."""
        asked_at = self.facts.asked_at.get((request_id, seat.engine.rank), self.facts.now)
        unwatched = self.facts.world.scenario.jobs[seat.engine.job].mode == "endpoint"
        return unwatched and self._alive_since[seat.engine.root.pid] > asked_at

    def _removal(self, seat: Seat, request_id: str, params: dict[str, Any]) -> None:
        me = str(seat)
        plan = Plan(tuple(params["removed_dp_ranks"]), params["dp_master_ip"], params["dp_store_port"])
        if self._plans.setdefault(request_id, plan) != plan:
            self._break("one plan", f"{me} was told {plan}, others {self._plans[request_id]}")
        seats = self.facts.world.fleets[seat.engine.job].seats
        if seat.engine.rank in plan.removed:
            self._break("apply only to survivors", f"{me} is told to remove itself")
        lowest = min(seats.keys() - set(plan.removed), default=seat.engine.rank)
        if seats[lowest].machine.name != plan.master:
            self._break("master", f"{me}: the store moves to {plan.master}, the lowest survivor is rank {lowest}")

    def planned(self, job: int, request_id: str, removed: Iterable[int], survivors: frozenset[int]) -> None:
        """A plan is frozen; from here on its removed ranks are ended."""
        self._survivors[request_id] = survivors
        seats = self.facts.world.fleets[job].seats
        for rank in removed:
            if not self._dead(seats[rank], seats[min(survivors)], request_id):
                self._break("only DEAD is removed", f"{seats[rank]} is to be removed, and lives")

    def _dead(self, removed: Seat, survivor: Seat, request_id: str) -> bool:
        """It is gone, another engine is in its place, or no answer of its own came when it was asked once more."""
        if removed.rank is None or survivor.rank is None or removed.rank.group is not survivor.rank.group:
            return True
        key = (request_id, removed.engine.rank)
        asked_at = self.facts.asked_at.get(key, self.facts.now)
        silent = key in self.facts.unread or self._alive_since.get(removed.engine.root.pid, -1.0) > asked_at
        return gone(removed) or silent

    def _authorized(self, seat: Seat, request_id: str) -> None:
        """Nobody routes to the instance, and each NodeManager of the freeze that is still of the instance is held."""
        facts, world = self.facts, self.facts.world
        command = facts.commands[request_id]
        if command.epoch < facts.epochs.get(world.owner(seat.engine.job, seat.engine.rank).uid, 0):
            self._break("fence", f"{seat} is told something for epoch {command.epoch}, which is over")
        for host in world.coordinators:
            if command.instance_id in host.servicer.view:
                self._break("withdrawn before apply", f"{host.name} routes to instance {command.instance_id}")
        record = facts.runtimes.get(command.instance_id)
        for pod in world.pods:
            active = set(pod.ranks) - set(record.dead_committed if record else ())
            present = pod.created_at < facts.planned_at.get(request_id, 0.0)
            present &= facts.members.get(pod.uid) == command.instance_id
            if pod.job == seat.engine.job and active and present and not pod.holds(request_id):
                self._break("guarded everywhere", f"{pod.name} does not hold the guard of {request_id}")

    def _break(self, rule: str, text: str) -> None:
        self.facts.break_rule(rule, text)
