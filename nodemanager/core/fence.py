"""Which Controller may still act here (protocol.md section 3)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from motor_ft.model.command import Command
from motor_ft.model.errors import FieldError, FtError, Reason


@dataclass(frozen=True, slots=True)
class Fence:
    """The highest epoch ever seen, and for each instance the highest (epoch, generation)."""

    epoch: int | None = None
    generations: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def check_epoch(self, epoch: int) -> None:
        """Raise FtError STALE_EPOCH for the term of a former leader."""
        if self.epoch is not None and epoch < self.epoch:
            raise FtError(
                Reason.STALE_EPOCH,
                f"epoch {epoch} is over: epoch {self.epoch} was seen; only the present leader may act",
                got=epoch,
                current=self.epoch,
            )

    def check(self, command: Command) -> None:
        """Raise FtError STALE_EPOCH or STALE_GENERATION; an unfenced command passes, the guard judges it."""
        if (command.epoch is None) != (command.generation is None):
            raise FieldError({"header": "controller_epoch and generation come together, or neither"})
        if command.epoch is None or command.generation is None:
            return
        self.check_epoch(command.epoch)
        epoch, generation = self.generations.get(command.instance_id, (0, 0))
        if (command.epoch, command.generation) < (epoch, generation):
            raise FtError(
                Reason.STALE_GENERATION,
                f"generation {command.generation} of instance {command.instance_id} is over: "
                f"generation {generation} was seen in epoch {epoch}",
                got=command.generation,
                current=generation,
            )

    def note(self, instance_id: int, epoch: int | None, generation: int | None) -> "Fence":
        """The fence after a command or a Welcome that passed it."""
        if epoch is None or generation is None:
            return self
        highest = max(self.generations.get(instance_id, (0, 0)), (epoch, generation))
        return replace(
            self,
            epoch=max(epoch, self.epoch or 0),
            generations={**self.generations, instance_id: highest},
        )
