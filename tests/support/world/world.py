"""The world itself: pods, and one Controller after the other."""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from controller.core.case import Builder, Case
from controller.core.decision import Action
from controller.core.phases import Phase
from controller.core.ports import Clock, Store, Strategy
from controller.core.status import InstanceStatus
from controller.fault_manager.board import Board
from controller.fault_manager.environment import Environment, Settings
from controller.fault_manager.history import Histories
from controller.fault_manager.manager import FaultManager
from controller.recoveries import recoveries
from controller.store.memory import MemoryStore, Shelf
from motor_ft.model.command import Command
from motor_ft.model.engine import EngineStatus
from motor_ft.model.topology import Registration
from motor_ft.wire.tasks import Tasks
from tests.support.waiting import until
from tests.support.world.adapters import Cord, FakeCoordinator, FakeNodeManagers, FakePublisher, ScriptedStore
from tests.support.world.pods import D, FakeEngine, FakePod, U

SETTINGS = Settings(enable_dp_scale_down=True, assemble_timeout=60.0)


class LoopClock:
    """ports.Clock of the running loop, virtual where the loop's time is."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return 1_700_000_000 + self.now()


@dataclass
class Observed:
    """environment.Observer that remembers."""

    phases: dict[int, list[Phase]] = field(default_factory=dict)
    decisions: list[str] = field(default_factory=list)
    strategies: list[tuple[str, str]] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    published: dict[int, bool] = field(default_factory=dict)
    degraded_by: dict[int, int] = field(default_factory=dict)
    stages: list[str] = field(default_factory=list)
    hardware_known: tuple[int, int, int] = (0, 0, 0)
    behind: list[bool] = field(default_factory=list)
    unread: int = 0

    def epoch_behind_fleet(self, behind: bool) -> None:
        self.behind.append(behind)

    def unreadable(self, count: int) -> None:
        self.unread = count

    def phase(self, instance_id: int, phase: Phase) -> None:
        seen = self.phases.setdefault(instance_id, [])
        if not seen or seen[-1] is not phase:
            seen.append(phase)

    def serving(self, instance_id: int, published: bool) -> None:
        self.published[instance_id] = published

    def degraded(self, instance_id: int, count: int) -> None:
        self.degraded_by[instance_id] = count

    def hardware(self, adapters: int, problems: int, faults: int) -> None:
        self.hardware_known = (adapters, problems, faults)

    def decision(self, action: str) -> None:
        self.decisions.append(action)

    def strategy(self, name: str, outcome: str) -> None:
        self.strategies.append((name, outcome))

    def automation_stopped(self, instance_id: int, stopped: bool) -> None:
        self.stopped.append(instance_id)

    def forget(self, instance_id: int) -> None:
        self.forgotten.append(instance_id)

    def stage(self, name: str, seconds: float) -> None:
        self.stages.append(name)


class Controller:
    """One Controller process: FaultManager, strategies and adapters of the world."""

    def __init__(self, world: "World", store: Store) -> None:
        self._world = world
        self.cord = Cord()
        self.store = ScriptedStore(store, self.cord)
        self.nodes = FakeNodeManagers(world.at, self.cord)
        self.publisher = FakePublisher(world.coordinator, self.cord)
        self.board = Board()
        self.histories = Histories(world.clock, f"life-{next(world.lives)}")
        self.observed = Observed()
        self.started: list[str] = []
        self.launched: list[tuple[str, str]] = []
        self.strategies = recoveries(
            world.settings,
            epoch=lambda: self.manager.epoch,
            nodes=self.nodes,
            publisher=self.publisher,
            clock=world.clock,
            on_stage=self.observed.stage,
            recorder=self.histories,
        )
        self.manager = FaultManager(
            Environment(
                settings=world.settings,
                clock=world.clock,
                new_id=lambda: f"request-{next(world.ids)}",
                store=self.store,
                publisher=self.publisher,
                strategies={action: self._counted(action, builder) for action, builder in self.strategies.items()},
                board=self.board,
                histories=self.histories,
                observer=self.observed,
                probe=self.nodes.probe,
                connect=self.nodes.connect,
                forget=self.nodes.forget,
                recycle=self.nodes.recycle,
                store_problem=lambda: self.store.problem,
                degraded=lambda: [self.store.problem] if self.store.problem else [],
            )
        )

    async def start(self) -> None:
        await self.manager.start()
        self.publisher.views = self.manager
        self.publisher.kick()

    def _counted(self, action: Action, builder: Builder) -> Builder:
        """Whatever is built for this Controller is going to run."""

        def build(case: Case) -> Strategy:
            self.started.append(action)
            self.launched.append((action, case.spec.pods[0].job_name))
            return builder(case)

        return build


class World:
    """Use as an async context manager: pods of ``registrations`` and one running Controller; ``keeper`` restarts pods
    that were stopped."""

    def __init__(
        self,
        *registrations: Registration,
        settings: Settings = SETTINGS,
        keeper: bool = True,
        store: Store | None = None,
    ) -> None:
        self.settings = settings
        self.keeper = keeper
        self.clock: Clock = LoopClock()
        self.ids = itertools.count(1)
        self.lives = itertools.count(1)
        self.coordinator = FakeCoordinator()
        self.tasks = Tasks("world")
        self.stops: list[tuple[str, Command, str]] = []
        self.shelf = Shelf()
        self.pods = {pod.node_manager_address: FakePod(self, pod) for pod in registrations}
        self.controller = Controller(self, store or MemoryStore(self.shelf))

    async def __aenter__(self) -> "World":
        await self.controller.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.tasks.close()
        await self.controller.manager.close()
        await self.controller.store.close()

    # --- short names ---

    @property
    def manager(self) -> FaultManager:
        return self.controller.manager

    @property
    def store(self) -> ScriptedStore:
        return self.controller.store

    @property
    def observed(self) -> Observed:
        return self.controller.observed

    def at(self, address: str) -> FakePod:
        return self.pods[address]

    def pod(self, number: int) -> FakePod:
        return self.at(f"10.0.0.{number}:9000")

    def add(self, registration: Registration) -> FakePod:
        """One more pod, not connected yet; it takes the address of one that is gone."""
        pod = self.pods[registration.node_manager_address] = FakePod(self, registration)
        return pod

    def status(self, instance_id: int = 1) -> InstanceStatus:
        status = self.controller.board.get(instance_id)
        assert status is not None, f"instance {instance_id} is not on the board"
        return status

    def can_serve(self, instance_id: int = 1) -> bool:
        """It is there, and requests may go to it."""
        status = self.controller.board.get(instance_id)
        return status is not None and status.can_serve

    async def living(self) -> set[int]:
        """Instances that are stored, without those that are gone."""
        identities = (await self.store.load()).identities
        return {instance_id for instance_id, stored in identities.items() if not stored.record.gone_at}

    def owner(self, rank: int) -> FakePod:
        return next(pod for pod in self.pods.values() if rank in pod.engines)

    def engine(self, rank: int) -> FakeEngine:
        return self.owner(rank).engines[rank]

    def applies(self) -> dict[int, list[tuple[str, tuple[int, ...]]]]:
        """Everything that engines were told, by rank."""
        return {
            rank: engine.applies for pod in self.pods.values() for rank, engine in pod.engines.items() if engine.applies
        }

    def calls(self, *methods: str) -> list[tuple[str, str]]:
        """(method, address) of the commands that NodeManagers got."""
        return [
            (method, address)
            for address, pod in self.pods.items()
            for method, _ in pod.calls
            if not methods or method in methods
        ]

    # --- what happens ---

    async def connect(self) -> None:
        """Every pod says Hello."""
        for pod in self.pods.values():
            await pod.connect()

    async def serve(self) -> None:
        """Every pod says Hello, and instance 1 serves."""
        await self.connect()
        await self.until(self.can_serve)

    async def see(self, rank: int, status: EngineStatus) -> None:
        """The engine of a rank is in this status now, and the Controller learns it."""
        await self.owner(rank).see(rank, status)

    async def lose(self, *dead: int, among: Iterable[int] = range(4)) -> None:
        """These ranks die; the others notice."""
        for rank in among:
            await self.see(rank, D if rank in dead else U)

    async def kill(self) -> None:
        """SIGKILL of the Controller; streams end. Only what is stored is left."""
        self.controller.cord.is_cut = True
        for pod in self.pods.values():
            await pod.disconnect()
        await self.controller.manager.close()

    async def restart(self, store: Store | None = None, *, connect: bool = True) -> None:
        """A new Controller begins with what is stored."""
        self.controller = Controller(self, store or MemoryStore(self.shelf))
        await self.controller.start()
        if connect:
            await self.connect()

    async def until(self, condition: Callable[[], object], timeout: float = 150.0) -> None:
        await until(condition, timeout=timeout, every=0.2)
