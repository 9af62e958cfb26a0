"""Life of one instance: INITIAL → ACTIVE ↔ INACTIVE → DELETED, and who of its pods is missed (recovery.md 4)."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from controller.core import assembly
from controller.core.liveness import PodLiveness, Service, heard_since, instance_state, needed, serving_complete
from controller.core.phases import WINDOW, Phase
from controller.core.snapshot import Action
from controller.core.status import InstanceState

if TYPE_CHECKING:
    from controller.fault_manager.instance import InstanceActor


class Life:
    """What heartbeats, and their absence, make of an instance. It is never evidence against a rank."""

    def __init__(self, actor: "InstanceActor") -> None:
        self._actor = actor
        self._settings = actor.env.settings
        self.state = InstanceState.INITIAL
        self.resting = False  # INACTIVE, and not only because this Controller has not heard its pods yet
        self.service = Service()
        self.hold_until: float | None = None
        self._judged_at = -math.inf
        self._awake_since = -math.inf
        self._incomplete_since: float | None = None
        self._told: dict[str, str] = {}
        self._dissolved_at: float | None = None
        self._obeyed = False
        self.ending = ""

    def restored(self, now: float, *, isolated: bool, dissolved: bool) -> None:
        """The Controller has started again: INACTIVE until the pods are heard, and nobody is missed before the TTL.

        Until then the instance may well have been ACTIVE, unless it was isolated: the hardware has been judged then.
        """
        self.state = InstanceState.INACTIVE
        self.hold_until = now + self._settings.heartbeat_ttl
        self.service = Service() if isolated else Service(left_at=self.hold_until)
        if dissolved:
            self.told(now, obeyed=True)

    def stood_still(self, now: float) -> None:
        """This Controller has not run: it waits for all that it waited for as long again."""
        self._awake_since = now
        self._incomplete_since = None
        if self.hold_until is not None:
            self.hold_until = now + self._settings.heartbeat_ttl

    def unheard(self, now: float) -> list[PodLiveness]:
        """After a restart: pods that are needed and whose Snapshot is awaited, for up to one TTL."""
        if self.hold_until is None or now >= self.hold_until:
            return []
        return [pod for pod in self._needed() if not pod.snapshot_seen]

    def settled(self, now: float) -> bool:
        """After a restart: nobody is awaited any more."""
        if not self.unheard(now):
            self.hold_until = None
        return self.hold_until is None

    @property
    def judging(self) -> bool:
        """Faults are collected, or engines may be about to notice those of the hardware; something may come of it."""
        actor = self._actor
        stopped = actor.recovery.automation_stopped or actor.recovery.paused or self.dissolved
        acting = self._settings.scale_down_enabled and not stopped
        awaited = actor.hardware.correlation.hardware_first is not None
        return acting and (awaited or actor.evidence.collecting_since is not None)

    def watch(self, now: float) -> None:
        """Take the move that is due; the Coordinators learn whether the instance rests."""
        actor, pods, ttl = self._actor, self._actor.pods.all, self._settings.heartbeat_ttl
        if judging := self.judging or actor.phase in WINDOW:
            self._judged_at = now
        if not self.missing(now) and actor.recovery.strategy != Action.PARTIAL_LOSS:
            self._told.clear()  # not while a Stop is on its way, which may yet be obeyed
        suppressed = judging or now - self._awake_since < ttl or not heard_since(pods, self._judged_at, now, ttl)
        complete = serving_complete(pods, actor.active, now, ttl)
        before, self.state = self.state, instance_state(self.state, complete=complete, suppressed=suppressed)
        active, window = InstanceState.ACTIVE in (before, self.state), self._settings.correlation_window
        self.service = self.service.at(now, active=active, judging=judging, window_sec=window)
        resting = self.state is InstanceState.INACTIVE and (self.resting or (not suppressed and self.settled(now)))
        if resting is not self.resting:
            self.resting = resting
            actor.env.publisher.update(actor.instance_id)

    # --- partial loss ---

    @property
    def dissolved(self) -> bool:
        """Pods were stopped because of a loss: what is left of the instance is never whole again."""
        return self._dissolved_at is not None

    def missing(self, now: float) -> list[PodLiveness]:
        """Pods with an active rank that are lost, or that were stopped for the loss of others."""
        return [pod for pod in self._needed() if self._lost(pod, now) or (self.dissolved and self._was_told(pod))]

    def stoppable(self, now: float) -> list[PodLiveness]:
        """Pods that are there, and were not told to stop since the loss of others began; none while nobody is heard.

        Pods are silent from one TTL after each has been heard last: who is heard a little later is not there for that.
        """
        if self._actor.pods.unheard(now):
            return []
        met = (pod for pod in self._needed() if pod.incarnation and not self._lost(pod, now))
        return [pod for pod in met if not self._was_told(pod)]

    def dissolve(self, now: float) -> list[str]:
        """Who is there is told to stop, once for this loss: returns their addresses."""
        pods = self.stoppable(now)
        self._told |= {pod.registration.pod_uid: pod.incarnation for pod in pods}
        self._dissolved_at = now
        return [pod.registration.node_manager_address for pod in pods]

    def told(self, now: float, *, obeyed: bool) -> None:
        """They have answered; when nobody has ever obeyed nothing has happened."""
        if obeyed or not self._obeyed:
            self._obeyed, self._dissolved_at = obeyed, now if obeyed else None

    def lets_go(self, pod: PodLiveness) -> bool:
        """When the pod starts anew it belongs to another instance, for this one ends.

        A pod whose ranks are all gone stays: retired is retired, also where all that has started anew is a NodeManager.
        """
        actor = self._actor
        rebuilding = actor.phase is Phase.RECONFIGURING and not actor.evidence.relaunching
        ended = rebuilding or self.dissolved or actor.superseded or self.state is InstanceState.DELETED
        return ended or self._was_told(pod)

    def _lost(self, pod: PodLiveness, now: float) -> bool:
        """Whom this Controller has not met yet may only be slow to find it: nobody is stopped for that, nor for a cut
        that all pods have come through, one before the other."""
        ttl = self._settings.heartbeat_ttl
        if not pod.incarnation:
            return pod.gone(now, self._settings.heartbeat_ttl_other)
        return pod.gone(now, ttl) and now - self._actor.pods.heard_again_at >= ttl

    def _was_told(self, pod: PodLiveness) -> bool:
        return self._told.get(pod.registration.pod_uid) == pod.incarnation

    def _needed(self) -> list[PodLiveness]:
        return needed(self._actor.pods.all, self._actor.active)

    # --- the end ---

    def over(self, now: float) -> str:
        """Why the instance is to be forgotten; empty while it is not."""
        actor, patience = self._actor, self._settings.heartbeat_ttl_other
        if actor.superseded:
            return "" if actor.recovery.strategy else "replaced by a newer instance of the job"
        if actor.identity is None:
            return self._assembly_over(now)
        if self.state is not InstanceState.INACTIVE or actor.recovery.held:
            return ""
        if self._dissolved_at is not None and now - self._dissolved_at >= patience:
            return f"its pods were stopped {patience:g} s ago"
        lost = sorted(pod.registration.pod_name for pod in self._needed() if pod.gone(now, patience))
        return f"nothing was heard of pods {lost} for {patience:g} s" if lost else ""

    def _assembly_over(self, now: float) -> str:
        pods, patience = self._actor.pods.all.values(), self._settings.assemble_timeout
        if assembly.complete(pod.registration for pod in pods if pod.connected):
            self._incomplete_since = None
        elif self._incomplete_since is None:
            self._incomplete_since = now
        elif now - self._incomplete_since >= patience:
            return f"not all pods came within {patience:g} s"
        left = all(pod.gone(now, self._settings.heartbeat_ttl_other) for pod in pods)
        return "its pods have left" if left else ""

    def times(self) -> Iterator[float]:
        """When something may be due without a report."""
        for pod in self._actor.pods.all.values():
            yield pod.there_at + self._settings.heartbeat_ttl
            yield pod.there_at + self._settings.heartbeat_ttl_other
        yield self._actor.pods.heard_again_at + self._settings.heartbeat_ttl
        if self.state is InstanceState.INACTIVE:
            yield self.service.left_at + self._settings.correlation_window
        if self.hold_until is not None:
            yield self.hold_until
        if self._dissolved_at is not None:
            yield self._dissolved_at + self._settings.heartbeat_ttl_other
        if self._incomplete_since is not None:
            yield self._incomplete_since + self._settings.assemble_timeout
