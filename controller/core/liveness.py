"""Which pods speak, in which state their endpoints are, and what that makes of the instance (recovery.md section 4)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controller.core.reports import EndpointState
from controller.core.status import InstanceState
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import Endpoint, EndpointStatus, Registration


@dataclass(frozen=True, slots=True)
class PodLiveness:
    """One pod. ``incarnation`` is empty until it has said Hello to this Controller; times are monotonic.

    ``last_heard`` is when it told of its endpoints, ``there_at`` when it was there at all; who this Controller has not
    met yet counts from the first Hello of any pod of its instance. ``registered`` are its endpoints with the engines
    that it has now, as Hello and the last Snapshot name them.
    """

    registration: Registration
    incarnation: str = ""
    incarnation_number: int = 0
    connected: bool = False
    last_heard: float | None = None
    there_at: float = -math.inf
    snapshot_seen: bool = False
    ready: bool = False
    registered: tuple[Endpoint, ...] = ()
    endpoints: Mapping[tuple[int, bool], EndpointStatus] = field(default_factory=dict)

    def heard(self, states: tuple[EndpointState, ...], now: float) -> "PodLiveness":
        """A heartbeat or snapshot."""
        endpoints = {(state.rank, state.headless): state.status for state in states}
        return replace(self, endpoints=endpoints, last_heard=now, there_at=now)

    def silent(self, now: float, ttl: float) -> bool:
        """Nothing was heard for the TTL; at exactly the TTL it is silent."""
        return self.last_heard is None or now - self.last_heard >= ttl

    def gone(self, now: float, ttl: float) -> bool:
        """It did not even say Hello for the TTL."""
        return now - self.there_at >= ttl

    def well(self, now: float, ttl: float) -> bool:
        """It speaks, was ready once, and each of its endpoints is normal."""
        normal = all(status is EndpointStatus.NORMAL for status in self.endpoints.values())
        return self.connected and self.ready and normal and not self.silent(now, ttl)

    def has(self, rank: int, incarnation: str) -> bool:
        """Whether that engine is one of a rank that it has now, as far as it has named any.

        A Snapshot comes with every engine that starts: what is said of any other is of one that has ended.
        """
        known = {endpoint.incarnation for endpoint in self.registered if endpoint.rank == rank}
        return not incarnation or incarnation in known or not known - {""}

    @property
    def present(self) -> Registration:
        """What it brought, with the engines that it has now."""
        names = {(end.rank, end.headless): end.incarnation for end in self.registered}
        ends = self.registration.endpoints
        renewed = (replace(end, incarnation=names.get((end.rank, end.headless), end.incarnation)) for end in ends)
        return replace(self.registration, endpoints=tuple(renewed))

    def serving(self) -> frozenset[int]:
        """Ranks whose routable endpoint is normal."""
        normal = (key for key, status in self.endpoints.items() if status is EndpointStatus.NORMAL)
        return frozenset(rank for rank, headless in normal if not headless)


def check_heartbeat(
    pod: Registration,
    states: tuple[EndpointState, ...],
    *,
    committed: frozenset[int],
    pending: frozenset[int],
    scale_down_enabled: bool,
) -> None:
    """The set of a heartbeat must be exactly what is expected (RFC section 6); raises TOPOLOGY_MISMATCH.

    Feature on: own - committed, or own - committed - pending inside the window; empty only when all own ranks are
    gone. Feature off: own. A mismatch is never evidence.
    """
    own = {(endpoint.rank, endpoint.headless) for endpoint in pod.endpoints}
    told = {(state.rank, state.headless) for state in states}
    expected = [own]
    if scale_down_enabled:
        rest = {key for key in own if key[0] not in committed}
        expected = [rest, {key for key in rest if key[0] not in pending}]
    if told not in expected:
        names = " or ".join(str(sorted(rank for rank, _ in keys)) for keys in expected)
        raise FtError(
            Reason.TOPOLOGY_MISMATCH,
            f"heartbeat of pod {pod.pod_name} names ranks {sorted(rank for rank, _ in told)}, expected {names}",
        )


def needed(pods: Mapping[str, PodLiveness], active: frozenset[int]) -> list[PodLiveness]:
    """Pods that have an endpoint of an active rank; who has none is not missed."""
    return [pod for pod in pods.values() if any(end.rank in active for end in pod.registration.endpoints)]


def serving_complete(pods: Mapping[str, PodLiveness], active: frozenset[int], now: float, ttl: float) -> bool:
    """Every active rank has a normal endpoint in a pod that speaks."""
    heard = (pod for pod in pods.values() if not pod.silent(now, ttl))
    return active <= {rank for pod in heard for rank in pod.serving()}


def heard_since(pods: Mapping[str, PodLiveness], since: float, now: float, ttl: float) -> bool:
    """Every pod that speaks has spoken after ``since``: what it says of its endpoints is not from before."""
    return all(pod.silent(now, ttl) or pod.last_heard > since for pod in pods.values() if pod.last_heard is not None)


def instance_state(current: InstanceState, *, complete: bool, suppressed: bool) -> InstanceState:
    """INITIAL → ACTIVE ↔ INACTIVE; the way to INACTIVE is suppressed while faults are judged or a transaction runs."""
    if complete:
        return InstanceState.ACTIVE
    if current is InstanceState.ACTIVE and not suppressed:
        return InstanceState.INACTIVE
    return current


@dataclass(frozen=True, slots=True)
class Service:
    """Whether an instance ``counts`` as ACTIVE when hardware is judged; ``left_at`` is when it was that last.

    A card that breaks takes its engine with it: heartbeats, engines and hardware tell of it in any order. So the
    instance counts for one correlation window longer than it is ACTIVE, and what it counted as when faults came to be
    judged holds until that is over.
    """

    counts: bool = False
    left_at: float = -math.inf
    judging: bool = False

    def at(self, now: float, *, active: bool, judging: bool, window_sec: float) -> "Service":
        """Look again; at exactly the end of the window it is over."""
        left_at = now if active else self.left_at
        counts = self.counts if judging and self.judging else now - left_at < window_sec
        return Service(active or counts, left_at, judging)
