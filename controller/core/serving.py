"""The serving view: a pure projection of topology and runtime (RFC section 3.2); topology is never edited."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from controller.core.phases import STABLE, Phase
from controller.core.records import IdentityRecord
from motor_ft.model.topology import Endpoint, Role


class ServingEvent(StrEnum):
    """What is told to a Coordinator; wire values of its HTTP interface."""

    ADD = "add"
    DEL = "del"
    SET = "set"
    PAUSE = "pause"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class ServingPod:
    """One pod of a view."""

    ip: str
    node_manager_port: int
    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class ServingInstance:
    """One instance of a view; while it is ``paused`` no new request may go to it, and those under way go on."""

    instance_id: int
    job_name: str
    model_name: str
    engine_type: str
    role: Role
    dp_size: int
    tp_size: int
    pods: tuple[ServingPod, ...]
    paused: bool = False

    def ranks(self) -> frozenset[int]:
        """Ranks that the view names."""
        return frozenset(endpoint.rank for pod in self.pods for endpoint in pod.endpoints)


def project(
    identity: IdentityRecord,
    phase: Phase,
    dead_committed: Iterable[int],
    *,
    withdrawn: bool,
    paused: bool = False,
) -> ServingInstance | None:
    """What of the instance may be published right now; None for nothing.

    Withdrawn, not ready or RECONFIGURING: nothing. Otherwise every endpoint of an active rank; pods without
    one vanish. ``paused`` is carried along: no view, whichever event it goes with, undoes a pause.
    """
    if withdrawn or not identity.ready or phase is Phase.RECONFIGURING:
        return None
    dead = frozenset(dead_committed)
    pods = []
    for pod in identity.pods:
        alive = tuple(endpoint for endpoint in pod.endpoints if endpoint.rank not in dead)
        if alive:
            pods.append(ServingPod(pod.pod_ip, _port(pod.node_manager_address), alive))
    return ServingInstance(
        instance_id=identity.instance_id,
        job_name=identity.job_name,
        model_name=identity.model_name,
        engine_type=identity.engine_type,
        role=identity.role,
        dp_size=identity.dp_size,
        tp_size=identity.tp_size,
        pods=tuple(pods),
        paused=paused,
    )


def can_serve(phase: Phase, *, serving_published: bool) -> bool:
    """RFC section 3.2: only in NORMAL or SCALED_DOWN_RUNNING, and only when published."""
    return serving_published and phase in STABLE


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
