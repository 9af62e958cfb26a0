"""One DP rank: engine state, cached entry, recovery window, processes (engine-contract.md section 2.1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Literal, Protocol

from tests.support.engine.armed import Armed
from tests.support.engine.completions import Completions
from tests.support.engine.config import Dialect
from tests.support.engine.entry import Entry
from tests.support.engine.states import Event, Process, Status, next_status

if TYPE_CHECKING:
    from tests.support.engine.group import Group

Child = Literal["worker", "engine"]
Fate = Literal["died", "stopped", "continued"]

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
log = logging.getLogger("fake_engine")


class CommandError(Exception):
    """A recovery command that ends with this `ft_error`, the engine staying as it is."""


class Host(Protocol):
    """The processes around a rank; calls return at once and take effect soon."""

    def end_server(self) -> None:
        """The API server exits: its port refuses from now on."""

    def listen(self, up: bool) -> None:
        """Close or reopen the port without touching the engine."""

    def kill(self, child: Child) -> None:
        """SIGKILL the EngineCore or a worker; the rank hears of it through `child_changed`."""

    def restart(self) -> None:
        """Replace the engine by a fresh one on the same port, healthy and in no group."""


class Rank:
    """State of one engine. All methods run in the group's event loop."""

    def __init__(self, group: Group, number: int, incarnation: str, host: Host) -> None:
        self.group = group
        self.number = number
        self.incarnation = incarnation
        self.host = host
        self.entry = Entry(number)
        self.status = Status.HEALTHY
        self.process = Process.RUNNING
        self.dead_set: frozenset[int] = frozenset()
        self.store = group.store
        self.store_epoch = 0
        self.executor_lost = False
        self.deadline: float | None = None
        self.armed = Armed()
        self.completions = Completions(self)
        self.input_thread = asyncio.Lock()
        self.notice: asyncio.Task[None] | None = None
        self._window: asyncio.Task[None] | None = None

    @property
    def alive(self) -> frozenset[int]:
        """Expected members by original rank number, itself included."""
        return frozenset(range(self.group.config.dp_size)) - self.dead_set

    @property
    def steps(self) -> bool:
        """Whether it takes part in collectives."""
        return self.status is Status.HEALTHY and self.process is Process.RUNNING

    @property
    def core_gone(self) -> bool:
        return self.process in (Process.CORE_EXITED, Process.GONE)

    def lost_peers(self) -> list[Rank]:
        """Expected members that no collective can reach."""
        peers = self.group.ranks.values()
        return [p for p in peers if p is not self and p.number not in self.dead_set and not p.steps]

    # The entry

    def push(self, **details: object) -> None:
        self.entry.push(str(self.status), **details)
        self._changed("push")

    def patch(self, **changes: object) -> None:
        self.entry.patch(**changes)
        self._changed("patch")

    def _changed(self, kind: str) -> None:
        self.group.record(self.number, kind, self.entry.view())
        self.group.reconsider()

    # Faults and recovery

    def raise_step(self, fault_info: str = "RuntimeError") -> None:
        """A step raises here: every in-flight request is aborted, then the fault is pushed."""
        if self._enter(Event.STEP_RAISED):
            self._start_window()
            self.completions.abort()
            self.group.spawn(f"report fault of rank {self.number}", self._report_fault(fault_info))
            self.group.reconsider()

    async def _report_fault(self, fault_info: str) -> None:
        await asyncio.sleep(self.group.timings.push_gap)
        if self.status is Status.DIAGNOSING and self.process is Process.RUNNING:
            self.push()
            await asyncio.sleep(self.group.timings.diagnosing)
            await self.thawed()
            self._enter(Event.MASK_KNOWN)
        if self.status is Status.UNHEALTHY and not self.core_gone:
            self.push(fault_info=fault_info, mask=self._mask())

    def _mask(self) -> list[int] | None:
        """Suspected EP ranks, as the workers see them; None when the query failed."""
        if self.group.config.dialect is Dialect.V0_33 or self.armed.take("mask_query_fails") is not None:
            return None
        lost = {p.number for p in self.lost_peers() if p.core_gone or p.status is Status.DEAD}
        lost |= {p.number for p in self.lost_peers() if p.process is Process.FROZEN} | self.dead_set
        size = self.group.config.dp_size
        return [int(rank in lost) for rank in range(size) for _ in range(self.group.config.tp_size)]

    def lose_executor(self) -> None:
        """A worker process died."""
        self.executor_lost = True
        if self._enter(Event.EXECUTOR_FAILED):
            self._start_window()
            self.completions.abort()
            self.push()

    def recover(self, dead_set: frozenset[int]) -> None:
        """A round succeeded: a bare healthy entry, nothing names the request."""
        self.dead_set = dead_set
        if self._enter(Event.RECOVERED):
            self._stop_window()
            self.push()

    def fail_removal(self) -> None:
        """A scale_down failed after check-in: terminal."""
        if self._enter(Event.REMOVAL_FAILED):
            self.push()

    def _enter(self, event: Event) -> bool:
        status = next_status(self.group.config.dialect, self.status, event)
        if status is None or self.core_gone:
            return False
        self.status = status
        return True

    # The recovery window: from the fault, not extended by commands

    def _start_window(self) -> None:
        if self._window is None:
            seconds = self.group.timings.recovery_window
            self.deadline = asyncio.get_running_loop().time() + seconds
            self._window = self.group.spawn(f"window of rank {self.number}", self._expire(seconds))

    async def _expire(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._window = None
        self.exit_core()

    def _stop_window(self) -> None:
        if self._window is not None:
            self._window.cancel()
        self._window = self.deadline = None

    # Processes

    def child_changed(self, child: Child, fate: Fate) -> None:
        """A child process of the engine died, was stopped by SIGSTOP or continues."""
        match fate:
            case "died":
                self.exit_core() if child == "engine" else self.lose_executor()
            case "stopped":
                self.freeze()
            case "continued":
                self.thaw()

    def freeze(self) -> None:
        self._move(Process.RUNNING, Process.FROZEN)

    def thaw(self) -> None:
        self._move(Process.FROZEN, Process.RUNNING)

    def _move(self, before: Process, after: Process) -> None:
        if self.process is before and after is not before:
            self.process = after
            if self.core_gone:
                self.group.close_stores(self.number)
            self.group.record(self.number, "process", after.name.lower())
            self.group.reconsider()

    async def thawed(self) -> None:
        await self.group.changes.until(lambda: self.process is not Process.FROZEN)

    def exit_core(self) -> None:
        """EngineCore exits; no sentinel pushes, the watchdog of the API server ends it later."""
        if not self.core_gone:
            self._stop_window()
            self._move(self.process, Process.CORE_EXITED)
            self.group.spawn(f"watchdog of rank {self.number}", self._watch())

    async def _watch(self) -> None:
        await asyncio.sleep(self.group.timings.watchdog)
        self.end_server()

    def end_server(self) -> None:
        if self.process is not Process.GONE:
            self.vanish()
            self.host.end_server()

    def vanish(self) -> None:
        """All processes of the rank are gone."""
        self._stop_window()
        self._move(self.process, Process.GONE)

    def restart(self) -> None:
        """Behind everybody's back."""
        self.host.restart()

    async def run_in_engine(self, work: Coroutine[object, object, None]) -> None:
        """Run a command inside EngineCore.

        Raises:
            CommandError: by the command itself, or because EngineCore went away under it.
        """
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self.group.changes.notify())
        try:
            await self.group.changes.until(lambda: task.done() or self.core_gone)
            if not task.done():
                raise CommandError(ENGINE_DEAD)
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
