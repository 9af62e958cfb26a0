"""Free TCP ports for processes that must know their port before they start."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

_RANGE = range(15_000, 32_000)
"""Below the kernel's ephemeral range, so that no outgoing connection takes a port meanwhile."""
_LOCKS = Path(tempfile.gettempdir()) / "motor-ft-test-ports"
_random = random.SystemRandom()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that could be bound a moment ago, and that no other process gets from here while this one lives."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """That many different ports; RuntimeError when the range is exhausted.

    Each is locked for the life of this process: test processes that pick at the same time never pick the same.
    """
    _LOCKS.mkdir(exist_ok=True)
    found: list[int] = []
    for port in _random.sample(_RANGE, len(_RANGE)):
        if len(found) == count:
            return found
        if _lock(port) and bindable(host, port):
            found.append(port)
    raise RuntimeError(f"no {count} free ports on {host} in {_RANGE}")


def _lock(port: int) -> bool:
    lock = os.open(_LOCKS / str(port), os.O_CREAT | os.O_WRONLY, 0o666)  # unlike a file object, it may stay open
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return False
    return True


def bindable(host: str, port: int) -> bool:
    """Nobody has the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        try:
            candidate.bind((host, port))
        except OSError:
            return False
    return True
