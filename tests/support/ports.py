"""Free TCP ports for processes that must know their port before they start."""

from __future__ import annotations

import random
import socket

_RANGE = range(15_000, 32_000)
"""Below the kernel's ephemeral range, so that no outgoing connection takes a port meanwhile."""
_random = random.SystemRandom()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that could be bound a moment ago."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """That many different ports; RuntimeError when the range is exhausted."""
    found = [port for port in _random.sample(_RANGE, 50 + 2 * count) if _bindable(host, port)]
    if len(found) < count:
        raise RuntimeError(f"no {count} free ports on {host} in {_RANGE}")
    return found[:count]


def _bindable(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as candidate:
        try:
            candidate.bind((host, port))
        except OSError:
            return False
    return True
