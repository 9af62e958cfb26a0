"""Light child processes titled like vLLM's, so that a real signal to one has its real effect."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable

from tests.support.engine.rank import Child, Fate

_TITLES: dict[Child, str] = {"engine": "VLLM::EngineCore_DP{rank}", "worker": "VLLM::Worker_DP{rank}"}


class Children:
    """EngineCore and worker of one rank. Each ends by EOF on its input when this process dies."""

    def __init__(self, rank: int, changed: Callable[[Child, Fate], None]) -> None:
        self._rank = rank
        self._changed = changed
        self._processes: dict[Child, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        cat = shutil.which("cat")
        assert cat is not None
        for child, title in _TITLES.items():
            self._processes[child] = subprocess.Popen(
                [title.format(rank=self._rank)],
                executable=cat,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
            )

    def kill(self, child: Child) -> None:
        """SIGKILL one; `changed` hears of it through SIGCHLD."""
        if child in self._processes:
            self._processes[child].send_signal(signal.SIGKILL)

    def on_sigchld(self) -> None:
        """Collect what the kernel has to tell about the children."""
        for child, process in list(self._processes.items()):
            pid, status = os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                continue
            if os.WIFSTOPPED(status):
                self._changed(child, "stopped")
            elif os.WIFCONTINUED(status):
                self._changed(child, "continued")
            else:
                self._forget(child)
                self._changed(child, "died")

    def _forget(self, child: Child) -> None:
        process = self._processes.pop(child)
        process.returncode = 0  # collected above; Popen must not wait for the pid again
        assert process.stdin is not None
        process.stdin.close()
        if child == "engine":
            self.stop()  # a worker does not outlive its EngineCore

    def stop(self) -> None:
        """End them all, stopped ones too."""
        while self._processes:
            _, process = self._processes.popitem()
            process.kill()
            process.communicate()
