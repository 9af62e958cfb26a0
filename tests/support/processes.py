"""Commands as child processes of a test: wait for what they print, stop them, keep their output."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
"""The checkout: `python -m tests.support…` runs from here."""
DYING = Path(__file__).with_name("dying.py")


def python_module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module of this checkout with this interpreter."""
    return [sys.executable, "-m", name, *arguments]


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """The command, run so that it gets SIGKILL when this process dies, however it dies.

    Not with preexec_fn: code between fork and exec crashes now and then in a process with gRPC's threads.
    Raises FileNotFoundError as starting the command itself would.
    """
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    return [sys.executable, "-I", "-S", str(DYING), str(os.getpid()), *command]


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody collected does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class ProcessError(Exception):
    """The process ended, or did not do in time what was waited for; the text carries its output."""


class Running:
    """One process in a session of its own, its output (stdout and stderr) line by line.

    async with Running(python_module("tests.support.engine.group_server", "--dp-size=4")) as group:
        url = (await group.line(r"group=(\\S+)"))[1]
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        log: Path = Path(os.devnull),
    ) -> None:
        """``log`` gets the output too, line by line, behind what it holds."""
        self.command = list(command)
        self.name = name or Path(command[0]).name
        self.output: list[str] = []
        self._env = {**os.environ, **(env or {})}
        self._cwd = cwd
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *dying_with_parent(self.command),
            env=self._env,
            cwd=self._cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = asyncio.create_task(self._read(self._process), name=f"output of {self.name}")

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.returncode

    async def line(self, pattern: str, timeout: float = 20.0) -> re.Match[str]:
        """The first line, past or to come, in which the pattern is found.

        Raises:
            ProcessError: the process ended or the time is over without such a line.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._find(re.compile(pattern))
        except TimeoutError:
            raise self._error(f"printed no line like {pattern!r} within {timeout:g} s") from None

    async def _find(self, pattern: re.Pattern[str]) -> re.Match[str]:
        seen = 0
        while True:
            self._changed.clear()
            while seen < len(self.output):
                if match := pattern.search(self.output[seen]):
                    return match
                seen += 1
            if self._reader is None or self._reader.done():
                raise self._error(f"ended without a line like {pattern.pattern!r}")
            await self._changed.wait()

    async def wait(self, timeout: float = 20.0) -> int:
        """The exit code; ProcessError when it is still running after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                code = await self.process.wait()
                if self._reader is not None:
                    await self._reader
                return code
        except TimeoutError:
            raise self._error(f"still runs after {timeout:g} s") from None

    def signal(self, number: int) -> None:
        """Send a signal to this process alone; nothing happens if it has ended."""
        if self.process.returncode is None:
            self.process.send_signal(number)

    async def kill(self) -> int:
        """SIGKILL, as a crash."""
        self.signal(signal.SIGKILL)
        return await self.wait()

    async def stop(self, grace: float = 10.0) -> int:
        """SIGTERM, and SIGKILL to what is left after `grace` seconds; the exit code."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            return await self.wait(grace)
        except ProcessError:
            self.signal(signal.SIGKILL)
            return await self.wait()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            with self._log.open("ab", buffering=0) as log:
                while line := await process.stdout.readline():
                    log.write(line)
                    self.output.append(line.decode(errors="replace").rstrip("\n"))
                    self._changed.set()
        finally:
            self._changed.set()

    def _error(self, problem: str) -> ProcessError:
        tail = "\n".join(self.output[-30:])
        return ProcessError(f"{self.name} {problem} (exit code {self.returncode}); its output:\n{tail}")


async def accepts(host: str, port: int) -> bool:
    """Whether somebody listens there now."""
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


async def wait_port(port: int, host: str = "127.0.0.1", timeout: float = 20.0) -> None:
    """Wait until somebody listens; TimeoutError after `timeout` seconds."""
    await until(lambda: accepts(host, port), timeout, every=0.05)
