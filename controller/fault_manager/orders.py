"""What operators order for one instance (protocol.md section 3)."""

import asyncio
from typing import TYPE_CHECKING

from controller.core.changes import Change
from controller.core.errors import Failure, FailureCode
from controller.core.history import EventKind
from controller.core.phases import STABLE
from controller.core.ports import Order
from controller.core.status import InstanceState
from motor_ft.model.command import OperatorCommand
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.log import get_logger

if TYPE_CHECKING:
    from controller.fault_manager.instance import InstanceActor

log = get_logger(__name__)


async def obey(actor: "InstanceActor", order: Order, command: OperatorCommand) -> None:
    """Carry out an order; returns when what outlives this Controller is stored, so raises what the store says too.

    Raises UNKNOWN_INSTANCE for one that is being replaced, STALE_GENERATION, STRATEGY_RUNNING, NOT_READY,
    SHUTTING_DOWN for what this Controller would not come to any more, and OUTCOME_UNKNOWN for a rebuild that stands
    and could not be begun yet.
    """
    _check(actor, order, command)
    said = {"operator": command.operator, "reason": command.reason, "request_id": command.request_id}
    actor.note(Change(EventKind.OPERATOR, f"{order} by {command.operator}: {command.reason}", {"order": order, **said}))
    log.warning("operator acts", instance_id=actor.instance_id, order=str(order), **said)
    recovery, who = actor.recovery, f"by {command.operator}: {command.reason}"
    match order:
        case Order.PAUSE:
            recovery.paused = who
        case Order.RESUME:
            recovery.resume()
            if actor.phase not in STABLE and recovery.strategy is None and recovery.fallback_due is None:
                why = f"automation was resumed {who}, in phase {actor.phase}"
                recovery.fallback_due = Failure(FailureCode.RECONFIGURATION_REQUIRED, why)
        case Order.RECONFIGURE:
            recovery.ordered = Failure(FailureCode.RECONFIGURATION_REQUIRED, f"ordered {who}")
    generation = actor.generation
    actor.wake()
    await actor.settle_identity()
    if order is Order.RECONFIGURE:
        await _begun(actor, generation)


async def _begun(actor: "InstanceActor", generation: int) -> None:
    """A rebuild is stored as a generation of its own; after a failover that may take one heartbeat TTL."""
    settings = actor.env.settings
    patience = settings.heartbeat_ttl + settings.limits.request_timeout
    try:
        async with asyncio.timeout(patience):
            await actor.until(lambda: actor.superseded or actor.generation > generation)
    except TimeoutError as error:
        text = f"the rebuild is ordered, and could not be begun and stored within {patience:g} s; look at the instance"
        raise FtError(Reason.OUTCOME_UNKNOWN, text) from error


def _check(actor: "InstanceActor", order: Order, command: OperatorCommand) -> None:
    instance_id, expected, current = actor.instance_id, command.expected_generation, actor.generation
    if actor.superseded or actor.life.state is InstanceState.DELETED:
        text = f"instance {instance_id} is being replaced by a newer one of its job"
        raise FtError(Reason.UNKNOWN_INSTANCE, text, instance_id=instance_id)
    if expected not in (None, current):
        text = f"instance {instance_id} has generation {current} by now; look at it again before you act"
        raise FtError(Reason.STALE_GENERATION, text, got=str(expected), current=current)
    if order is not Order.RECONFIGURE:
        return
    if actor.runtime is None:
        text = f"instance {instance_id} was never ready: there is nothing to rebuild yet"
        raise FtError(Reason.NOT_READY, text)
    if actor.recovery.draining:
        raise FtError(Reason.SHUTTING_DOWN, "this Controller hands over to another one; order it there")
    if (strategy := actor.recovery.strategy) is not None:
        text = (
            f"{strategy} runs on instance {instance_id}; an instance has one strategy at a time, order again after it"
        )
        raise FtError(Reason.STRATEGY_RUNNING, text, strategy=strategy)
