"""Who takes part in a transaction: pods, their ranks, fail closed on anything incomplete (RFC section 5, step 3)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from motor_ft.model.topology import Endpoint, Registration


class TopologyError(Exception):
    """The topology does not say for every active rank where it serves and who commands it."""


@dataclass(frozen=True, slots=True)
class Participant:
    """One NodeManager of a transaction. ``survivors`` are routable and get status and apply; ``removed`` are the
    ranks that this pod retires, headless ones included. A pod with neither is only guarded and finalized."""

    pod_name: str
    address: str
    survivors: tuple[int, ...]
    removed: tuple[int, ...]


def resolve(pods: Iterable[Registration], active: frozenset[int], removed: frozenset[int]) -> tuple[Participant, ...]:
    """Group the pods that own an endpoint of an active rank; ``removed`` is the part of ``active`` that goes.

    Raises TopologyError unless every active rank has exactly one routable endpoint, and every pod one address.
    """
    known = [pod for pod in pods if any(endpoint.rank in active for endpoint in pod.endpoints)]
    routable = Counter(
        endpoint.rank
        for pod in known
        for endpoint in pod.endpoints
        if endpoint.rank in active and not endpoint.headless
    )
    if wrong := sorted(rank for rank in active if routable[rank] != 1):
        raise TopologyError(f"ranks {wrong} have no routable endpoint, or more than one")
    addresses = Counter(pod.node_manager_address for pod in known)
    if shared := sorted(address for address, count in addresses.items() if count > 1 or not address):
        raise TopologyError(f"NodeManager addresses {shared} are missing or used by several pods")
    return tuple(_participant(pod, active, removed) for pod in known)


def endpoint_ip(pods: Iterable[Registration], rank: int) -> str:
    """Address of the routable endpoint of a rank that ``resolve`` has found."""
    endpoints = (endpoint for pod in pods for endpoint in pod.endpoints if not endpoint.headless)
    return next(endpoint.ip for endpoint in endpoints if endpoint.rank == rank)


def with_engines(pod: Registration, incarnations: Mapping[int, str]) -> Registration:
    """The pod with other engines behind its routable endpoints, by rank."""

    def renewed(endpoint: Endpoint) -> Endpoint:
        if endpoint.headless:
            return endpoint
        return replace(endpoint, incarnation=incarnations.get(endpoint.rank, endpoint.incarnation))

    return replace(pod, endpoints=tuple(map(renewed, pod.endpoints)))


def _participant(pod: Registration, active: frozenset[int], removed: frozenset[int]) -> Participant:
    own = {endpoint.rank for endpoint in pod.endpoints} & active
    routable = {endpoint.rank for endpoint in pod.endpoints if not endpoint.headless} & active
    return Participant(
        pod_name=pod.pod_name,
        address=pod.node_manager_address,
        survivors=tuple(sorted(routable - removed)),
        removed=tuple(sorted(own & removed)),
    )
