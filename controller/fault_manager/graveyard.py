"""Instances that are gone: no engine of theirs may come into another one (recovery.md section 10)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from controller.core.reports import Hello
from motor_ft.model.topology import Registration

KEPT = 256
"""Instances whose engines are remembered, the newest."""
KEPT_SEC = 86_400.0
"""So long, in wall-clock time because it goes on through restarts; a clock that is set forgets earlier or later."""


@dataclass(slots=True)
class Grave:
    """One instance; where its record cannot be read ``gone_at`` is None, and its engines are known when they come."""

    instance_id: int
    generation: int
    engines: set[str]
    gone_at: float | None = None


class Graveyard:
    """By instance. An engine is known by its incarnation: of a NodeManager alone that starts again nothing is new."""

    def __init__(self) -> None:
        self._graves: dict[int, Grave] = {}
        self._met: set[tuple[int, str]] = set()

    def dig(self, grave: Grave) -> None:
        """The instance is gone."""
        self._graves[grave.instance_id] = grave

    def fill(self, instance_id: int) -> None:
        """Its engines are not remembered any more."""
        del self._graves[instance_id]

    def haunted(self, hello: Hello) -> Grave | None:
        """The instance that is gone and has left engines in this pod."""
        grave = self._graves.get(hello.previous_instance_id or 0)
        if grave is None:
            return None
        engines = engines_of([hello.registration])
        first = (grave.instance_id, hello.reporter_id)
        if grave.gone_at is None and first not in self._met:
            self._met.add(first)
            grave.engines |= engines
        return grave if engines & grave.engines else None

    def overdue(self, now: float) -> Iterator[int]:
        """Who is not to be remembered any more at this wall-clock time, the oldest first."""
        known = sorted((grave.gone_at, key) for key, grave in self._graves.items() if grave.gone_at is not None)
        for number, (gone_at, instance_id) in enumerate(known):
            if number < len(known) - KEPT or now - gone_at >= KEPT_SEC:
                yield instance_id


def engines_of(pods: Iterable[Registration]) -> set[str]:
    """Incarnations of the engines of these pods."""
    return {end.incarnation for pod in pods for end in pod.endpoints if end.incarnation}
