"""Runs an engine that dies with its NodeManager: ``python -I -S launch.py PARENT-PID COMMAND...`` in a new session.

Stays as the engine's parent and leads their process group. When the NodeManager has ended, in whichever way, the whole
group ends; when the engine ends, this process ends in the same way. A program of its own, because code between fork and
exec is not safe in a process with threads.
"""

import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
PARENT_ENDED = signal.SIGUSR1
HEARD = {PARENT_ENDED, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
"""What is sent to the group for the engine's sake must not end this process before it."""


def main() -> None:
    """Launch, and wait for whichever ends first."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    _end_with(parent, PARENT_ENDED)
    engine = os.fork()
    if engine == 0:
        _become(command, os.getppid())
    while True:
        signal.sigwait(HEARD)
        if os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)
        pid, status = os.waitpid(engine, os.WNOHANG)
        if pid:
            _end_like(status)


def _become(command: list[str], launcher: int) -> None:
    """Turn this process into the engine; ends with 127 and a message when that fails."""
    _end_with(launcher, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(127)


def _end_with(parent: int, signum: signal.Signals) -> None:
    """Get a signal when the parent ends; ends at once if it has."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os._exit(1)


def _end_like(status: int) -> None:
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signum = os.WTERMSIG(status)
    if signum not in {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})
    os.kill(os.getpid(), signum)


if __name__ == "__main__":
    main()
