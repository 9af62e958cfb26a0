"""Messages between hosts: delayed, lost, doubled, overtaken, held back by a cut."""

from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from tests.simulation.loop import SimLoop

KEEPALIVE_SEC = 15.0
"""gRPC's pings of our channels: 10 s without a word, then 5 s without an answer."""
OUTSIDE = Context()
"""Of what belongs to no process."""


@dataclass(slots=True)
class Weather:
    """How messages fare. ``loss`` and ``double`` are chances of unary ones; streams lose nothing and keep order."""

    delay_sec: float = 0.001
    jitter_sec: float = 0.001
    loss: float = 0.0
    double: float = 0.0


@dataclass(slots=True)
class Direction:
    """From one host to another. While it is cut messages wait, until it is healed or the connections break."""

    weather: Weather
    cut: bool = False
    held: list[Callable[[], None]] = field(default_factory=list)
    last_at: float = 0.0


class Connected(Protocol):
    """A call that is under way between two hosts."""

    hosts: frozenset[str]

    def broken(self) -> None:
        """Its connection is gone: both ends notice."""
        ...


class Network:
    """``rng`` decides the fate of every message, in the order in which they are sent."""

    def __init__(self, loop: SimLoop, rng: Random, weather: Weather) -> None:
        self.loop = loop
        self.calls: dict[int, Connected] = {}
        self.sent = 0
        self._rng = rng
        self._weather = weather
        self._directions: dict[tuple[str, str], Direction] = {}

    def between(self, source: str, target: str) -> Direction:
        """One direction of the path between two hosts."""
        if (source, target) not in self._directions:
            self._directions[source, target] = Direction(self._weather)
        return self._directions[source, target]

    def send(self, source: str, target: str, deliver: Callable[[], None], *, ordered: bool = False) -> None:
        """Have ``deliver`` called at the other end, once, or perhaps not at all or twice unless ``ordered``."""
        self.sent += 1
        path = self.between(source, target)
        if path.cut:
            if ordered or self._rng.random() < 0.5:
                path.held.append(deliver)
            return
        if ordered:
            path.last_at = max(path.last_at, self.loop.time() + self._delay(source, target, path.weather))
            self._at(path.last_at, deliver)
            return
        copies = 0 if self._rng.random() < path.weather.loss else 1
        if copies and self._rng.random() < path.weather.double:
            copies = 2
        for _ in range(copies):
            self._at(self.loop.time() + self._delay(source, target, path.weather), deliver)

    def cut(self, source: str, target: str) -> None:
        """Nothing gets through in this direction; connections notice it after the time of their keepalive."""
        path = self.between(source, target)
        if not path.cut:
            path.cut = True
            self._at(self.loop.time() + KEEPALIVE_SEC, lambda: self._still_cut(source, target))

    def heal(self, source: str, target: str) -> None:
        """What waited comes through."""
        path = self.between(source, target)
        path.cut = False
        held, path.held = path.held, []
        for deliver in held:
            self.send(source, target, deliver, ordered=True)

    def heal_all(self) -> None:
        """Every cut is over, and the weather is good."""
        for source, target in list(self._directions):
            self.between(source, target).weather = self._weather
            self.heal(source, target)

    def break_calls(self, *hosts: str) -> None:
        """Reset every connection between two hosts, or of one host."""
        for call in list(self.calls.values()):
            if call.hosts.issuperset(hosts):
                call.broken()

    def _still_cut(self, source: str, target: str) -> None:
        path = self.between(source, target)
        if path.cut:
            path.held.clear()
            self.break_calls(source, target)
            self._at(self.loop.time() + KEEPALIVE_SEC, lambda: self._still_cut(source, target))

    def _delay(self, source: str, target: str, weather: Weather) -> float:
        if source == target:
            return 0.0
        return weather.delay_sec + self._rng.random() * weather.jitter_sec

    def _at(self, when: float, deliver: Callable[[], None]) -> None:
        self.loop.call_at(when, deliver, context=OUTSIDE)
