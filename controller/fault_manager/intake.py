"""How one report changes what is known of an instance: the one way in for evidence (recovery.md section 2)."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from controller.core.errors import Failure, FailureCode
from controller.core.evidence import FAULTY, on_death, on_fault, on_healthy, on_incarnation
from controller.core.liveness import check_heartbeat
from controller.core.reports import EndpointState, EngineFault, EngineHealthy, Heartbeat, ProcessDeath, Report, Snapshot
from motor_ft.model.engine import EngineObservation, EvidenceSource
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.log import get_logger

if TYPE_CHECKING:
    from controller.fault_manager.instance import InstanceActor

log = get_logger(__name__)


def judged(observation: EngineObservation) -> EngineFault | EngineHealthy:
    """Report of a reading that an engine gave itself: evidence when it is faulty, else the end of older readings."""
    if observation.status in FAULTY:
        return EngineFault(observation, EvidenceSource.ENGINE_REPORTED)
    return EngineHealthy(observation)


def learn(actor: "InstanceActor", report: EngineFault | EngineHealthy | ProcessDeath) -> None:
    """Change the evidence; what is said of a rank that is gone for good changes nothing."""
    now = actor.env.clock.now()
    rank = report.rank if isinstance(report, ProcessDeath) else report.observation.rank
    if rank in actor.committed:
        if isinstance(report, EngineHealthy):
            engine = report.observation.incarnation
            text = (
                f"removed rank {rank} answers HEALTHY (engine {engine or 'not known'}): something has started it again"
            )
            actor.alert(text, rank=rank, engine_incarnation=engine)
        log.debug("report of a removed rank", instance_id=actor.instance_id, rank=rank, report=type(report).__name__)
        return
    match report:
        case EngineFault():
            actor.evidence = on_fault(actor.evidence, report, now)
        case EngineHealthy():
            actor.evidence = on_healthy(actor.evidence, report, now)
        case ProcessDeath():
            actor.evidence = on_death(actor.evidence, report, now)


def take(actor: "InstanceActor", uid: str, report: Report) -> None:
    """Change the actor's evidence and liveness; raises FtError for a report that is refused, changing nothing."""
    match report:
        case Heartbeat():
            _heard(actor, uid, report.endpoints)
        case Snapshot():
            _snapshot(actor, uid, report)
        case EngineFault() | EngineHealthy():
            _said(actor, uid, report, report.observation.rank, report.observation.incarnation)
        case ProcessDeath():
            _said(actor, uid, report, report.rank, report.incarnation)
        case _:
            assert_never(report)


def _said(
    actor: "InstanceActor", uid: str, report: EngineFault | EngineHealthy | ProcessDeath, rank: int, incarnation: str
) -> None:
    """What was not acknowledged is sent again, perhaps after its engine has ended: that is no news of the next one."""
    _check_owner(actor, uid, [rank])
    if rank in actor.committed or actor.pods.all[uid].has(rank, incarnation):
        learn(actor, report)
    else:
        log.info("report of an engine that has ended", instance_id=actor.instance_id, rank=rank, engine=incarnation)


def _heard(actor: "InstanceActor", uid: str, endpoints: tuple[EndpointState, ...]) -> None:
    pod = actor.pods.all[uid]
    pending = actor.runtime.volatile.pending if actor.runtime else frozenset()
    try:
        check_heartbeat(
            pod.registration,
            endpoints,
            committed=actor.committed,
            pending=pending,
            scale_down_enabled=actor.env.settings.scale_down_enabled,
        )
    except FtError as error:
        actor.alert(error.message, pod=pod.registration.pod_name)
        raise
    actor.pods.update(uid, pod.heard(endpoints, actor.env.clock.now()))


def _snapshot(actor: "InstanceActor", uid: str, report: Snapshot) -> None:
    """Everything at once: incarnations, then deaths, then readings, so that the stronger evidence is there first."""
    readings: list[EngineFault | EngineHealthy] = [*report.faults, *report.healthy]
    ranks = [death.rank for death in report.deaths] + [reading.observation.rank for reading in readings]
    _check_owner(actor, uid, ranks)
    _check_retired(actor, report.retired)
    pod = actor.pods.all[uid]
    now = actor.env.clock.now()
    heard = pod.heard(report.endpoints, now)
    actor.pods.update(
        uid, replace(heard, ready=report.ready, snapshot_seen=True, registered=report.registered or pod.registered)
    )
    for endpoint in report.registered:
        if endpoint.rank not in actor.committed and not endpoint.headless:
            actor.evidence = on_incarnation(actor.evidence, endpoint.rank, endpoint.incarnation, now)
    for item in (*report.deaths, *readings):
        learn(actor, item)


def _check_retired(actor: "InstanceActor", retired: Iterable[int]) -> None:
    """A pod that has retired more than was ever committed lived through a commit that we did not: not believed."""
    pending = actor.runtime.volatile.pending if actor.runtime else frozenset()
    unknown = sorted(set(retired) - actor.committed - pending)
    if unknown:
        text = f"ranks {unknown} are retired at their NodeManager, but were never committed here"
        actor.recovery.fallback_due = Failure(FailureCode.INTERRUPTED, text)


def _check_owner(actor: "InstanceActor", uid: str, ranks: Iterable[int]) -> None:
    own = {endpoint.rank for endpoint in actor.pods.all[uid].registration.endpoints}
    if foreign := sorted(set(ranks) - own):
        raise FtError(Reason.UNKNOWN_RANK, f"pod {uid} reports ranks {foreign}, its own are {sorted(own)}")
