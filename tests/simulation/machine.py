"""What a process asks of its machine: clocks, a disk, ports, other processes, chance."""

import asyncio
import errno
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from motor_ft.model.errors import FtError, Reason
from nodemanager.core.guard import BootTime
from nodemanager.core.state import NodeState
from nodemanager.journal import Journal
from tests.simulation.loop import PROCESS, Process, SimLoop

BOOTED_SEC = 1_000.0
"""How long machines have been up when the world begins."""


@dataclass
class Machine:
    """One host: what outlives its processes. ``clock_sec`` is what its clock shows at the world's time 0."""

    name: str
    clock_sec: float = BOOTED_SEC
    slept_sec: float = 0.0
    wall_sec: float = 1_700_000_000.0
    boots: int = 1
    disk: dict[str, bytes] = field(default_factory=dict)
    disk_broken: bool = False
    disk_slow_sec: float = 0.0
    ports: dict[int, object] = field(default_factory=dict)


class SimClock:
    """For Controller and NodeManager: ``now`` is monotonic, ``wall`` may jump, ``boot`` belongs to the machine."""

    def __init__(self, loop: SimLoop, machine: Machine) -> None:
        self._loop = loop
        self._machine = machine

    def now(self) -> float:
        return self._loop.time() + self._machine.clock_sec

    def wall(self) -> float:
        return self._machine.wall_sec + self._loop.time()

    def boot(self) -> BootTime:
        return BootTime(f"{self._machine.name}-{self._machine.boots}", self.now() + self._machine.slept_sec)


class SimJournal(Journal):
    """The NodeManager's journal on a disk in memory. What a killed process wrote last is there, known to it or not.

    A disk that is slow has written at once, and says so late.
    """

    def __init__(
        self,
        machine: Machine,
        directory: Path,
        told: Callable[[str], None],
        on_write: Callable[[str, NodeState], None],
    ) -> None:
        """``on_write`` gets the directory's name and what became durable."""
        process = PROCESS.get()
        assert process is not None
        self._machine = machine
        self._process = process
        self._key = str(directory)
        self._on_write = on_write
        self._told = told
        self.problem = ""
        self._path = _Stored(machine, self._key)  # type: ignore[assignment]  # all that _load asks of a path
        self.state, self._end = self._load()
        self._turn = asyncio.Lock()
        self._thread = None  # type: ignore[assignment]  # the loop has none

    async def _save(self, state: NodeState) -> None:
        await super()._save(state)
        if self._machine.disk_slow_sec:
            await asyncio.sleep(self._machine.disk_slow_sec)

    def _write(self, line: bytes) -> None:
        if self._machine.disk_broken:
            raise FtError(Reason.STORE_UNAVAILABLE, "journal cannot be written: No space left on device")
        if self._process.alive:
            self._machine.disk[self._key] = line
            self._on_write(self._key, self._load()[0])

    async def close(self) -> None:
        async with self._turn:
            pass


class _Stored:
    def __init__(self, machine: Machine, key: str) -> None:
        self._machine = machine
        self._key = key

    def read_bytes(self) -> bytes:
        return self._machine.disk.get(self._key, b"")


class SimSocket:
    """As much of ``socket.socket`` as holding a port takes."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._port: int | None = None

    def bind(self, address: tuple[str, int]) -> None:
        port = address[1]
        if port in self._machine.ports:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self._machine.ports[port] = self
        self._port = port

    def close(self) -> None:
        if self._port is not None and self._machine.ports.get(self._port) is self:
            del self._machine.ports[self._port]


class Engine:
    """The processes of one rank's engine: its server, which is the root, EngineCore and a worker."""

    def __init__(self, table: "ProcessTable", job: int, rank: int) -> None:
        self.job = job
        self.rank = rank
        self.root = table.start(f"engine {rank}", self)
        self.core = table.start(f"VLLM::EngineCore_DP{rank}", self)
        self.worker = table.start(f"VLLM::Worker_DP{rank}", self)

    @property
    def all(self) -> "tuple[Running, ...]":
        """Root first."""
        return self.root, self.core, self.worker


class Running:
    """One process that is only watched and signalled."""

    def __init__(self, pid: int, title: str, engine: Engine) -> None:
        self.pid = pid
        self.title = title
        self.engine = engine
        self.alive = True
        self.watchers: list[Callable[[], None]] = []

    def end(self) -> None:
        """It exits."""
        if self.alive:
            self.alive = False
            watchers, self.watchers = self.watchers, []
            for watcher in watchers:
                watcher()


class ProcessTable:
    """Engine processes by pid; ``on_signal`` is what a signal does to one."""

    def __init__(self, loop: SimLoop, on_signal: Callable[[Running, signal.Signals], None]) -> None:
        self.loop = loop
        self.on_signal = on_signal
        self.running: dict[int, Running] = {}
        self._pid = 100

    def start(self, title: str, engine: Engine) -> Running:
        """A new pid."""
        self._pid += 1
        self.running[self._pid] = process = Running(self._pid, title, engine)
        return process

    def descendants(self, pid: int) -> list[tuple[int, str]]:
        """Of a root, those that live and match the default pattern."""
        engine = self.running[pid].engine
        return [(each.pid, each.title) for each in (engine.core, engine.worker) if each.alive]


class WatchedProcess:
    """In place of ``nodemanager.process.Process``."""

    def __init__(self, table: ProcessTable, pid: int, title: str, on_exit: Callable[["WatchedProcess"], None]) -> None:
        if pid not in table.running or not table.running[pid].alive:
            raise ProcessLookupError(pid)
        self.pid = pid
        self.title = title
        self.started = pid
        self._table = table
        self._running = table.running[pid]
        self._on_exit = on_exit
        self._ended = asyncio.Event()
        self._closed = False
        self._process = PROCESS.get()

    def watch(self) -> None:
        if self._running.alive:
            self._running.watchers.append(self._notice)
        else:
            self._notice()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    async def wait(self, timeout_sec: float) -> bool:
        try:
            async with asyncio.timeout(timeout_sec):
                await self._ended.wait()
        except TimeoutError:
            pass
        return self.ended

    async def gone(self, timeout_sec: float) -> bool:
        return await self.wait(timeout_sec)

    def signal(self, signum: signal.Signals) -> None:
        if self._running.alive and (self._process is None or self._process.alive):
            self._table.on_signal(self._running, signum)

    def how(self) -> str:
        return "ended"

    def close(self) -> None:
        self._closed = True

    def _notice(self) -> None:
        assert self._process is not None
        self._table.loop.call_soon(self._told, context=self._process.context.copy())

    def _told(self) -> None:
        if not self._closed and not self.ended:
            self._ended.set()
            self._on_exit(self)


class SimUuid:
    """In place of the module ``uuid``."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def uuid4(self) -> "SimUuid.Id":
        return SimUuid.Id(self._rng.getrandbits(128))

    class Id:
        """As much of a UUID as is used."""

        def __init__(self, number: int) -> None:
            self.hex = f"{number:032x}"

        def __str__(self) -> str:
            return f"{self.hex[:8]}-{self.hex[8:]}"


Launch = Callable[[Sequence[str], Process], int]
