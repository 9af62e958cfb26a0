"""At the network: commands to NodeManagers, and the durable state that stands behind their answers."""

from typing import Any

from grpc import StatusCode

from motor_ft.v1 import common_pb2, node_lifecycle_pb2, node_manager_pb2
from motor_ft.wire.convert import duration_from_pb
from nodemanager.core.state import NodeState
from tests.simulation.loop import Process
from tests.simulation.rpc import Answer
from tests.simulation.rules.engines import EngineRules
from tests.simulation.rules.facts import Commanded, Facts

TRANSACTION = frozenset({"Guard", "Status", "Apply", "Finalize", "WatchStatus", "Probe"})
COMMANDS: dict[str, Any] = {
    "Guard": node_manager_pb2.GuardRequest,
    "Status": node_manager_pb2.StatusRequest,
    "Apply": node_manager_pb2.ApplyRequest,
    "Finalize": node_manager_pb2.FinalizeRequest,
    "Stop": node_lifecycle_pb2.StopRequest,
    "RestartEngines": node_lifecycle_pb2.RestartEnginesRequest,
}


class CommandRules:
    """Fed with every request as it is sent, as it arrives, and as it is answered."""

    def __init__(self, facts: Facts, engines: EngineRules) -> None:
        self.facts = facts
        self._engines = engines
        self._plans: dict[tuple[int, int], str] = {}
        self._known: dict[tuple[str, str, bytes], int] = {}
        self._guards: dict[str, set[str]] = {}
        self._finals: dict[str, set[str]] = {}

    def sent(self, client: Process, address: str, method: str, request: bytes) -> None:
        """A client lets a request go."""
        if not client.alive:
            self._break("the dead are silent", f"{client.name} sends {method} to {address}")
        if method in TRANSACTION and not self.facts.world.scenario.config.scale_down:
            self._break("feature off", f"{method} to {address}")
        if (kind := COMMANDS.get(method)) is None:
            return
        message = kind.FromString(request)
        header = message.header
        command = Commanded(client, header.instance_id, header.controller_epoch, header.generation)
        self.facts.commands[header.request_id] = command
        if method == "Guard":
            self._guards.setdefault(header.request_id, set()).add(address)
            if message.HasField("plan") and header.request_id not in self.facts.planned_at:
                self.facts.planned_at[header.request_id] = self.facts.now
                self._planned(header.instance_id, header.request_id, message.plan)
        elif method == "Status":
            asked = {(header.request_id, rank): self.facts.now for rank in message.dp_ranks}
            self.facts.asked_at |= asked
            self.facts.unread |= asked.keys()
        elif method == "Finalize":
            self._finals.setdefault(header.request_id, set()).add(address)
        elif method == "RestartEngines" and not message.validate_only:
            self.facts.relaunched[header.instance_id] = self.facts.now

    def _planned(self, instance_id: int, request_id: str, plan: common_pb2.ScaleDownPlan) -> None:
        if (job := self.facts.job_of(instance_id)) is not None:
            survivors = frozenset(each.dp_rank for each in plan.survivors)
            self._engines.planned(job, request_id, plan.removed_dp_ranks, survivors)

    def got(self, request: bytes) -> None:
        """A Controller has the readings that it asked for."""
        message = node_manager_pb2.StatusRequest.FromString(request)
        self.facts.unread -= {(message.header.request_id, rank) for rank in message.dp_ranks}

    def called(self, server: Process, uid: str, method: str, request: bytes) -> None:
        """It has arrived at a NodeManager."""
        if method in COMMANDS:
            self._known[server.name, method, request] = self.facts.epochs.get(uid, 0)

    def answered(self, server: Process, method: str, request: bytes, answer: Answer) -> None:
        """It was answered."""
        self.facts.counts[f"{method} {answer.code.name}"] += 1
        if (kind := COMMANDS.get(method)) is None or answer.code is not StatusCode.OK:
            return
        message = kind.FromString(request)
        known = self._known.get((server.name, method, request), 0)
        if message.header.controller_epoch < known:
            text = f"{server.name} obeys {method} of epoch {message.header.controller_epoch}, it knew {known}"
            self._break("fence", text)
        if method == "Guard":
            self._guarded(message, node_manager_pb2.GuardResponse.FromString(answer.body))
        elif method == "Finalize" and message.commit and (pod := self.facts.world.pod_of(server)) is not None:
            self._engines.committed(pod, message.header.request_id, frozenset(message.retired_dp_ranks))

    def journalled(self, uid: str, state: NodeState) -> None:
        """A NodeManager has made a state durable."""
        epoch = state.fence.epoch or 0
        if epoch < self.facts.epochs.get(uid, 0):
            self._break("fence", f"{uid} falls from epoch {self.facts.epochs[uid]} to {epoch}")
        self.facts.epochs[uid], self.facts.fences[uid] = epoch, state.fence
        self.facts.members[uid] = state.instance_id
        self.facts.supervised[uid] = {rank: engine.pid for rank, engine in state.engines.items()}

    def ended(self) -> None:
        """Whoever was sent a Guard by a Controller that lives on was also told that it is over."""
        for request_id, addresses in self._guards.items():
            command = self.facts.commands[request_id]
            if command.client.alive and (left := sorted(addresses - self._finals.get(request_id, set()))):
                self._break("every guard is ended", f"nobody told {left} that {request_id} is over")

    def _guarded(self, request: Any, response: Any) -> None:
        lease, config = duration_from_pb(request.lease), self.facts.world.scenario.config
        most = 2 * config.execution + 4 * config.request_timeout + max(5.0, config.poll)
        if lease > most or duration_from_pb(response.remaining) > lease:
            self._break("lease", f"{lease} s were asked for, at most {most} s are right")
        if request.HasField("plan"):
            key = (request.header.instance_id, request.header.generation)
            if self._plans.setdefault(key, request.plan.plan_hash) != request.plan.plan_hash:
                self._break("one plan", f"two plans for instance and generation {key}")

    def _break(self, rule: str, text: str) -> None:
        self.facts.break_rule(rule, text)
