"""Whether requests may go to an instance at all, whatever strategy runs (recovery.md section 4, baseline table)."""

import math
from typing import TYPE_CHECKING

from controller.core.baseline import isolates
from controller.core.records import IdentityRecord
from controller.fault_manager.inputs import snapshot_of

if TYPE_CHECKING:
    from controller.fault_manager.instance import InstanceActor


class Isolation:
    """Follows the hardware, and the loss of pods; nobody is routed to the instance while it is ``held``.

    It is stored before the Coordinators learn of it, and so is its end: no later Controller publishes what this one has
    withdrawn. When it cannot be stored the instance is withdrawn all the same, and is not published again before the
    end of it is stored.
    """

    def __init__(self, actor: "InstanceActor") -> None:
        self._actor = actor
        self.asked = False
        self.held = False
        self.doubted_until = -math.inf

    def restored(self, identity: IdentityRecord, now: float) -> None:
        """What the earlier Controller knew of the hardware holds until that is heard of again.

        Where no adapter says anything of all its nodes, that is for ``heartbeat_ttl_other`` seconds.
        """
        self.asked = identity.isolated
        self.held = identity.isolated or identity.dissolved
        self.stood_still(now)

    def stood_still(self, now: float) -> None:
        """Adapters have as long again."""
        self.doubted_until = now + self._actor.env.settings.heartbeat_ttl_other

    async def follow(self, now: float) -> None:
        """Store what is asked for now, then act on it; raises FtError from the store."""
        if self._actor.life.settled(now):
            doubted = self.asked and now < self.doubted_until and not self._actor.hardware.heard
            self.asked = doubted or isolates(snapshot_of(self._actor, now))
        try:
            await self._actor.settle_identity()
        finally:
            self.settle()

    def settle(self) -> None:
        """The Coordinators learn what is stored, or could not be stored."""
        identity = self._actor.identity
        held = self.asked or (identity is not None and (identity.isolated or identity.dissolved))
        if held is not self.held:
            self.held = held
            self._actor.env.publisher.update(self._actor.instance_id)
