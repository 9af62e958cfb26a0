"""Adapters of one Controller process: commands, Coordinator and store, each with its troubles."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from enum import Enum, auto

from controller.core.phases import Phase
from controller.core.ports import ApplyOrder, GuardGrant, Loaded, ServingViews, Store, Stored
from controller.core.records import IdentityRecord, RuntimeRecord
from controller.core.serving import ServingInstance
from motor_ft.model.command import Command, ScaleDownPlan
from motor_ft.model.engine import EngineObservation, PodEngine, RankOutcome, RankProbe
from motor_ft.model.errors import FtError, Reason
from tests.support.world.pods import FakePod


class Cord:
    """Ties one Controller process to the world. Once it is cut, nothing gets through, in neither direction."""

    def __init__(self) -> None:
        self.is_cut = False

    async def passes(self) -> None:
        if self.is_cut:
            await asyncio.get_running_loop().create_future()


class FakeNodeManagers:
    """ports.NodeManagers for one Controller."""

    def __init__(self, at: Callable[[str], FakePod], cord: Cord) -> None:
        self._at = at
        self._cord = cord
        self.connected: list[str] = []
        self.forgotten: list[str] = []

    def connect(self, address: str) -> None:
        self.connected.append(address)

    async def _enter(self, address: str, method: str, command: Command) -> FakePod:
        await self._cord.passes()
        pod = self._at(address)
        await pod.enter(method, command)
        await self._cord.passes()
        return pod

    async def guard(self, address: str, command: Command, lease_sec: float, plan: ScaleDownPlan | None) -> GuardGrant:
        return (await self._enter(address, "guard", command)).guard(command, lease_sec, plan)

    async def status(self, address: str, command: Command, ranks: Sequence[int]) -> tuple[EngineObservation, ...]:
        pod = await self._enter(address, "status", command)
        return tuple(pod.engines[rank].read() for rank in ranks)

    async def apply(self, address: str, command: Command, order: ApplyOrder) -> tuple[RankOutcome, ...]:
        outcomes = (await self._enter(address, "apply", command)).apply(command, order)
        await self._cord.passes()
        return outcomes

    async def probe(
        self, address: str, command: Command, ranks: Sequence[int], timeout_sec: float
    ) -> tuple[RankProbe, ...]:
        pod = await self._enter(address, "probe", command)
        return tuple(RankProbe(rank, pod.engines[rank].complete()) for rank in ranks)

    async def finalize(self, address: str, command: Command, *, commit: bool, retired: Sequence[int]) -> None:
        pod = await self._enter(address, "commit" if commit else "abort", command)
        pod.finalize(command, commit=commit, retired=retired)
        await self._cord.passes()

    async def stop(self, address: str, command: Command, reason: str) -> None:
        (await self._enter(address, "stop", command)).stop(command, reason)

    def recycle(self, address: str, command: Command) -> None:
        if not self._cord.is_cut:
            self._at(address).world.tasks.spawn(f"recycle {address}", self._recycle(address, command))

    async def _recycle(self, address: str, command: Command) -> None:
        with suppress(FtError):
            await self.stop(address, command, "recycled")

    async def restart_engines(
        self, address: str, command: Command, reason: str, timeout_sec: float, *, validate_only: bool = False
    ) -> tuple[PodEngine, ...]:
        pod = await self._enter(address, "ask" if validate_only else "restart", command)
        engines = pod.restart_engines(command, validate_only=validate_only)
        await self._cord.passes()
        return engines

    async def watch(self, address: str, command: Command, ranks: Sequence[int]) -> AsyncIterator[EngineObservation]:
        pod = await self._enter(address, "watch", command)
        async for reading in pod.watch(ranks):
            yield reading

    async def forget(self, address: str) -> None:
        self.forgotten.append(address)


class FakeCoordinator:
    """What is routed to; while ``up`` is not set it confirms nothing."""

    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.up.set()
        self.held: dict[int, ServingInstance] = {}
        self.sent: list[tuple[str, int, frozenset[int]]] = []

    def ranks(self, instance_id: int = 1) -> set[int]:
        """Ranks that requests reach."""
        view = self.held.get(instance_id)
        return set(view.ranks()) if view and not view.paused else set()


class FakePublisher:
    """ports.ServingPublisher of one Controller over the one Coordinator; ``waiting`` counts what is not confirmed."""

    def __init__(self, coordinator: FakeCoordinator, cord: Cord) -> None:
        self._coordinator = coordinator
        self._cord = cord
        self.views: ServingViews | None = None
        self.waiting = 0

    async def withdraw(self, instance_id: int, timeout_sec: float) -> bool:
        return await self._change(instance_id, timeout_sec, published=False)

    async def publish(self, instance_id: int, timeout_sec: float) -> bool:
        return await self._change(instance_id, timeout_sec, published=True)

    async def _change(self, instance_id: int, timeout_sec: float, *, published: bool) -> bool:
        await self._cord.passes()
        assert self.views is not None
        self.waiting += 1
        try:
            async with asyncio.timeout(timeout_sec):
                await self._coordinator.up.wait()
        except TimeoutError:
            return False
        finally:
            self.waiting -= 1
        view = self.views.view(instance_id)
        self._hold("add" if published else "del", instance_id, view)
        return (view is not None) is published

    def update(self, instance_id: int) -> None:
        if self.views is not None and self._reaches:
            view = self.views.view(instance_id)
            self._hold("pause" if view and view.paused else "resume", instance_id, view)

    @property
    def _reaches(self) -> bool:
        return not self._cord.is_cut and self._coordinator.up.is_set()

    def kick(self) -> None:
        if self.views is None or not self._reaches:
            return
        views = {view.instance_id: view for view in self.views.views()}
        for instance_id in sorted(views.keys() | self._coordinator.held.keys()):
            self._hold("set", instance_id, views.get(instance_id))

    def _hold(self, event: str, instance_id: int, view: ServingInstance | None) -> None:
        before = self._coordinator.held.pop(instance_id, None)
        if view is not None:
            self._coordinator.held[instance_id] = view
        named = view or before
        self._coordinator.sent.append((event, instance_id, named.ranks() if named else frozenset()))
        assert self.views is not None
        self.views.confirmed(instance_id, view)


class Trouble(Enum):
    """What can happen to a write."""

    NOT_WRITTEN = auto()
    NEVER_WRITTEN = auto()
    """However often it is tried."""
    ANSWER_LOST = auto()
    KILLED_BEFORE = auto()
    KILLED_AFTER = auto()
    BROKEN = auto()


class ScriptedStore:
    """ports.Store in front of a real one.

    ``script`` names a phase, "identity", "bury", "remove" or "lead", and what happens to that write. While it is
    ``down`` nothing is done, and while ``reads_fail`` no record can be read. ``problem`` is what is known of writes.
    """

    def __init__(self, store: Store, cord: Cord) -> None:
        self.real = store
        self._cord = cord
        self.script: dict[Phase | str, Trouble] = {}
        self.down = False
        self.reads_fail = False
        self.problem = ""
        self.written: list[RuntimeRecord] = []
        self.killed = asyncio.Event()

    async def lead(self, above: int = 0) -> int:
        epoch = await self.real.lead(above)
        self._must_be_up(self.script.pop("lead", None) is not Trouble.ANSWER_LOST)
        return epoch

    def leads(self) -> bool:
        return self.real.leads()

    def leader(self) -> str:
        return self.real.leader()

    async def next_instance_id(self) -> int:
        await asyncio.sleep(0)  # no real store answers at once
        return await self.real.next_instance_id()

    async def load(self) -> Loaded:
        self._must_be_up(not self.reads_fail)
        return await self.real.load()

    async def runtime(self, instance_id: int) -> Stored[RuntimeRecord] | None:
        await self._cord.passes()
        self._must_be_up(not self.reads_fail)
        return await self.real.runtime(instance_id)

    async def save_runtime(self, instance_id: int, record: RuntimeRecord, expected: int) -> int:
        async def write() -> int:
            revision = await self.real.save_runtime(instance_id, record, expected)
            self.written.append(record)
            return revision

        return await self._write(record.phase, write)

    async def save_identity(self, record: IdentityRecord, expected: int) -> int:
        what = "bury" if record.gone_at else "identity"
        return await self._write(what, lambda: self.real.save_identity(record, expected))

    async def remove(self, instance_id: int) -> None:
        await self._cord.passes()
        self._must_be_up(self.script.pop("remove", None) is not Trouble.NOT_WRITTEN)
        await self.real.remove(instance_id)

    async def probe(self) -> None:
        self._must_be_up()
        await self.real.probe()

    async def close(self) -> None:
        await self.real.close()

    async def _write(self, what: Phase | str, write: Callable[[], Awaitable[int]]) -> int:
        await self._cord.passes()
        trouble = self.script.pop(what, None)
        if trouble is Trouble.NEVER_WRITTEN:
            self.script[what] = trouble
        if trouble is Trouble.KILLED_BEFORE:
            self._kill()
        if trouble is Trouble.BROKEN:
            raise RuntimeError("a defect of the store")
        self._must_be_up(trouble not in {Trouble.NOT_WRITTEN, Trouble.NEVER_WRITTEN})
        await self._cord.passes()
        revision = await write()
        if trouble is Trouble.KILLED_AFTER:
            self._kill()
        await self._cord.passes()
        self._must_be_up(trouble is not Trouble.ANSWER_LOST)
        return revision

    def _must_be_up(self, answers: bool = True) -> None:
        if self.down or not answers:
            raise FtError(Reason.STORE_UNAVAILABLE, "the store does not answer")

    def _kill(self) -> None:
        self._cord.is_cut = True
        self.killed.set()
