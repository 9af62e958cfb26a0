"""In the NodeManager and its gateway: what is obeyed, told and remembered."""

from dataclasses import replace
from typing import Any

import gateway.engines.engine
import nodemanager.core.applies
import nodemanager.core.fence
import nodemanager.core.state
import nodemanager.service
from gateway.engines.client import UnansweredError
from nodemanager.core.fence import Fence
from tests.simulation.mutants.mutant import DEATH, Mutant, Patch, at, engine, scene
from tests.simulation.scenario import Event
from tests.simulation.stories.node_manager import STORIES


def skip_the_epoch_check(patch: Patch) -> None:
    """A former leader is obeyed."""
    patch.setattr(nodemanager.core.fence.Fence, "check_epoch", lambda *_: None)
    patch.setattr(nodemanager.core.fence.Fence, "check", lambda *_: None)


def leave_the_removed_alive(patch: Patch) -> None:
    """What is left of a removed rank is not ended."""

    async def nothing(*_: object) -> None:
        pass

    patch.setattr(nodemanager.service.FtService, "_fence_removed", nothing)


def retry_apply_once(patch: Patch) -> None:
    """An order without an answer is sent again."""
    engine = gateway.engines.engine.Engine
    send = engine.send

    async def twice(self: Any, dialect: Any, order: Any, timeout: float, check: Any) -> Any:
        http, post = self._http, self._http.post

        async def again(*arguments: Any) -> Any:
            try:
                return await post(*arguments)
            except UnansweredError:
                return await post(*arguments)

        http.post = again
        try:
            return await send(self, dialect, order, timeout, check)
        finally:
            http.post = post

    patch.setattr(engine, "send", twice)


def obey_a_former_generation(patch: Patch) -> None:
    """Only the term counts."""
    patch.setattr(Fence, "check", lambda self, command: self.check_epoch(command.epoch))


def forget_what_was_told(patch: Patch) -> None:
    """An order is new to who has started anew since."""
    for module in nodemanager.service, nodemanager.core.applies:
        patch.setattr(module, "find", lambda *_: None)


def obey_orders_beside_the_plan(patch: Patch) -> None:
    """Whoever knows the id and the hash knows what he says."""
    patch.setattr(nodemanager.service, "check_order", lambda *_: None)


def retire_whom_the_plan_keeps(patch: Patch) -> None:
    """Whoever holds the guard may retire anybody, however the transaction ends."""
    finalized = nodemanager.core.state.finalized

    def generous(state: Any, command: Any, *, retired: Any, **rest: Any) -> Any:
        known = finalized(state, command, retired=(), **rest)
        return replace(known, retired=known.retired | frozenset(retired))

    patch.setattr(nodemanager.service, "finalized", generous)


def guard_for_what_has_ended(patch: Patch) -> None:
    """A Guard that comes late is as good as another."""
    patch.setattr(nodemanager.service, "check_not_ended", lambda *_: None)


def derive_the_port_from_the_pod(patch: Patch) -> None:
    """Every pod has a store of its own."""
    addressed = nodemanager.service.FtService._addressed  # noqa: SLF001

    def own(self: Any, order: Any, plan: Any) -> Any:
        return replace(addressed(self, order, plan), dp_store_port=29700 + min(order.ranks))

    patch.setattr(nodemanager.service.FtService, "_addressed", own)


CUT = "controller 1 - node 0/1"
PAUSED = scene(
    DEATH,
    at("store DECIDING", "stop_process", "controller 0", 11.0),
    at("store DECIDING", "cut", CUT, 40.0, "both"),
    Event(17.0, "reset", "controller 0 - node 0/0"),
    controllers=2,
)
"""A leader that is paused as its transaction begins, and wakes up while the next one waits for a pod."""


MUTANTS = (
    Mutant(skip_the_epoch_check, PAUSED, "fence"),
    Mutant(retry_apply_once, scene(engine(0, "drop_before_reply"), DEATH), "apply once"),
    Mutant(leave_the_removed_alive, scene(DEATH), "removed ranks are ended"),
    Mutant(obey_a_former_generation, STORIES["a generation that is over"].scenario, "strangers are refused"),
    Mutant(forget_what_was_told, STORIES["an order again after a crash"].scenario, "apply once"),
    Mutant(obey_orders_beside_the_plan, STORIES["an order removes others than the plan"].scenario, "one plan"),
    Mutant(retire_whom_the_plan_keeps, STORIES["an abort retires"].scenario, "strangers are refused"),
    Mutant(
        guard_for_what_has_ended,
        scene(DEATH, Event(20.0, "strange", "0/1", text="guard that is late")),
        "strangers are refused",
    ),
    Mutant(derive_the_port_from_the_pod, scene(DEATH), "one plan"),
)
