"""When do registrations make an instance? (RFC section 6, recovery.md section 8)"""

import re
from collections import Counter
from collections.abc import Iterable

from controller.core.records import IdentityRecord
from motor_ft.model.errors import FieldError, FtError, Reason
from motor_ft.model.topology import Registration


def check_registration(pod: Registration) -> None:
    """Is one registration possible at all? Raises FieldError."""
    wrong: dict[str, str] = {}
    if not pod.job_name:
        wrong["registration.job_name"] = "must not be empty"
    if pod.dp_size < 1:
        wrong["registration.dp_size"] = f"must be at least 1, is {pod.dp_size}"
    if not pod.endpoints:
        wrong["registration.endpoints"] = "a pod without endpoints cannot take part"
    ranks = [endpoint.rank for endpoint in pod.endpoints]
    if outside := sorted(rank for rank in ranks if not 0 <= rank < pod.dp_size):
        wrong["registration.endpoints"] = f"ranks {outside} are outside 0..{pod.dp_size - 1}"
    if doubled := sorted(rank for rank, count in Counter(ranks).items() if count > 1):
        wrong["registration.endpoints"] = f"ranks {doubled} are named twice"
    if not re.fullmatch("[0-9]{1,5}", pod.node_manager_address.rpartition(":")[2]):
        wrong["registration.node_manager_address"] = f"must be host:port, is {pod.node_manager_address!r}"
    if wrong:
        raise FieldError(wrong)


def check_fits(pod: Registration, others: Iterable[Registration]) -> None:
    """Does a pod fit to the other pods of its instance? Raises TOPOLOGY_MISMATCH."""
    for other in others:
        if _shape(pod) != _shape(other):
            raise FtError(
                Reason.TOPOLOGY_MISMATCH,
                f"pod {pod.pod_name} of job {pod.job_name} has (model, engine, role, dp_size, tp_size) {_shape(pod)}, "
                f"pod {other.pod_name} says {_shape(other)}",
            )
        if both := sorted(_routable(pod) & _routable(other)):
            raise FtError(
                Reason.TOPOLOGY_MISMATCH,
                f"ranks {both} of job {pod.job_name} are in pod {pod.pod_name} and in pod {other.pod_name}",
            )


def complete(pods: Iterable[Registration]) -> bool:
    """Every rank 0..dp_size-1 has one routable endpoint."""
    known = list(pods)
    ranks = sorted(rank for pod in known for rank in _routable(pod))
    return bool(known) and len(ranks) == known[0].dp_size and ranks == list(range(len(ranks)))


def check_identity(record: IdentityRecord, instance_id: int) -> None:
    """Is it of this instance, and can it have been assembled? Raises FieldError."""
    for pod in record.pods:
        check_registration(pod)
    sizes = {record.dp_size, *(pod.dp_size for pod in record.pods)}
    if record.instance_id != instance_id or len(sizes) > 1 or not complete(record.pods):
        raise FieldError({"it": f"is not that of instance {instance_id} with all its ranks"})


def identity(instance_id: int, pods: Iterable[Registration]) -> IdentityRecord:
    """The identity of a complete assembly, pods in the order of their lowest rank."""
    ordered = tuple(sorted(pods, key=lambda pod: min(endpoint.rank for endpoint in pod.endpoints)))
    first = ordered[0]
    return IdentityRecord(
        instance_id=instance_id,
        job_name=first.job_name,
        model_name=first.model_name,
        engine_type=first.engine_type,
        role=first.role,
        dp_size=first.dp_size,
        tp_size=first.tp_size,
        pods=ordered,
    )


def _shape(pod: Registration) -> tuple[object, ...]:
    return (pod.model_name, pod.engine_type, str(pod.role), pod.dp_size, pod.tp_size)


def _routable(pod: Registration) -> set[int]:
    return {endpoint.rank for endpoint in pod.endpoints if not endpoint.headless}
