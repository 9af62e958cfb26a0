"""The histories of all instances."""

import itertools
from collections import deque
from collections.abc import Collection

from controller.core.history import Event, EventKind, History, page
from controller.core.ports import Clock
from controller.fault_manager.board import KEPT_DELETED
from motor_ft.model.errors import FtError, Reason

MAX_TEXT = 1_000
"""Characters of a text and of an attribute; what is longer is cut."""


class Histories:
    """``controller.core.ports.Events`` and ``Recorder``: of each instance that is there, and of the last that are gone.

    ``life`` names this Controller's life: sequences begin anew with the next one.
    """

    def __init__(self, clock: Clock, life: str) -> None:
        self.life = life
        self._clock = clock
        self._sequence = itertools.count(1)
        self._histories: dict[int, History] = {}
        self._gone: deque[int] = deque()

    def open(self, instance_id: int) -> None:
        """Begin the history of an instance."""
        self._histories[instance_id] = History()

    def bury(self, instance_id: int) -> None:
        """The instance is gone; its history is kept like its status."""
        self._gone.append(instance_id)
        if len(self._gone) > KEPT_DELETED:
            self._histories.pop(self._gone.popleft(), None)

    def record_once(self, instance_id: int, kind: EventKind, text: str, **attributes: object) -> None:
        """As ``record``, unless the history has the same text already."""
        history = self._histories.get(instance_id)
        if history is not None and all(event.text != text[:MAX_TEXT] for event in history.lanes([kind])[0]):
            self.record(instance_id, kind, text, **attributes)

    def record(self, instance_id: int, kind: EventKind, text: str, **attributes: object) -> None:
        """One more event, now; attributes that are None or empty are left out."""
        if (history := self._histories.get(instance_id)) is None:
            return  # the answer of a pod whose instance is long gone
        shown = {key: str(value)[:MAX_TEXT] for key, value in attributes.items() if value not in (None, "")}
        now, wall = self._clock.now(), self._clock.wall()
        history.add(Event(next(self._sequence), instance_id, kind, now, wall, text[:MAX_TEXT], shown))

    def page(
        self,
        instance_id: int | None,
        kinds: Collection[EventKind],
        *,
        after: int | None,
        newest_first: bool,
        size: int,
    ) -> list[Event]:
        """The first ``size`` events beyond a sequence; raises UNKNOWN_INSTANCE."""
        if instance_id is None:
            histories = list(self._histories.values())
        elif instance_id in self._histories:
            histories = [self._histories[instance_id]]
        else:
            raise FtError(Reason.UNKNOWN_INSTANCE, f"no events of an instance {instance_id}", instance_id=instance_id)
        return page(histories, kinds, after=after, newest_first=newest_first, size=size)
