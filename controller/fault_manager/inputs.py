"""What a decision looks at, and what a transaction starts from: frozen facts of an instance."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from controller.core.case import Case
from controller.core.decision import Action, Decision, Snapshot
from controller.core.evidence import survivor_seen_unhealthy
from controller.core.explain import Facts
from controller.core.gate import check_gate
from controller.core.transaction import Spec
from controller.fault_manager.runtime import FtRuntime
from motor_ft.model.engine import Instruction

if TYPE_CHECKING:
    from controller.fault_manager.instance import InstanceActor


def snapshot_of(actor: "InstanceActor", now: float) -> Snapshot:
    """For ``decide``."""
    settings, life = actor.env.settings, actor.life
    return Snapshot(
        phase=actor.phase,
        ready=actor.ready,
        strategy=actor.recovery.strategy,
        automation_stopped=actor.recovery.automation_stopped,
        superseded=actor.superseded,
        scale_down_enabled=settings.scale_down_enabled,
        active=actor.active,
        unhealthy=actor.evidence.unhealthy & actor.active,
        dead=actor.evidence.dead & actor.active,
        collecting_since=actor.evidence.collecting_since,
        collection_timeout_sec=settings.fault_collection_timeout,
        in_service=life.service.counts,
        correlation_window_sec=settings.correlation_window,
        hardware=actor.hardware.correlation,
        enabled=_enabled(actor),
        tried=actor.recovery.tried,
        paused=actor.recovery.paused,
        role=actor.role,
        missing=frozenset(pod.registration.pod_name for pod in life.missing(now)),
        stoppable=frozenset(pod.registration.pod_name for pod in life.stoppable(now)),
        dissolved=life.dissolved,
        store_problem=actor.env.store_problem(),
    )


def _enabled(actor: "InstanceActor") -> frozenset[Action]:
    """What is switched on; fast recovery only where the gate allows a retry (``is_applicable`` of RFC section 4.3)."""
    gate = check_gate(
        scale_down_enabled=actor.env.settings.scale_down_enabled,
        capabilities=[pod.capability for pod in actor.registrations],
        survivors=len(actor.active),
        instruction=Instruction.RETRY,
    )
    return frozenset(actor.env.strategies) - (frozenset() if gate.allowed else {Action.FAST_RECOVERY})


def facts_of(actor: "InstanceActor", now: float) -> Facts:
    """For ``explain``."""
    return Facts(
        snapshot=snapshot_of(actor, now),
        evidence=actor.evidence,
        pods=actor.registrations,
        recovery_timeout_sec=_recovery_timeout(actor),
        begin_window_sec=actor.env.settings.limits.begin_window,
        hardware_problems=actor.hardware.problems,
        first=_first(actor, now),
        held=tuple(_held(actor, now)),
    )


def _first(actor: "InstanceActor", now: float) -> Decision | None:
    """What comes before any row of the table."""
    if pods := ", ".join(pod.registration.pod_name for pod in actor.life.unheard(now)):
        text = f"the Controller has started: it waits for the snapshots of {pods}, at most one heartbeat TTL"
        return Decision(Action.WAIT, text, "start", actor.life.hold_until)
    if (due := actor.recovery.due) is not None:
        return Decision(Action.INSTANCE_RECONFIGURATION, str(due), "due")
    return None


def _held(actor: "InstanceActor", now: float) -> Iterator[str]:
    if not actor.env.store.leads():
        yield "this Controller does not lead"
    if problem := actor.env.store_problem():
        yield f"the store cannot be written: {problem}"
    if not actor.assembled:
        came = sorted(each.rank for pod in actor.registrations for each in pod.endpoints if not each.headless)
        pods, ttl = actor.pods.all.values(), actor.env.settings.heartbeat_ttl
        unready = ", ".join(pod.registration.pod_name for pod in pods if not pod.well(now, ttl)) or "none"
        yield f"not all pods of the instance are here and ready: ranks {came} are here; pods not ready: {unready}"
    if actor.recovery.due is None and (fallback := actor.recovery.fallback_due) is not None:
        yield f"a reconfiguration is due, and held: {fallback}"


def case_of(actor: "InstanceActor", runtime: FtRuntime, reason: str) -> Case:
    """For one strategy."""
    return Case(
        _spec_of(actor, runtime),
        reason,
        runtime,
        replaced=actor.replaced.wait,
        engines=actor,
        recovered=lambda: actor.until(lambda: actor.well),
        spare=actor.spare_prefill,
        dissolve=actor.dissolve,
    )


def _spec_of(actor: "InstanceActor", runtime: FtRuntime) -> Spec:
    """With an id and a generation of its own."""
    settings = actor.env.settings
    dead = actor.evidence.dead & actor.active
    sources = {rank: actor.evidence.slot(rank).dead_source for rank in dead}
    return Spec(
        instance_id=actor.instance_id,
        request_id=actor.env.new_id(),
        generation=runtime.record.generation + 1,
        previous_phase=runtime.record.phase,
        pods=actor.registrations,
        original=frozenset(runtime.record.original_dp_ranks),
        dead_committed=actor.committed,
        candidates={rank: source for rank, source in sources.items() if source is not None},
        unhealthy_since=survivor_seen_unhealthy(actor.evidence, actor.active - dead),
        scale_down_enabled=settings.scale_down_enabled,
        recovery_timeout=_recovery_timeout(actor),
        limits=settings.limits,
        completion_probe=settings.completion_probe.of(actor.role),
        recycles=settings.enable_dp_scale_up,
    )


def _recovery_timeout(actor: "InstanceActor") -> float:
    """The shortest that an engine has stated, else the configured one."""
    capabilities = [pod.capability for pod in actor.registrations]
    stated = [c.engine_recovery_timeout_sec for c in capabilities if c is not None and c.engine_recovery_timeout_sec]
    return min(stated, default=actor.env.settings.engine_recovery_timeout)
