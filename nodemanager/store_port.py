"""The port of the store that survivors meet at, kept free on its node until the engine binds it (recovery.md 5)."""

import asyncio
import errno
import socket

from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.log import get_logger

_log = get_logger(__name__)


class StorePort:
    """At most one reservation in a range, which the next one does not begin with again."""

    def __init__(self, first: int, last: int) -> None:
        self._range = range(first, last + 1)
        self._next = 0
        self._held: socket.socket | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def reserve(self) -> int:
        """Bind a free port, in place of the one that is held; raises FtError PORT_UNAVAILABLE."""
        self.release()
        for _ in self._range:
            port = self._range[self._next % len(self._range)]
            self._next += 1
            held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                held.bind(("", port))
            except OSError as error:
                held.close()
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                continue
            self._held = held
            _log.info("store port reserved", port=port)
            return port
        raise FtError(
            Reason.PORT_UNAVAILABLE,
            f"no port from {self._range[0]} to {self._range[-1]} is free for the store; widen store_port",
        )

    def keep(self, seconds: float) -> None:
        """Hold what is reserved for so long from now, and then let it go."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(seconds, self.release)

    def release(self) -> None:
        """Let the engine bind it."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._held is not None:
            self._held.close()
            self._held = None
