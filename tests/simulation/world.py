"""The whole world of one scenario: machines, processes and the network between them."""

import asyncio
import json
import zlib
from collections.abc import MutableMapping, Sequence
from contextvars import Context
from random import Random
from typing import Any, NamedTuple

import structlog

from controller.core.status import InstanceStatus
from controller.fault_manager.board import Board
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import coordinator_pb2
from tests.simulation.controllers import CoordinatorHost, SimController
from tests.simulation.engines import Fleet, Seat
from tests.simulation.events import Happenings
from tests.simulation.hardware import SimAdapter
from tests.simulation.loop import PROCESS, Process, SimLoop
from tests.simulation.machine import Engine, Machine, ProcessTable
from tests.simulation.network import OUTSIDE, Network, Weather
from tests.simulation.oracle import Oracle
from tests.simulation.people import People
from tests.simulation.pods import FIRST_ENGINE_PORT, SimPod
from tests.simulation.rpc import Answer, Fabric
from tests.simulation.scenario import Scenario
from tests.simulation.store import Vault
from tests.simulation.trace import Trace
from tests.support.engine.config import Dialect, GroupConfig, Timings

SETTLED_SEC = 8.0
"""So long everything must be as it should, before a run counts as ended well."""


class Letter(NamedTuple):
    """A request as it was sent, and to which method."""

    method: str
    request: bytes


class World:
    """Build it, ``await run()`` in its loop, look at ``oracle.broken``."""

    def __init__(self, scenario: Scenario, loop: SimLoop, trace: Trace) -> None:
        self.scenario = scenario
        self.loop = loop
        self.outside: Context = OUTSIDE
        self.chance = Random(scenario.seed * 2 + 1)
        self.record = trace
        self.oracle = Oracle(self)
        self.machines: dict[str, Machine] = {}
        self.processes: list[Process] = []
        self.boards: dict[Process, Board] = {}
        self.letters: dict[tuple[str, str], Letter] = {}
        """What a Controller said last, by address and method."""
        weather = Weather(scenario.delay, scenario.jitter)
        self.network = Network(loop, Random(scenario.seed * 2 + 2), weather)
        self.fabric = Fabric(self.network, self)
        self.vault = Vault(loop, self.network, scenario.config.store_lease, self.oracle.written)
        self.table = ProcessTable(
            loop, lambda running, signum: self.fleets[running.engine.job].signalled(running, signum)
        )
        self.controllers = [SimController(self, number) for number in range(scenario.controllers)]
        self.coordinators = [CoordinatorHost(self, number) for number in range(scenario.coordinators)]
        self.fleets = [self._fleet(number) for number in range(len(scenario.jobs))]
        self.pods = [
            SimPod(self, job, pod) for job, shape in enumerate(scenario.jobs) for pod in range(len(shape.pods))
        ]
        self.adapter = SimAdapter(self)
        self.people = People(self)
        hosts: list[SimController | CoordinatorHost | SimPod | SimAdapter | People] = [*self.controllers, *self.pods]
        for host in (*hosts, *self.coordinators, self.adapter, self.people):
            self.machines[host.machine.name] = host.machine
        self.happenings = Happenings(self)

    # --- the run ---

    async def run(self) -> None:
        """From the first start to the end of the last incident."""
        for host in self.coordinators:
            host.start()
        for controller in self.controllers:
            controller.start()
        self.adapter.start()
        for pod in self.pods:
            pod.create()
        self.happenings.start()
        await asyncio.sleep(self.scenario.calm_at)
        self.happenings.calm()
        await self.oracle.settled(SETTLED_SEC)
        await self.close()

    async def close(self) -> None:
        """Everything is killed, and nothing is left running."""
        ending: list[SimController | SimPod | Fleet] = [*self.controllers, *self.pods, *self.fleets]
        for each in ending:
            each.close()
        for host in self.coordinators:
            host.kill()
        for process in self.processes:
            process.kill()
        for _ in range(100):
            if all(process.ended() for process in self.processes):
                break
            await asyncio.sleep(0.1)
        self.oracle.left_over(self.processes)

    # --- building ---

    def process(self, name: str, machine: Machine) -> Process:
        """A new process on a machine."""
        process = Process(name, machine.name, self._killed)
        self.processes.append(process)
        return process

    def _killed(self, process: Process) -> None:
        self.fabric.killed(process)
        machine = self.machines[process.host]
        machine.ports.clear()

    def _fleet(self, number: int) -> Fleet:
        job = self.scenario.jobs[number]
        timings = Timings(
            detection_delay=job.detection,
            diagnosing=0.3,
            check_in=10.0,
            round_time=job.round_time,
            recovery_window=job.window,
            store_timeout=10.0,
            watchdog=2.0,
        )
        config = GroupConfig(job.dp_size, Dialect(job.dialect), timings=timings)
        boot = lambda: job.boot * (0.5 + self.chance.random())  # noqa: E731
        return Fleet(number, config, self.loop, self.table, boot, self.oracle.engine_changed)

    @property
    def controller_addresses(self) -> Sequence[str]:
        """Of all, leader or not."""
        return [controller.address for controller in self.controllers]

    # --- what machines ask ---

    def launch(self, command: Sequence[str]) -> int:
        """Start the engine that a NodeManager's configuration says; returns its pid."""
        kind, job, number, rank = command
        pod = self.pod(int(job), int(number))
        if kind == "headless":
            pod.seconds[int(rank)] = second = Engine(self.table, int(job), int(rank))
            return second.root.pid
        started = pod.ranks if pod.shape.one_server else (int(rank),)
        pids = [self.fleets[int(job)].start(each, pod.machine, pod.port(each)).root.pid for each in started]
        return pids[0]

    def pod(self, job: int, number: int) -> SimPod:
        """One pod."""
        return next(pod for pod in self.pods if (pod.job, pod.number) == (job, number))

    def pod_of(self, process: Process) -> SimPod | None:
        """The pod whose NodeManager a process is."""
        return next((pod for pod in self.pods if pod.process is process), None)

    def owner(self, job: int, rank: int) -> SimPod:
        """The pod of a rank."""
        return next(pod for pod in self.pods if pod.job == job and rank in pod.ranks)

    def seat_at(self, host: str, port: int) -> Seat | None:
        """The engine at an address."""
        for fleet in self.fleets:
            seat = fleet.seats.get(port - FIRST_ENGINE_PORT)
            if seat is not None and seat.machine.name == host:
                return seat
        return None

    def status(self, instance_id: int) -> InstanceStatus | None:
        """What the leading Controller shows of an instance."""
        for controller in self.controllers:
            board = self.boards.get(controller.process) if controller.process else None
            if board is not None and controller.process is self.vault.leader:
                return board.get(instance_id)
        return None

    # --- what is told ---

    def trace(self, kind: str, who: str, what: str) -> None:
        """One line of the history."""
        self.record.add(self.loop.time(), kind, who, what)

    def log(self, logger: object, method: str, event: MutableMapping[str, Any]) -> str:
        """What the daemons log: only for people, except that a defect is one."""
        process, error = PROCESS.get(), event.get("exc_info")
        deposed = isinstance(error, FtError) and error.reason is Reason.NOT_LEADER
        if error and not deposed and process is not None and process.alive:
            self.oracle.defect(event)
        if self.record.verbose:
            fields = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
            self.trace("log", process.name if process else "-", f"{method} {event['event']} {fields}")
        raise structlog.DropEvent

    def sent(self, client: Process, address: str, method: str, request: bytes) -> None:
        """A request leaves."""
        if client.name.startswith("controller"):
            name = method.rpartition("/")[2]
            self.letters[address, name] = Letter(method, request)
            self.oracle.sent(client, address, name, request)

    def called(self, client: Process, server: Process, method: str, request: bytes) -> None:
        """A request has arrived."""
        name = method.rpartition("/")[2]
        if not server.name.startswith("node") or client.name.startswith("controller"):
            self.trace("call", client.name, f"{name} to {server.name} {zlib.crc32(request):08x}")
            self.oracle.called(server, name, request)
            self.happenings.moment(f"arrive {name}", server.name)

    def answered(self, client: Process, server: Process, method: str, request: bytes, answer: Answer) -> None:
        """It was answered."""
        name = method.rpartition("/")[2]
        if not server.name.startswith("node") or client.name.startswith("controller"):
            self.trace("answer", server.name, f"{name} to {client.name} {answer.code.name} {answer.text}")
            self.oracle.answered(server, name, request, answer)
            self.happenings.moment(f"answer {name}", server.name)

    def got(self, client: Process, method: str, request: bytes) -> None:
        """A good answer has come back."""
        if method.endswith("/Status"):
            self.oracle.commands.got(request)

    def said(self, speaker: Process, hearer: Process, method: str, message: bytes) -> None:
        """One message of a stream."""
        if speaker is not hearer:
            self.record.count(message)
            self.oracle.said(speaker, hearer, method.rpartition("/")[2], message)

    def posted(self, seat: Seat, body: bytes) -> str:
        """An order has reached an engine."""
        self.trace("post", str(seat), json.dumps(json.loads(body), sort_keys=True))
        self.oracle.posted(seat, body)
        self.happenings.moment("post apply", f"{seat.engine.job}/{seat.engine.rank}")
        return ""

    def viewed(self, coordinator: Any, request: coordinator_pb2.RefreshRequest) -> None:
        """A Coordinator holds another view."""
        view = {key: sorted(ranks) for key, ranks in sorted(coordinator.view.items())}
        self.trace("view", coordinator.address, f"{view}")
        self.oracle.viewed(coordinator, request)
