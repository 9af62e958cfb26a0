"""The engine processes of this pod: launched, adopted, or known by their endpoint alone (recovery.md section 2)."""

import asyncio
import re
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.config import ConfigError
from motor_ft.wire.log import get_logger
from motor_ft.wire.tasks import Tasks
from nodemanager import procfs
from nodemanager.core.health import DeathReport
from nodemanager.core.ports import Clock
from nodemanager.core.state import EngineProcess, NodeState, began
from nodemanager.journal import Journal
from nodemanager.process import Launched, Process

KILL_SEC = 3.0
GONE_SEC = 30.0
"""A process with much memory on its devices takes its time to end."""
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How the process behind a rank comes to be: a command, a pid, or neither where only its endpoint is known."""

    rank: int
    command: tuple[str, ...] = ()
    pid: int = 0


class Supervisor:
    """Starts and ends engines, and reports the exit of their processes at once.

    Reported are the process itself and each descendant that was there at readiness and whose title matches; other
    helpers may come and go.
    """

    def __init__(
        self,
        specs: Sequence[EngineSpec],
        journal: Journal,
        clock: Clock,
        *,
        new_id: Callable[[], str],
        on_death: Callable[[DeathReport], None],
        log_dir: Path,
        pattern: re.Pattern[str],
        stop_grace_sec: float,
    ) -> None:
        self._specs = specs
        self._journal = journal
        self._clock = clock
        self._new_id = new_id
        self._on_death = on_death
        self._log_dir = log_dir
        self._pattern = pattern
        self._grace = stop_grace_sec
        self._roots: dict[int, Process] = {}
        self._parts: dict[int, list[Process]] = {}
        self._tasks = Tasks("supervisor")
        self._ending = False

    async def start(self) -> None:
        """Launch and adopt; every rank has its incarnation then.

        An adopted process that is gone since the NodeManager last ran is reported. Raises ConfigError for a command
        that does not exist or a pid that never ran.
        """
        if missing := self._missing():
            raise ConfigError(f"engines: {missing}")
        await self._begin_all()
        for spec in self._specs:
            if spec.pid and spec.rank not in self._roots:
                self._report(spec.rank, spec.pid, f"pid {spec.pid} ended while the NodeManager was away")

    def check_restart(self) -> None:
        """Raise FtError RELAUNCH_UNSUPPORTED unless every engine is launched here, and can be again."""
        foreign = [spec.rank for spec in self._specs if not spec.command]
        text = f"engines of ranks {foreign} were not launched by this NodeManager" if foreign else self._missing()
        if text:
            raise FtError(Reason.RELAUNCH_UNSUPPORTED, f"{text}; rebuild the instance")

    async def restart(self) -> None:
        """End every engine and, when nothing is left of them, launch them anew with new incarnations.

        Exits that this causes are no evidence. Raises FtError INTERNAL when an engine does not end: the new one would
        find its port and devices taken; OSError when one cannot be launched.
        """
        self._ending = True
        await self._end_all(self._roots)
        for process in self._processes():
            if not await process.gone(GONE_SEC):
                text = f"{process.title} (pid {process.pid}) did not end within {GONE_SEC:g} s of SIGKILL"
                raise FtError(Reason.INTERNAL, text)
        self._forget()
        self._ending = False
        await self._begin_all()

    async def watch_descendants(self) -> None:
        """From now on the exit of a matching descendant is evidence too; called at readiness."""
        for rank, root in self._roots.items():
            found = await asyncio.to_thread(procfs.descendants, root.pid, self._pattern)
            watched = {part.pid for part in self._parts.get(rank, ())}
            for pid, title in found:
                if pid not in watched:
                    self._watch_part(rank, pid, title)

    async def kill(self, rank: int) -> None:
        """End what is left of a removed rank with SIGKILL.

        Raises FtError INTERNAL when a process does not end; nothing happens where none is supervised.
        """
        for process in self._all(rank):
            process.signal(signal.SIGKILL)
        for process in self._all(rank):
            if not await process.wait(KILL_SEC):
                raise FtError(
                    Reason.INTERNAL,
                    f"pid {process.pid} of rank {rank} did not end within {KILL_SEC:g} s of SIGKILL; it may come back",
                )

    async def stop(self, *, adopted: bool) -> None:
        """End the launched engines, and the adopted ones too where asked: SIGTERM, then SIGKILL. Idempotent."""
        self._ending = True
        for root in self._roots.values():
            root.watch()  # a start that failed half-way has not come to it
        await self._end_all(rank for rank, root in self._roots.items() if adopted or isinstance(root, Launched))
        self._forget()
        await self._tasks.close()

    def _missing(self) -> str:
        """Which command does not exist; empty when all do."""
        gone = (spec for spec in self._specs if spec.command and shutil.which(spec.command[0]) is None)
        return next((f"rank {spec.rank}: there is no command {spec.command[0]!r}" for spec in gone), "")

    async def _begin_all(self) -> None:
        known = self._journal.state.engines
        present = {spec.rank: self._begin(spec, known.get(spec.rank)) for spec in self._specs}
        await self._journal.insist(lambda state: _begun(state, present, self._new_id))
        for root in self._roots.values():
            root.watch()

    def _begin(self, spec: EngineSpec, last: EngineProcess | None) -> EngineProcess:
        """The process of a rank now; its incarnation is empty when it is not the one that was known."""
        if spec.command:
            return self._launch(spec)
        if spec.pid:
            return self._adopt(spec, last)
        ended = self._journal.state.stopped is not None and not self._journal.state.ready  # with the pod
        return last if last and not (last.pid or ended) else EngineProcess("")

    def _launch(self, spec: EngineSpec) -> EngineProcess:
        self._log_dir.mkdir(parents=True, exist_ok=True)
        log = self._log_dir / f"engine-rank{spec.rank}.log"
        return self._supervise(spec.rank, Launched(spec.command, log, lambda process: self._exited(spec.rank, process)))

    def _adopt(self, spec: EngineSpec, last: EngineProcess | None) -> EngineProcess:
        """A known pid is the known engine, also when that has ended and another process got the pid meanwhile."""
        known = last if last and last.pid == spec.pid else None
        try:
            root = Process(spec.pid, "adopted engine", lambda process: self._exited(spec.rank, process))
        except ProcessLookupError:
            if known is None:
                raise ConfigError(f"engines: rank {spec.rank}: pid {spec.pid} does not run") from None
            return known
        if known is None:
            return self._supervise(spec.rank, root)
        if known.started == root.started:
            self._supervise(spec.rank, root)
        else:
            root.close()
        return known

    def _supervise(self, rank: int, root: Process) -> EngineProcess:
        self._roots[rank] = root
        _log.info("engine process", rank=rank, pid=root.pid, title=root.title)
        return EngineProcess("", root.pid, root.started)

    def _watch_part(self, rank: int, pid: int, title: str) -> None:
        try:
            part = Process(pid, title, lambda process: self._exited(rank, process))
        except ProcessLookupError:
            self._report(rank, pid, f"{title} (pid {pid}) ended at readiness")
            return
        part.watch()
        self._parts.setdefault(rank, []).append(part)
        _log.info("watching process of engine", rank=rank, pid=pid, title=title)

    def _exited(self, rank: int, process: Process) -> None:
        self._report(rank, process.pid, f"{process.title} (pid {process.pid}) {process.how()}")

    def _report(self, rank: int, pid: int, detail: str) -> None:
        if not self._ending:
            _log.warning("engine process ended", rank=rank, pid=pid, detail=detail)
            incarnation = self._journal.state.engines[rank].incarnation
            self._on_death(DeathReport(rank, incarnation, pid, detail, self._clock.now()))

    async def _end_all(self, ranks: Iterable[int]) -> None:
        await asyncio.gather(*[self._tasks.spawn(f"stop rank {rank}", self._end(rank)) for rank in ranks])

    async def _end(self, rank: int) -> None:
        root = self._roots[rank]
        root.signal(signal.SIGTERM)
        if not await root.wait(self._grace):
            _log.warning("engine does not end, killing it", rank=rank, pid=root.pid, grace=self._grace)
        try:
            await self.kill(rank)
        except FtError as error:
            _log.error("engine stays behind", rank=rank, reason=str(error))

    def _forget(self) -> None:
        for process in self._processes():
            process.close()
        self._roots.clear()
        self._parts.clear()

    def _processes(self) -> list[Process]:
        return [process for rank in self._roots for process in self._all(rank)]

    def _all(self, rank: int) -> Iterable[Process]:
        root = self._roots.get(rank)
        return () if root is None else (root, *self._parts.get(rank, ()))


def _begun(state: NodeState, present: Mapping[int, EngineProcess], new_id: Callable[[], str]) -> NodeState:
    """State with incarnations for what is new."""
    engines, starts = dict(present), state.engine_starts
    for rank, engine in present.items():
        if not engine.incarnation:
            starts += 1
            engines[rank] = replace(engine, incarnation=f"{new_id()}.{starts}")
    return began(state, engines, starts)
