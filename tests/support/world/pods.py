"""Pods with their NodeManagers and engines, as a Controller meets them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from controller.core.ports import ApplyOrder, Attachment, Clock, GuardGrant, Reports
from controller.core.reports import (
    Directive,
    EndpointState,
    EngineFault,
    EngineHealthy,
    Heartbeat,
    Hello,
    ProcessDeath,
    Report,
    Snapshot,
    Welcome,
)
from controller.fault_manager.environment import Settings
from motor_ft.model.command import Command, ScaleDownPlan
from motor_ft.model.engine import (
    ApplyOutcome,
    EngineObservation,
    EngineStatus,
    EvidenceSource,
    FtState,
    PodEngine,
    ProbeOutcome,
    Problem,
    RankOutcome,
)
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import Endpoint, EndpointStatus, FtCapability, Registration, Role
from motor_ft.wire.tasks import Tasks
from nodemanager.core.guard import BootTime, check_apply, take
from nodemanager.core.state import (
    NodeState,
    admit,
    check_not_ended,
    finalized,
    guarded,
    relaunch_answer,
    relaunched,
    stopped,
    was_stopped,
    welcomed,
)

CAPABILITY = FtCapability(
    dialect="vllm_v1",
    engine_ft=True,
    scale_down_supported=True,
    external_lb=True,
    auto_recovery=False,
    eplb=True,
    num_redundant_experts=32,
)
FAULTS = {EngineStatus.UNHEALTHY, EngineStatus.DEAD}
LOADING_SEC = 20.0
U, D, H = EngineStatus.UNHEALTHY, EngineStatus.DEAD, EngineStatus.HEALTHY


def registration(
    number: int,
    ranks: Iterable[int],
    *,
    headless: Iterable[int] = (),
    job: str = "job",
    dp_size: int = 4,
    capability: FtCapability | None = CAPABILITY,
) -> Registration:
    """What pod ``number`` at 10.0.0.``number`` brings."""
    ip = f"10.0.0.{number}"
    endpoints = [Endpoint(rank, ip, 8000 + rank) for rank in ranks]
    endpoints += [Endpoint(rank, ip, 8000 + rank, headless=True) for rank in headless]
    return Registration(
        pod_uid=f"uid-{number}",
        job_name=job,
        model_name="model",
        engine_type="vllm",
        role=Role.UNION,
        node_name=f"node-{number}",
        pod_name=f"pod-{number}",
        pod_ip=ip,
        node_manager_address=f"{ip}:9000",
        dp_size=dp_size,
        tp_size=1,
        endpoints=tuple(endpoints),
        capability=capability,
    )


TWO_PODS = (registration(1, [0, 1]), registration(2, [2, 3]))


@dataclass
class FakeEngine:
    """One engine. ``recovers`` False: it takes an apply and never becomes healthy. ``serves`` is what a probe finds."""

    rank: int
    incarnation: str
    status: EngineStatus = H
    ft_state: FtState = FtState.NONE
    observation: int = 0
    recovers: bool = True
    serves: ProbeOutcome = ProbeOutcome.SERVED
    completions: int = 0
    applies: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)

    def read(self) -> EngineObservation:
        """A fresh reading."""
        self.observation += 1
        problem = Problem.UNREACHABLE if self.status is EngineStatus.UNKNOWN else Problem.NONE
        return EngineObservation(
            self.rank, self.status, self.incarnation, self.observation, self.ft_state, problem=problem
        )

    def complete(self) -> ProbeOutcome:
        """One completion."""
        self.completions += 1
        return self.serves

    def apply(self, request_id: str, removed: tuple[int, ...]) -> RankOutcome:
        """Accept an order and carry it out."""
        self.applies.append((request_id, removed))
        self.status, self.ft_state = (H, FtState.NONE) if self.recovers else (U, FtState.RECOVERING)
        return RankOutcome(self.rank, ApplyOutcome.ACCEPTED, observation=self.observation, engine_request_id=request_id)


class Surroundings(Protocol):
    """What a pod needs of the world."""

    settings: Settings
    clock: Clock
    tasks: Tasks
    stops: list[tuple[str, Command, str]]
    keeper: bool

    @property
    def manager(self) -> Reports:
        """The Controller that can be reached."""
        ...


class FakePod:
    """One pod: NodeManager, engines, the stream to the Controller, and what a test makes go wrong.

    ``silent`` lets no command through, ``refuses`` answers a method with an error, ``hold`` makes a method wait first.
    """

    def __init__(self, world: Surroundings, registration: Registration) -> None:
        self.world = world
        self.registration = registration
        self.state = NodeState()
        self.number = 0
        self.relaunches = 0
        self._ended: tuple[PodEngine, ...] = ()
        self.silent = False
        self.ready = True
        self.refuses: dict[str, FtError] = {}
        self.hold: dict[str, Callable[[], Awaitable[object]]] = {}
        self.calls: list[tuple[str, Command]] = []
        self.heard: list[Directive | Welcome] = []
        self.rejected: list[FtError] = []
        self.normal: dict[int, EndpointStatus] = {}
        self.engines: dict[int, FakeEngine] = {}
        self.attachment: Attachment[Report] | None = None
        self._sequence = 0
        self._watchers: set[asyncio.Queue[EngineObservation]] = set()
        self._beating: asyncio.Task[None] | None = None
        self.boot()

    @property
    def address(self) -> str:
        return self.registration.node_manager_address

    @property
    def uid(self) -> str:
        return self.registration.pod_uid

    @property
    def incarnation(self) -> str:
        return f"{self.uid}#{self.number}"

    def boot(self) -> None:
        """The pod starts, with new engines."""
        self.restart_node_manager()
        self.start_engines(H)
        self.ready, self.normal = True, {}

    def start_engines(self, status: EngineStatus) -> None:
        """New engines, of the ranks that are retired too."""
        self.engines = {
            endpoint.rank: FakeEngine(endpoint.rank, f"engine-{endpoint.rank}#{self.number}.{self.relaunches}", status)
            for endpoint in self.registration.endpoints
            if not endpoint.headless
        }

    def restart_node_manager(self) -> None:
        """The NodeManager alone starts: its journal and its engines are still there."""
        self.number += 1
        self._sequence = 0

    # --- the stream ---

    def hello(self) -> Hello:
        return Hello(
            self.uid,
            self.incarnation,
            self.number,
            self.state.fence.epoch,
            self.state.instance_id,
            replace(self.registration, endpoints=self.registered()),
        )

    def registered(self) -> tuple[Endpoint, ...]:
        """The endpoints with the engines that run now."""
        return tuple(
            replace(
                endpoint,
                incarnation=f"headless-{endpoint.rank}#{self.number}.{self.relaunches}"
                if endpoint.headless
                else self.engines[endpoint.rank].incarnation,
            )
            for endpoint in self.registration.endpoints
        )

    async def connect(self, *unacknowledged: Report) -> None:
        """Hello, Welcome, what others may repeat of an earlier stream, Snapshot, and heartbeats from then on."""
        if self._beating is not None:
            self._beating.cancel()
        self.attachment = await self.world.manager.attach(self.hello(), self.heard.append)
        welcome = self.attachment.welcome
        self.state = welcomed(
            self.state,
            welcome.instance_id,
            welcome.controller_epoch,
            welcome.generation,
            scale_down_on=welcome.enable_dp_scale_down_proxy,
        )
        for report in (*unacknowledged, self.snapshot()):
            await self.tell(report)
        self._beating = self.world.tasks.spawn(f"heartbeat {self.uid}", self._beats())

    def quiet(self) -> None:
        """No more heartbeats; the stream stays."""
        if self._beating is not None:
            self._beating.cancel()

    async def disconnect(self) -> None:
        """The stream ends."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
        if self.attachment is not None:
            self.attachment.detach()

    async def tell(self, report: Report) -> None:
        """One numbered report."""
        assert self.attachment is not None
        self._sequence += 1
        await self.attachment.deliver(self._sequence, report)

    async def _say(self, report: Report) -> None:
        try:
            await self.tell(report)
        except FtError as error:
            self.rejected.append(error)

    async def beat(self) -> None:
        """One heartbeat."""
        assert self.attachment is not None
        await self.attachment.deliver(0, Heartbeat(self.endpoint_states(all_own=not self.state.scale_down_on)))

    async def _beats(self) -> None:
        while True:
            try:
                await self.beat()
            except FtError as error:
                self.rejected.append(error)
                if error.reason is Reason.STALE_INCARNATION:  # ends the stream
                    self.world.tasks.spawn(f"reconnect {self.uid}", self._reconnect())
                    return
            await asyncio.sleep(self.world.settings.heartbeat_interval)

    async def _reconnect(self) -> None:
        try:
            await self.connect()
        except FtError as error:
            self.rejected.append(error)

    def endpoint_states(self, *, all_own: bool = False) -> tuple[EndpointState, ...]:
        return tuple(
            EndpointState(endpoint.rank, self.normal.get(endpoint.rank, EndpointStatus.NORMAL), endpoint.headless)
            for endpoint in self.registration.endpoints
            if all_own or endpoint.rank not in self.state.retired
        )

    def snapshot(self) -> Snapshot:
        """Everything as it is now."""
        readings = [engine.read() for rank, engine in self.engines.items() if rank not in self.state.retired]
        return Snapshot(
            endpoints=self.endpoint_states(),
            faults=tuple(fault(reading) for reading in readings if reading.status in FAULTS),
            deaths=(),
            healthy=tuple(EngineHealthy(reading) for reading in readings if reading.status is H),
            retired=tuple(sorted(self.state.retired)),
            ready=self.ready,
            registered=self.registered(),
        )

    async def became_ready(self) -> None:
        """The last engine of the pod is ready."""
        self.ready = True
        await self.tell(self.snapshot())

    async def see(self, rank: int, status: EngineStatus) -> None:
        """The engine of a rank is in this status now, and the Controller learns it."""
        engine = self.engines[rank]
        engine.status, engine.ft_state = status, FtState.NONE
        self.push(engine)
        reading = engine.read()
        await self.tell(EngineHealthy(reading) if status is H else fault(reading))

    async def exit(self, rank: int) -> None:
        """A process of the engine has ended."""
        engine = self.engines[rank]
        engine.status = D
        await self.tell(ProcessDeath(rank, engine.incarnation, 4711, "EngineCore ended with signal 9"))

    # --- commands ---

    async def enter(self, method: str, command: Command) -> None:
        """What comes before every command: trouble, then the fence."""
        self.calls.append((method, command))
        if (hold := self.hold.get(method)) is not None:
            await hold()
        if self.silent:
            await asyncio.sleep(self.world.settings.limits.request_timeout)
            raise FtError(Reason.OUTCOME_UNKNOWN, f"{self.address} does not answer")
        if (error := self.refuses.get(method)) is not None:
            raise error
        admit(self.state, command)

    def guard(self, command: Command, lease_sec: float, plan: ScaleDownPlan | None) -> GuardGrant:
        check_not_ended(self.state, command)
        guard = take(self.state.guard, command, lease_sec, plan, self.now())
        self.state = guarded(self.state, guard)
        mine = plan is not None and plan.removed and plan.lowest_survivor in self.engines
        return GuardGrant(guard.remaining(self.now()), 29_500 if mine else None)

    def apply(self, command: Command, order: ApplyOrder) -> tuple[RankOutcome, ...]:
        check_apply(self.state.guard, command, order.plan_hash, self.now())
        outcomes = tuple(self.engines[rank].apply(command.request_id, order.removed) for rank in order.ranks)
        for rank in order.ranks:
            self.push(self.engines[rank])
            if self.engines[rank].status is H:
                self.world.tasks.spawn(f"report {self.uid}", self._say(EngineHealthy(self.engines[rank].read())))
        return outcomes

    def finalize(self, command: Command, *, commit: bool, retired: Sequence[int]) -> None:
        own = frozenset(endpoint.rank for endpoint in self.registration.endpoints)
        self.state = finalized(self.state, command, commit=commit, retired=retired, own=own, now=self.now())

    def stop(self, command: Command, reason: str) -> None:
        """A repeat ends nothing that was started since."""
        if was_stopped(self.state, command):
            return
        self.state = replace(stopped(self.state, command), engine_starts=self.state.engine_starts + 1)
        self.world.stops.append((self.address, command, reason))
        self.world.tasks.spawn(f"keeper {self.uid}", self._end())

    async def _end(self) -> None:
        await self.disconnect()
        if self.world.keeper:
            self.boot()
            await self.connect()

    def restart_engines(self, command: Command, *, validate_only: bool) -> tuple[PodEngine, ...]:
        """All engines end and start; they are healthy after LOADING_SEC, or when ``hold["load"]`` has passed.

        A repeat gets the first answer.
        """
        if validate_only:
            return self._present()
        if relaunch_answer(self.state, command) is None:
            self.state, self._ended = relaunched(self.state, command, b""), self._present()
            self.world.tasks.spawn(f"relaunch {self.uid}", self._restart())
        return self._ended

    def _present(self) -> tuple[PodEngine, ...]:
        return tuple(
            PodEngine(endpoint.rank, endpoint.incarnation, EngineStatus.UNKNOWN, headless=True)
            if endpoint.headless
            else PodEngine(endpoint.rank, endpoint.incarnation, self.engines[endpoint.rank].status)
            for endpoint in self.registered()
            if endpoint.rank not in self.state.retired
        )

    async def _restart(self) -> None:
        self.relaunches += 1
        self.start_engines(EngineStatus.UNKNOWN)
        self.ready, self.normal = False, dict.fromkeys(self.engines, EndpointStatus.ABNORMAL)
        await self._say(self.snapshot())
        engines = self.engines
        await self.hold.get("load", partial(asyncio.sleep, LOADING_SEC))()
        if self.engines is engines:  # nobody has started them once more
            for engine in engines.values():
                engine.status = H if engine.status is EngineStatus.UNKNOWN else engine.status
            self.ready, self.normal = True, {}
            await self._say(self.snapshot())

    def now(self) -> BootTime:
        return BootTime("boot", self.world.clock.now())

    def push(self, engine: FakeEngine) -> None:
        """Tell whoever watches."""
        reading = engine.read()
        for watcher in self._watchers:
            watcher.put_nowait(reading)

    async def watch(self, ranks: Sequence[int]) -> AsyncIterator[EngineObservation]:
        queue: asyncio.Queue[EngineObservation] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            for rank in ranks:
                queue.put_nowait(self.engines[rank].read())
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)


def fault(reading: EngineObservation) -> EngineFault:
    """Report of a reading that an engine gave itself, or that could not be taken."""
    source = EvidenceSource.STATUS_UNREACHABLE if reading.problem else EvidenceSource.ENGINE_REPORTED
    return EngineFault(reading, source)
