"""What has happened to instances, for people: bounded, in memory (protocol.md section 1, ``ListEvents``)."""

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from operator import attrgetter

KEPT_EVENTS = 1_000
"""Of one instance."""


class EventKind(StrEnum):
    """What an event is about."""

    EVIDENCE = "evidence"
    HARDWARE = "hardware"
    DECISION = "decision"
    STRATEGY = "strategy"
    PHASE = "phase"
    STAGE = "stage"
    COMMAND = "command"
    SERVING = "serving"
    OPERATOR = "operator"
    ALERT = "alert"
    LIFE = "life"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. ``sequence`` grows over all instances of one Controller's life; ``at`` is monotonic, ``wall`` (seconds
    since the epoch) is for display only."""

    sequence: int
    instance_id: int
    kind: EventKind
    at: float
    wall: float
    text: str
    attributes: Mapping[str, str]


class History:
    """The events of one instance. When it is full, the oldest of the most frequent kind goes: a storm of evidence
    pushes out neither what was decided nor what an operator did."""

    def __init__(self, limit: int = KEPT_EVENTS) -> None:
        self._limit = limit
        self._kinds: dict[EventKind, deque[Event]] = {kind: deque() for kind in EventKind}

    def add(self, event: Event) -> None:
        """One more; sequences must ascend."""
        self._kinds[event.kind].append(event)
        if sum(map(len, self._kinds.values())) > self._limit:
            max(self._kinds.values(), key=len).popleft()

    def lanes(self, kinds: Collection[EventKind]) -> list[deque[Event]]:
        """The events of some kinds, each kind by ascending sequence."""
        return [self._kinds[kind] for kind in kinds]


def page(
    histories: Iterable[History], kinds: Collection[EventKind], *, after: int | None, newest_first: bool, size: int
) -> list[Event]:
    """The first ``size`` events beyond the sequence ``after`` in the asked order; None: from the begin."""

    def beyond(lane: deque[Event]) -> Iterator[Event]:
        if newest_first:
            return (event for event in reversed(lane) if after is None or event.sequence < after)
        return (event for event in lane if after is None or event.sequence > after)

    lanes = (beyond(lane) for history in histories for lane in history.lanes(kinds))
    return list(islice(heapq.merge(*lanes, key=attrgetter("sequence"), reverse=newest_first), size))
