"""Free TCP ports for processes that must know their port before they start."""

from __future__ import annotations

import fcntl
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

_RANGE = range(15_000, 32_000)
"""Below the kernel's ephemeral range, so that no outgoing connection takes a port meanwhile."""
_LOCKS = Path(tempfile.gettempdir()) / "motor-ft-test-ports"
_random = random.SystemRandom()
_held: list[IO[bytes]] = []


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
    file = (_LOCKS / str(port)).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return False
    _held.append(file)
    return True


def bindable(host: str, port: int) -> bool:
    """Nobody has the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        try:
            candidate.bind((host, port))
        except OSError:
            return False
    return True
