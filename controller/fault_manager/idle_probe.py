"""Engines on which nothing runs do not notice that a peer has died (engine-contract.md section 5, pitfall 11)."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from motor_ft.model.command import Command
from motor_ft.model.errors import FtError
from motor_ft.wire.tasks import Tasks

if TYPE_CHECKING:
    from controller.fault_manager.instance import InstanceActor


class IdleProbe:
    """Asks them for one token, so that something runs; at most once for each rank and incident.

    The completion may fail, hang or succeed: it is no evidence. What an engine notices it reports itself, as always.
    """

    def __init__(self, actor: "InstanceActor", tasks: Tasks) -> None:
        self._actor = actor
        self._tasks = tasks
        self._incident: float | None = None
        self._asked: frozenset[int] = frozenset()

    def look(self, now: float) -> None:
        """Decisions wait, a rank is DEAD: who has not noticed it in ``strategy_center_check_interval`` is asked."""
        actor, settings = self._actor, self._actor.env.settings
        since = actor.evidence.collecting_since
        if since != self._incident:
            self._incident, self._asked = since, frozenset()
        if since is None or now - since < settings.strategy_center_check_interval:
            return
        if not (settings.idle_probe and actor.evidence.dead & actor.active):
            return
        idle = actor.active - actor.evidence.unhealthy - actor.evidence.dead - self._asked
        self._asked |= idle
        for pod in actor.registrations:
            ranks = sorted(end.rank for end in pod.endpoints if end.rank in idle and not end.headless)
            if ranks:
                address = pod.node_manager_address
                self._tasks.spawn(f"idle probe {address}", self._ask(address, ranks))

    async def _ask(self, address: str, ranks: Sequence[int]) -> None:
        actor, env = self._actor, self._actor.env
        command = Command(actor.instance_id, env.new_id(), actor.epoch(), actor.generation)
        with suppress(FtError):  # what came of it is in the history of the instance
            await env.probe(address, command, ranks, env.settings.limits.request_timeout)
