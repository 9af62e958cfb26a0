"""One watched process: its exit is known at once, and no signal ever reaches another process that got its pid."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from nodemanager import procfs

LAUNCHER = Path(__file__).with_name("launch.py")
GROUP_POLL_SEC = 0.05


class Process:
    """A running process by its pidfd. ``on_exit`` is called once, in the loop, when it has ended."""

    def __init__(self, pid: int, title: str, on_exit: Callable[["Process"], None]) -> None:
        """Take hold of a process, or of the zombie it left; raises ProcessLookupError when there is none."""
        self.pid = pid
        self.title = title
        self._on_exit = on_exit
        self._fd = os.pidfd_open(pid)
        started = procfs.start_time(pid)
        if started is None:
            os.close(self._fd)
            raise ProcessLookupError(pid)
        self.started = started
        self._ended = asyncio.Event()

    def watch(self) -> None:
        """Call ``on_exit`` from now on, also for an exit before now."""
        asyncio.get_running_loop().add_reader(self._fd, self._readable)

    @property
    def ended(self) -> bool:
        """It has exited."""
        return self._ended.is_set()

    async def wait(self, timeout_sec: float) -> bool:
        """Wait for the exit; False when it did not come in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_sec):
                await self._ended.wait()
        return self.ended

    async def gone(self, timeout_sec: float) -> bool:
        """Wait until nothing of it holds ports or devices any more; False when that takes longer."""
        return await self.wait(timeout_sec)

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal, if the process still is."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signum)

    def how(self) -> str:
        """How it ended, as far as its parent alone may know."""
        return "ended"

    def close(self) -> None:
        """Watch no longer."""
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    def _readable(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        self._ended.set()
        self._on_exit(self)


class Launched(Process):
    """A child in a process group of its own, which ends when this process does.

    It stays a zombie until ``close``: so its group id cannot be given to others while members of the group may live.
    """

    def __init__(self, command: Sequence[str], log: Path, on_exit: Callable[[Process], None]) -> None:
        """Start it with output to ``log``; must run in the main thread, with which the child ends.

        Raises OSError when the log cannot be opened.
        """
        shim = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *command]
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                shim, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        super().__init__(self._child.pid, " ".join(command), on_exit)

    async def gone(self, timeout_sec: float) -> bool:
        """Wait until no member of the group runs; nobody announces the end of one."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_sec):
                while True:
                    if not await asyncio.to_thread(procfs.group_runs, self.pid):
                        return True
                    await asyncio.sleep(GROUP_POLL_SEC)
        return False

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal to the whole group, also when the process itself has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signum)

    def how(self) -> str:
        """The exit status or the signal."""
        status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if status is None:
            return "still runs"
        if status.si_code == os.CLD_EXITED:
            return f"exited with status {status.si_status}"
        named = status.si_status in set(signal.Signals)  # of real-time signals only two are
        return f"was ended by {signal.Signals(status.si_status).name if named else f'signal {status.si_status}'}"

    def close(self) -> None:
        """End what is left of the group and reap the child."""
        self.signal(signal.SIGKILL)
        self._child.poll()
        super().close()
