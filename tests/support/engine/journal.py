"""What happened to a fake group, for tests and evidence bundles."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

_LIMIT = 20_000


@dataclass(frozen=True, slots=True)
class ApplyRecord:
    """One apply that reached a rank: body as parsed (or text), HTTP status and reply, None if none was sent.

    `at` is wall-clock seconds.
    """

    at: float
    generation: int
    rank: int
    incarnation: str
    body: object
    status: int | None
    reply: object


@dataclass(frozen=True, slots=True)
class Change:
    """One visible change: a push or patch of an entry, an exit, an injection."""

    at: float
    generation: int
    rank: int | None
    kind: str
    detail: object


@dataclass(slots=True)
class Journal:
    """Bounded history over all generations of a group, oldest first."""

    applies: deque[ApplyRecord] = field(default_factory=lambda: deque(maxlen=_LIMIT))
    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=_LIMIT))
    requests: set[str] = field(default_factory=set)
    """Method and path of all that engines were asked, by whomever."""

    def change(self, generation: int, rank: int | None, kind: str, detail: object = None) -> None:
        self.changes.append(Change(time.time(), generation, rank, kind, detail))

    def as_json(self) -> dict[str, Any]:
        return {
            "applies": [asdict(record) for record in self.applies],
            "changes": [asdict(change) for change in self.changes],
            "requests": sorted(self.requests),
        }
