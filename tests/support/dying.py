"""Becomes a command that gets SIGKILL when its parent dies: run as ``python -I -S dying.py PARENT-PID COMMAND...``.

A program of its own, because code between fork and exec is not safe in a process with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent has ended")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
