"""The status of an instance as clients see it (RFC section 7)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from controller.core.errors import Failure, FailureCode
from controller.core.liveness import PodLiveness
from controller.core.phases import Phase
from controller.core.records import RECONFIGURATION
from controller.core.serving import can_serve
from controller.core.status import InstanceState, InstanceStatus, PodStatus
from motor_ft.model.engine import EngineStatus
from motor_ft.model.topology import Role

if TYPE_CHECKING:
    from controller.fault_manager.environment import Environment
    from controller.fault_manager.instance import InstanceActor


def status_of(actor: "InstanceActor") -> InstanceStatus:
    """Everything that clients may know; DISABLED is derived from the switches."""
    pods = [pod.registration for pod in actor.pods.all.values()]
    first = pods[0] if pods else None
    record = actor.runtime.record if actor.runtime else None
    volatile = actor.runtime.volatile if actor.runtime else None
    phase = actor.phase if actor.env.settings.scale_down_enabled else Phase.DISABLED
    published = volatile is not None and volatile.serving_published
    return InstanceStatus(
        instance_id=actor.instance_id,
        phase=phase,
        original_dp_ranks=record.original_dp_ranks if record else (),
        request_id=volatile.request_id if volatile else "",
        dead_committed=record.dead_committed if record else (),
        pending_removed_ranks=tuple(sorted(volatile.pending)) if volatile else (),
        fallback_strategy=record.fallback_strategy if record else RECONFIGURATION,
        gate=volatile.gate if volatile else None,
        engine_statuses=actor.evidence.shown(),
        serving_published=published,
        last_error=volatile.last_error if volatile else "",
        can_serve=can_serve(actor.phase, serving_published=published),
        generation=record.generation if record else 0,
        job_name=first.job_name if first else "",
        model_name=first.model_name if first else "",
        role=actor.role,
        dp_size=first.dp_size if first else 0,
        state=actor.life.state,
        pods=tuple(_pod(pod) for pod in actor.pods.all.values()),
        automation_stopped=actor.recovery.automation_stopped,
        automation_paused=bool(actor.recovery.paused),
        last_decision=_decision(actor),
        degraded=tuple(_degraded(actor)),
        update_time=actor.env.clock.wall(),
    )


def unreadable(instance_id: int, why: str, env: "Environment") -> InstanceStatus:
    """An instance of which only this is known; it is to be rebuilt."""
    return InstanceStatus(
        instance_id=instance_id,
        phase=Phase.RECONFIGURING if env.settings.scale_down_enabled else Phase.DISABLED,
        original_dp_ranks=(),
        request_id="",
        dead_committed=(),
        pending_removed_ranks=(),
        fallback_strategy=RECONFIGURATION,
        gate=None,
        engine_statuses={},
        serving_published=False,
        last_error=str(Failure(FailureCode.INTERRUPTED, f"cannot be read: {why}")),
        can_serve=False,
        generation=0,
        job_name="",
        model_name="",
        role=Role.UNION,
        dp_size=0,
        state=InstanceState.INACTIVE,
        pods=(),
        update_time=env.clock.wall(),
    )


def _decision(actor: "InstanceActor") -> str:
    """With what may have been overlooked when it was taken."""
    decision = actor.recovery.decision
    if decision is None:
        return ""
    why = "" if decision.isolate else ": what the earlier Controller knew of the hardware is not over yet"
    isolated = f" [isolated{why}]" if actor.isolation.held else ""
    unsure = f" [hardware evidence is degraded: {problems}]" if (problems := actor.hardware.problems) else ""
    return f"{decision.action}: {decision.reason}{isolated}{unsure}"


def _degraded(actor: "InstanceActor") -> Iterator[str]:
    """What a recovery of the instance needs, and does not have now."""
    yield from actor.env.degraded()
    for pod in actor.pods.all.values():
        if not pod.connected:
            yield f"NodeManager of pod {pod.registration.pod_name} is not connected"
    for rank in sorted(actor.active):
        slot = actor.evidence.slot(rank)
        if slot.shown is EngineStatus.UNKNOWN and slot.detail:
            yield f"engine of rank {rank} cannot be read: {slot.detail}"
    if problems := actor.hardware.problems:
        yield f"hardware evidence may be incomplete: {problems}"


def _pod(pod: PodLiveness) -> PodStatus:
    registration = pod.registration
    return PodStatus(
        pod_name=registration.pod_name,
        node_name=registration.node_name,
        pod_ip=registration.pod_ip,
        node_manager_address=registration.node_manager_address,
        endpoints=registration.endpoints,
        connected=pod.connected,
    )
