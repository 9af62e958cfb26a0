"""Highest Controller term and generation ever seen for an instance (protocol.md section 3)."""

from motor_ft.model.command import Command
from motor_ft.model.errors import FtError, Reason

REMEMBERED = 1_000
"""Instances. A pod is in one at a time: one that is forgotten is long gone, and its NodeManager refuses for it."""


class Fence:
    """Kept in memory: across a restart the NodeManager's durable fence stands in front of it."""

    def __init__(self) -> None:
        self._highest: dict[int, tuple[int, int]] = {}

    def admit(self, command: Command) -> None:
        """Raise the fence to ``command``; raises STALE_EPOCH or STALE_GENERATION when it is below."""
        self.check(command)
        if command.epoch is not None:
            self._highest.pop(command.instance_id, None)  # to the end: the first was admitted longest ago
            self._highest[command.instance_id] = (command.epoch, command.generation or 0)
            if len(self._highest) > REMEMBERED:
                del self._highest[next(iter(self._highest))]

    def check(self, command: Command) -> None:
        """Raise STALE_EPOCH or STALE_GENERATION when a higher command was admitted; unfenced ones pass."""
        if command.epoch is None or (highest := self._highest.get(command.instance_id)) is None:
            return
        epoch, generation = highest
        if command.epoch < epoch:
            raise FtError(
                Reason.STALE_EPOCH,
                f"epoch {command.epoch} is over, instance {command.instance_id} has seen {epoch}",
                got=command.epoch,
                current=epoch,
            )
        if command.epoch == epoch and (command.generation or 0) < generation:
            raise FtError(
                Reason.STALE_GENERATION,
                f"generation {command.generation} is over, instance {command.instance_id} has seen {generation}",
                got=command.generation or 0,
                current=generation,
            )
