"""Becomes an engine that dies with its NodeManager: run as ``python -I -S launch.py PARENT-PID COMMAND...``.

A program of its own, because code between fork and exec is not safe in a process with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, then become the command; ends with 127 and a message when that fails."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the NodeManager ended while it launched this engine")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main()
