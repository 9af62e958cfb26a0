"""What is worth an event when something that is known of an instance changes (``ListEvents``)."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from controller.core.correlation import Concern
from controller.core.decision import Decision, Snapshot
from controller.core.evidence import Evidence
from controller.core.history import EventKind
from controller.core.status import InstanceStatus


class Change(NamedTuple):
    """An event without its time."""

    kind: EventKind
    text: str
    attributes: Mapping[str, object]


def of_evidence(before: Evidence, after: Evidence) -> Iterator[Change]:
    """Ranks that became U or D, or D for another reason, or are neither any more."""
    for rank, slot in after.ranks.items() if after is not before else ():
        known = before.slot(rank)
        if (slot.status, slot.dead_source) == (known.status, known.dead_source):
            continue
        status = slot.status or slot.shown
        source = f" ({slot.dead_source.name})" if slot.dead_source else ""
        detail = f": {slot.detail}" if slot.status and slot.detail else ""
        attributes = {"rank": rank, "status": status, "source": slot.dead_source}
        attributes |= {"engine_incarnation": slot.incarnation}
        yield Change(EventKind.EVIDENCE, f"rank {rank} is {status.name}{source}{detail}", attributes)


def of_concern(before: Concern | None, after: Concern | None) -> Iterator[Change]:
    """A hardware fault that is there, has changed, or is over."""
    concern = after or before
    if concern is None or before == after:
        return
    state = "over" if after is None else "new" if before is None else "changed"
    fault, ranks = concern.fault, None if concern.ranks is None else sorted(concern.ranks)
    attributes = {"state": state, "level": concern.level, "ranks": ranks, "node": fault.node}
    attributes |= {"npu_name": fault.npu_name, "fault_code": fault.fault_code}
    yield Change(EventKind.HARDWARE, f"{state}: {concern}", attributes)


def of_decision(decision: Decision, snapshot: Snapshot) -> Change:
    """A decision, with the gist of what it looked at."""
    said: dict[str, object] = {"action": decision.action, "row": decision.row, "phase": snapshot.phase}
    said |= {"unhealthy": sorted(snapshot.unhealthy), "dead": sorted(snapshot.dead), "active": sorted(snapshot.active)}
    if decision.isolate:
        said["isolate"] = True
    return Change(EventKind.DECISION, f"{decision.action}: {decision.reason}", said)


def of_status(before: InstanceStatus | None, after: InstanceStatus) -> Iterator[Change]:
    """Life, phase, what is published, and automation that has stopped."""
    if before is None or before.state is not after.state:
        yield Change(EventKind.LIFE, f"the instance is {after.state}", {"state": after.state, "job": after.job_name})
    phase, known = (after.phase, after.generation), before and (before.phase, before.generation)
    if phase != known and after.generation:
        text = f"phase {after.phase}, generation {after.generation}"
        attributes = {
            "phase": after.phase,
            "generation": after.generation,
            "dead_committed": list(after.dead_committed),
        }
        yield Change(EventKind.PHASE, text, attributes | {"before": before and before.phase})
    if after.serving_published is not (before is not None and before.serving_published):
        ranks = list(after.alive_dp_ranks)
        text = f"the Coordinators route to ranks {ranks}" if after.serving_published else "no new requests any more"
        yield Change(EventKind.SERVING, text, {"published": str(after.serving_published).lower(), "ranks": ranks})
    if after.automation_stopped and not (before is not None and before.automation_stopped):
        yield Change(EventKind.ALERT, f"automation stopped, a person has to act: {after.last_error}", {})
