"""Whether a process grows with its age. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

WARM_UP = 0.25
"""The part of a life that is not judged: imports, pools and caches fill."""
LEAST = 12
"""Values to judge, after the warm-up; with fewer, noise would be judged."""
LEAST_SEC = 60.0
"""Of a life that is judged by itself."""
AT_REST = 0.25
"""A leak goes on: what has grown by less than this part of it between the middle and the end has come to rest."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How much may be noise: ``absolute``, or that part of what there was if that is more."""

    absolute: float
    relative: float = 0.1


LIMITS: Mapping[str, Limit] = {
    "rss": Limit(6 * 2**20),
    "fds": Limit(6),
    "threads": Limit(4),
    "tasks": Limit(6),
}
"""An allocator gives memory back late, and in pieces; a recovery that runs has a few connections and tasks more."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one time; ``life`` is its pid, ``rss`` in bytes, ``at`` in seconds."""

    at: float
    name: str
    life: int
    rss: int
    fds: int
    threads: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Medians of the thirds of what is judged."""

    first: float
    middle: float
    last: float
    limit: float

    @property
    def leaks(self) -> bool:
        """It is more than noise, and it has not come to rest."""
        grown = self.last - self.first
        return grown > self.limit and self.last - self.middle > AT_REST * grown


def growth(values: Sequence[float], limit: Limit) -> Growth | None:
    """Of values in the order of time, without the warm-up; None when they are too few."""
    judged = values[int(len(values) * WARM_UP) :]
    if len(judged) < LEAST:
        return None
    third = len(judged) // 3
    first, middle, last = (median(part) for part in (judged[:third], judged[third:-third], judged[-third:]))
    return Growth(first, middle, last, max(limit.absolute, limit.relative * first))


@dataclass(frozen=True, slots=True)
class Judgement:
    """One daemon: its longest life, and all its lives one after the other (what a restart inherits from the disk).

    Either is empty when there was too little to judge. ``seconds`` is how long the longest life was.
    """

    name: str
    lives: int
    seconds: float
    within: Mapping[str, Growth]
    across: Mapping[str, Growth]

    @property
    def leaks(self) -> list[str]:
        """What grows."""
        return [name for each in (self.within, self.across) for name, growth in each.items() if growth.leaks]

    @property
    def judged(self) -> bool:
        """There was enough."""
        return bool(self.within or self.across)


def judge(samples: Iterable[Sample]) -> list[Judgement]:
    """Every daemon, by name."""
    by_name: dict[str, dict[int, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for sample in samples:
        by_name[sample.name][sample.life].append(sample)
    return [_judge(name, list(lives.values())) for name, lives in sorted(by_name.items())]


def _judge(name: str, lives: list[list[Sample]]) -> Judgement:
    longest = max(lives, key=len)
    seconds = longest[-1].at - longest[0].at
    within, across = {}, {}
    for quantity, limit in LIMITS.items():
        by_life = [[float(getattr(each, quantity)) for each in life] for life in lives]
        if seconds >= LEAST_SEC and (found := growth(max(by_life, key=len), limit)):
            within[quantity] = found
        if found := growth([median(values) for values in by_life], limit):
            across[quantity] = found
    return Judgement(name, len(lives), seconds, within, across)
