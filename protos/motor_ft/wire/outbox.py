"""Reports on their way to the Controller: numbered when sent, kept until acknowledged (protocol.md section 2)."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class _Pending(Generic[T]):
    item: T
    not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class _Sent(Generic[T]):
    key: Hashable
    item: T
    at: float


class Outbox(Generic[T]):
    """A bounded queue in which the newest item of a key wins.

    What is superseded before it was sent never gets a sequence. More than ``limit`` keys become one snapshot, and no
    more than ``limit`` items are sent without an acknowledgement.
    """

    def __init__(self, limit: int, snapshot: T) -> None:
        self._limit = limit
        self._snapshot = snapshot
        self._pending: dict[Hashable, _Pending[T]] = {}
        self._sent: dict[int, _Sent[T]] = {}
        self._sequence = 0

    def put(self, key: Hashable, item: T) -> None:
        """Queue an item in place of an older one with its key."""
        self._pending.pop(key, None)
        self._pending[key] = _Pending(item)
        if len(self._pending) > self._limit:
            self.request_snapshot()

    def drop(self, key: Hashable) -> None:
        """Forget what is queued under a key and was not sent."""
        self._pending.pop(key, None)

    def request_snapshot(self) -> None:
        """Queue a snapshot in place of everything that it will contain."""
        self._pending = {_SNAPSHOT: _Pending(self._snapshot)}

    def reconnected(self) -> None:
        """A new stream: all that was not acknowledged and still holds is sent again, as one snapshot.

        What is over by now would else be believed until the snapshot comes, and that may be long enough to act on it.
        """
        self._sent.clear()
        self.request_snapshot()

    def next(self, now: float) -> tuple[int, T] | None:
        """Sequence and item to send now, or None."""
        if len(self._sent) >= self._limit:
            return None
        for key, pending in self._pending.items():
            if pending.not_before <= now:
                del self._pending[key]
                self._sequence += 1
                self._sent[self._sequence] = _Sent(key, pending.item, now)
                return self._sequence, pending.item
        return None

    def due_in(self, now: float) -> float | None:
        """Seconds until a rejected item may be sent again; None when none waits."""
        times = [pending.not_before for pending in self._pending.values() if pending.not_before > now]
        return min(times) - now if times else None

    def unacknowledged_for(self, now: float) -> float:
        """Seconds that the oldest sent item has waited for its acknowledgement."""
        return max((now - sent.at for sent in self._sent.values()), default=0.0)

    def acknowledged(self, sequence: int) -> None:
        """Everything up to ``sequence`` was processed."""
        self._sent = {number: sent for number, sent in self._sent.items() if number > sequence}

    def rejected(self, sequence: int, not_before: float) -> None:
        """Queue a refused item again, under a new number and not before a time, unless something newer says more."""
        sent = self._sent.pop(sequence, None)
        if sent is None:
            return
        newer = {later.key for number, later in self._sent.items() if number > sequence} | self._pending.keys()
        if not newer & {sent.key, _SNAPSHOT}:
            self._pending[sent.key] = _Pending(sent.item, not_before)
