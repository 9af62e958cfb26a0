"""Engine groups: the fake engines of ``tests.support.engine`` on simulated machines, asked without HTTP."""

import asyncio
import errno
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

from gateway.engines.client import NotSentError, UnansweredError
from gateway.engines.dialect import MAX_BODY, Reply, UnreadableError
from motor_ft.model.engine import Problem
from tests.simulation.loop import Process, SimLoop
from tests.simulation.machine import Engine, Machine, ProcessTable, Running
from tests.support.engine.config import GroupConfig
from tests.support.engine.group import Group
from tests.support.engine.handler import Request, handle
from tests.support.engine.journal import Journal
from tests.support.engine.rank import Child, Rank
from tests.support.engine.store import Store

LATENCY_SEC = 0.002


@dataclass
class Seat:
    """One engine where it serves; ``rank`` is set once its group has formed. Deaf: it takes requests, answers none.

    ``slow_sec`` is how long a request takes to reach it; ``server`` the seat whose server answers for it, where that is
    another one.
    """

    engine: Engine
    machine: Machine
    port: int
    rank: Rank | None = None
    listening: bool = True
    deaf: bool = False
    slow_sec: float = 0.0
    server: "Seat | None" = None

    def __str__(self) -> str:
        return f"job {self.engine.job} rank {self.engine.rank}"

    @property
    def serves(self) -> bool:
        """Its port accepts."""
        return self.asked.engine.root.alive and self.asked.listening and self.asked.rank is not None

    @property
    def asked(self) -> "Seat":
        """The seat whose server answers."""
        return self.server or self


class SimGroup(Group):
    """A group whose tasks are the engines' own, whose ports are simulated, and whose processes end with its ranks."""

    def __init__(self, config: GroupConfig, generation: int, fleet: "Fleet") -> None:
        super().__init__(config, Journal(), generation)
        self.process = Process(f"engines of job {fleet.job} {generation}", "engines")
        self._fleet = fleet

    def spawn(self, name: str, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """In the engines' own process, whoever asks."""
        return self.process.context.copy().run(super().spawn, name, work)

    def open_moved_store(self, master: int, ip: str, port: int) -> Store:
        """Bound on the machine of the master."""
        machine = self._fleet.seats[master].machine
        if machine.name != ip:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        if port in machine.ports:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        store = self.moved_stores[ip, port] = Store(master, lambda: self._core_gone(master), port)
        self.changes.notify()
        return store

    def record(self, rank: int | None, kind: str, detail: object = None) -> None:
        """Every visible change goes to the trace, and exits to the process table."""
        self._fleet.changed(self, rank, kind, detail)


class Fleet:
    """The engines of one job. A group forms when every rank has a new engine; until then they answer nobody."""

    def __init__(
        self,
        job: int,
        config: GroupConfig,
        loop: SimLoop,
        table: ProcessTable,
        boot_sec: Callable[[], float],
        on_change: Callable[[int, int, int | None, str, object], None],
    ) -> None:
        self.job = job
        self.config = config
        self.loop = loop
        self.table = table
        self.seats: dict[int, Seat] = {}
        self.groups: list[SimGroup] = []
        self._boot_sec = boot_sec
        self._on_change = on_change

    def start(self, rank: int, machine: Machine, port: int) -> Engine:
        """A new engine of a rank, in place of the one before."""
        if (before := self.seats.get(rank)) is not None:
            self.end(before.engine)
        engine = Engine(self.table, self.job, rank)
        self.seats[rank] = Seat(engine, machine, port)
        if rank and self.config.dialect.one_server:
            self.seats[rank].server = self.seats[0]
        self._on_change(self.job, len(self.groups), rank, "engine starts", engine.root.pid)
        self.loop.call_later(self._boot_sec(), self._form)
        return engine

    def end(self, engine: Engine) -> None:
        """All its processes are gone."""
        seat = self.seats.get(engine.rank)
        if seat is not None and seat.engine is engine and seat.rank is not None:
            seat.rank.vanish()
        for process in engine.all:
            process.end()

    def stand_in(self, rank: int) -> None:
        """An engine that was started behind everybody's back: healthy, in no group, perhaps with another process."""
        seat = self.seats[rank]
        old = seat.engine
        self.end(old)
        engine = Engine(self.table, self.job, rank)
        group = SimGroup(self.config, len(self.groups) + 1, self)
        self.groups.append(group)
        self.seats[rank] = fresh = Seat(engine, seat.machine, seat.port)
        fresh.rank = group.add(rank, str(engine.root.pid), _Host(self, fresh))

    def _form(self) -> None:
        waiting = [seat for seat in self.seats.values() if seat.rank is None and seat.engine.root.alive]
        if len(waiting) < self.config.dp_size:
            return
        group = SimGroup(self.config, len(self.groups) + 1, self)
        self.groups.append(group)
        for number in sorted(self.seats):
            seat = self.seats[number]
            seat.rank = group.add(number, str(seat.engine.root.pid), _Host(self, seat))

    def changed(self, group: SimGroup, rank: int | None, kind: str, detail: object) -> None:
        """Something visible has happened."""
        self._on_change(self.job, group.generation, rank, kind, detail)
        seat = self.seats.get(rank) if rank is not None else None
        if kind == "process" and seat is not None and seat.rank is not None and seat.rank.group is group:
            if detail in ("core_exited", "gone"):
                seat.engine.core.end()
                seat.engine.worker.end()
            if detail == "gone":
                seat.engine.root.end()

    def signalled(self, running: Running, signum: signal.Signals) -> None:
        """What a signal does to a process of an engine; every one of ours ends it."""
        engine = running.engine
        seat = self.seats.get(engine.rank)
        rank = seat.rank if seat is not None and seat.engine is engine else None
        if running is engine.root or rank is None:
            self.end(engine)
        elif running is engine.worker or self.config.dialect.one_server:
            running.end()
            rank.child_changed("worker", "died")
        else:
            rank.child_changed("engine", "died")

    def close(self) -> None:
        """End all."""
        for group in self.groups:
            group.process.kill()


class _Host:
    """The processes around a rank."""

    def __init__(self, fleet: Fleet, seat: Seat) -> None:
        self._fleet = fleet
        self._seat = seat

    def end_server(self) -> None:
        self._seat.engine.root.end()

    def listen(self, up: bool) -> None:
        self._seat.listening = up

    def kill(self, child: Child) -> None:
        engine = self._seat.engine
        self._fleet.signalled(engine.worker if child == "worker" else engine.core, signal.SIGKILL)

    def restart(self) -> None:
        self._fleet.stand_in(self._seat.engine.rank)


class SimHttp:
    """In place of ``gateway.engines.client.EngineHttp``: the engine at an address, if one listens."""

    def __init__(
        self, at: Callable[[str, int], Seat | None], on_apply: Callable[[Seat, bytes], str], me: Process
    ) -> None:
        """``on_apply`` is told of every order that arrives; it returns what goes wrong with it, empty for nothing."""
        self._at = at
        self._on_apply = on_apply
        self._me = me

    async def get(self, url: str, timeout: float) -> Reply:
        seat, path = self._find(url)
        await asyncio.sleep(_latency(seat, timeout))
        if seat is None or not seat.serves or seat.rank is None:
            raise UnreadableError(Problem.UNREACHABLE, f"{url}: connection refused")
        if seat.deaf or seat.slow_sec > timeout:
            await asyncio.sleep(timeout)
            raise UnreadableError(Problem.UNREACHABLE, f"no answer from {url} within {timeout:g} s")
        answer = await handle(seat.rank, Request("GET", path))
        return Reply(answer.status, answer.body[: MAX_BODY + 1])

    async def post(self, url: str, body: bytes, timeout: float, check: Callable[[], None] = lambda: None) -> Reply:
        seat, path = self._find(url)
        await asyncio.sleep(_latency(seat, timeout))
        if not self._me.alive:
            raise asyncio.CancelledError
        if seat is None or not seat.serves or seat.rank is None:
            raise NotSentError(f"{url}: connection refused")
        check()
        if seat.deaf or seat.slow_sec > timeout:
            await asyncio.sleep(timeout)
            raise UnansweredError(f"no answer from {url} within {timeout:g} s")
        trouble = self._on_apply(seat, body) if path.endswith("/apply") else ""
        request = Request("POST", path, {"content-type": "application/json"}, body)
        answer = await handle(seat.rank, request)
        await asyncio.sleep(LATENCY_SEC)
        if trouble or answer.reset:
            raise UnansweredError(f"{url}: {trouble or 'connection reset'}")
        return Reply(answer.status, answer.body)

    async def close(self) -> None:
        """Nothing is held."""

    def _find(self, url: str) -> tuple[Seat | None, str]:
        host, port, path = _parts(url)
        return self._at(host, port), path


def _latency(seat: Seat | None, timeout: float) -> float:
    return LATENCY_SEC + (min(seat.slow_sec, timeout) if seat is not None else 0.0)


@cache
def _parts(url: str) -> tuple[str, int, str]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0, parts.path
