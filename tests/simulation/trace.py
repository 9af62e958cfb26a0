"""The history of a run: a hash of all of it, and its lines where somebody wants to read them."""

import hashlib
import zlib


class Trace:
    """``verbose`` keeps the lines, logs included, which are no part of the hash."""

    def __init__(self, *, verbose: bool = False) -> None:
        self.verbose = verbose
        self.lines: list[str] = []
        self._hash = hashlib.sha256()
        self._messages = 0

    def add(self, at: float, kind: str, who: str, what: str) -> None:
        """One thing has happened."""
        if kind != "log":
            self._hash.update(f"{at:.6f} {kind} {who} {what} {self._messages:08x}\n".encode())
        if self.verbose:
            self.lines.append(f"{at:10.4f}  {kind:7} {who:14} {what}")

    def count(self, message: bytes) -> None:
        """One more message on a stream: too many to be told one by one."""
        self._messages = zlib.crc32(message, self._messages)

    @property
    def digest(self) -> str:
        """The same for the same history."""
        return self._hash.hexdigest()[:16]
