"""Restarts a pod's command when it exits, as a kubelet would.

python -m tests.support.pod_keeper [--record FILE] -- COMMAND…
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

import psutil

from tests.support.processes import ROOT, dying_with_parent
from tests.support.waiting import until

POD_UID = "MOTOR_FT_POD_UID"
"""Environment variable: a new value for every start, inherited by all processes of the pod."""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One start or stop of the pod; `at` is wall-clock seconds, the exit code negative for a signal."""

    at: float
    kind: Literal["start", "stop"]
    uid: str
    pid: int
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds between a stop and the next start: doubling, back to `first` after a run of `reset_after`."""

    first: float = 0.1
    limit: float = 2.0
    reset_after: float = 10.0

    def following(self, previous: float | None, ran: float) -> float:
        if previous is None or ran >= self.reset_after:
            return self.first
        return min(previous * 2, self.limit)


class PodKeeper:
    """Keeps one pod running. When its command exits, every process of the pod is ended first."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        output: Path | None = None,
        record: Path | None = None,
        backoff: Backoff | None = None,
        grace: float = 10.0,
    ) -> None:
        """`output` collects what the pod prints (else inherited), `record` its starts and stops as JSON lines.

        `grace`: seconds from SIGTERM to SIGKILL.
        """
        self.command = list(command)
        self.records: list[PodRecord] = []
        self._env = {**os.environ, **(env or {})}
        self._cwd = cwd
        self._output = output
        self._record = record
        self._backoff = backoff or Backoff()
        self._grace = grace
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._uid = ""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the pod for the first time; OSError when the command cannot run at all."""
        await self._launch()
        self._keeper = asyncio.create_task(self._keep(), name=f"pod keeper of {self.command[0]}")

    async def stop(self) -> None:
        """SIGTERM to the command, SIGKILL to all that is left, no restart."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        if self._process is not None:
            await self._end(self._process)

    @property
    def pid(self) -> int:
        """Of the command that runs, or ran last."""
        assert self._process is not None, "the pod was not started"
        return self._process.pid

    @property
    def uid(self) -> str:
        return self._uid

    @property
    def starts(self) -> int:
        return sum(record.kind == "start" for record in self.records)

    @property
    def stops(self) -> list[PodRecord]:
        return [record for record in self.records if record.kind == "stop"]

    async def _keep(self) -> None:
        pause: float | None = None
        while True:
            process = self._process
            assert process is not None
            started = time.monotonic()
            await process.wait()
            await self._end(process)
            pause = self._backoff.following(pause, time.monotonic() - started)
            await asyncio.sleep(pause)
            await self._launch()

    async def _launch(self) -> None:
        self._uid = str(uuid.uuid4())
        output: IO[bytes] | None = self._output.open("ab") if self._output else None
        try:
            self._process = await asyncio.create_subprocess_exec(
                *dying_with_parent(self.command),
                env={**self._env, POD_UID: self._uid},
                cwd=self._cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT if output else None,
                start_new_session=True,
            )
        finally:
            if output is not None:
                output.close()
        self._note(PodRecord(time.time(), "start", self._uid, self._process.pid))

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """End the command if it runs, then whatever it left behind, and note the stop once."""
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(self._grace):
                    await process.wait()
            except TimeoutError:
                process.kill()
        code = await process.wait()
        await until(self._sweep, timeout=self._grace)
        if self.records[-1].kind == "start":
            self._note(PodRecord(time.time(), "stop", self._uid, process.pid, code))

    def _sweep(self) -> bool:
        """SIGKILL what still bears the pod's uid; True when nothing does."""
        left = [process for process in psutil.process_iter() if _belongs(process, self._uid)]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return not left

    def _note(self, record: PodRecord) -> None:
        self.records.append(record)
        if self._record is not None:
            with self._record.open("a") as file:
                file.write(json.dumps(asdict(record)) + "\n")


def _belongs(process: psutil.Process, uid: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(POD_UID) == uid
    except psutil.Error:  # it ended meanwhile, or belongs to another user
        return False


async def _run(options: argparse.Namespace) -> int:
    backoff = Backoff(options.first_backoff, options.max_backoff)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    keeper = PodKeeper(options.command, cwd=Path.cwd(), record=options.record, backoff=backoff, grace=options.grace)
    try:
        async with keeper:
            await ended.wait()
    except OSError as error:
        sys.stderr.write(f"pod keeper: cannot run {options.command[0]}: {error}\n")
        return 2
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.pod_keeper")
    parser.add_argument("--record", type=Path, default=None, help="append starts and stops as JSON lines")
    parser.add_argument("--first-backoff", type=float, default=Backoff().first, metavar="SECONDS")
    parser.add_argument("--max-backoff", type=float, default=Backoff().limit, metavar="SECONDS")
    parser.add_argument("--grace", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("command", nargs="+", help="the pod's command, after --")
    return asyncio.run(_run(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
