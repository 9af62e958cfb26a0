"""The rendezvous stores of a group: keys are never deleted (engine-contract.md section 2.1)."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable


class Store:
    """A TCP store hosted by one rank. `lost` tells whether its host process is gone."""

    def __init__(self, host_rank: int, lost: Callable[[], bool], port: int = 0) -> None:
        self.host_rank = host_rank
        self.port = port
        self.keys: dict[str, str] = {}
        self.clients: set[int] = set()
        self.finished: set[int] = set()
        """Ranks whose worker command of the round on this store went well, dialect (a)."""
        self._host_lost = lost
        self._open = True
        self._listener: socket.socket | None = None

    @property
    def lost(self) -> bool:
        return not self._open or self._host_lost()

    def listen(self, ip: str, port: int) -> None:
        """Really bind the address, as the new store master does.

        Raises:
            OSError: the address is not local or the port is taken.
            OverflowError, TypeError: the values are no address at all.
        """
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((ip, port))
            listener.listen()
        except BaseException:
            listener.close()
            raise
        self.port = port
        self._listener = listener

    def close(self) -> None:
        self._open = False
        if self._listener is not None:
            self._listener.close()


def bind_failure(port: object, error: Exception) -> str:
    """torch's text for a store that cannot listen."""
    code = error.errno if isinstance(error, OSError) else None
    name = errno.errorcode.get(code, "EINVAL") if code is not None else "EINVAL"
    return (
        "The server socket has failed to listen on any local network address. "
        f"port: {port}, useIpv6: false, code: -{code or errno.EINVAL}, name: {name}, message: {error}"
    )


STORE_LOST = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"


def wait_timeout(seconds: float, key: str) -> str:
    return f"wait timeout after {seconds * 1000:.0f}ms, keys: /{key}"


def connect_timeout(seconds: float, ip: object, port: object) -> str:
    return f"The client socket has timed out after {seconds * 1000:.0f}ms while trying to connect to ({ip}, {port})."
