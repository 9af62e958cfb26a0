"""The pods of one instance: who has said Hello, what each said last, and where to send directives."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from controller.core.liveness import PodLiveness
from controller.core.reports import Directive, Hello, Welcome
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import Registration

Send = Callable[[Directive | Welcome], None]


@dataclass(slots=True)
class Session:
    """One stream: its outbox, the highest processed sequence, and whether it was told to poll fast."""

    send: Send
    sequence: int = 0
    fast_poll: bool = False


class Pods:
    """Pods by UID. Only the newest incarnation of a pod is heard.

    When nobody was there for ``quiet`` seconds, it was this Controller that could not hear: ``heard_again_at`` is when
    the first of them was there again.
    """

    def __init__(self, registrations: tuple[Registration, ...] = (), now: float = 0.0, *, quiet: float) -> None:
        self._quiet = quiet
        self.heard_again_at = -math.inf
        self._pods: dict[str, PodLiveness] = {pod.pod_uid: PodLiveness(pod, there_at=now) for pod in registrations}
        self._sessions: dict[str, Session] = {}

    @property
    def all(self) -> Mapping[str, PodLiveness]:
        """Every pod."""
        return self._pods

    def welcomed(self, uid: str) -> bool:
        """The pod has said Hello to this Controller."""
        return uid in self._sessions

    def admit(self, hello: Hello, send: Send, now: float) -> Session:
        """Open a session; raises STALE_INCARNATION for an older start of the same pod."""
        uid = hello.reporter_id
        known = self._pods.get(uid)
        if known is not None and hello.incarnation_number < known.incarnation_number:
            raise FtError(
                Reason.STALE_INCARNATION,
                f"pod {uid} has started again since (start {known.incarnation_number} is known)",
                got=hello.incarnation_number,
                current=known.incarnation_number,
            )
        if not self._sessions:  # a dead Controller is given up late: the others have one TTL from here to find this one
            self._pods = {other: replace(pod, there_at=now) for other, pod in self._pods.items()}
        self._there(now)
        same = known is not None and known.incarnation == hello.incarnation
        session = Session(send)
        if same and uid in self._sessions:
            session.sequence = self._sessions[uid].sequence
        self._sessions[uid] = session
        base = known if known is not None and same else PodLiveness(hello.registration)
        self._pods[uid] = replace(
            base,
            registration=hello.registration,
            registered=hello.registration.endpoints,
            incarnation=hello.incarnation,
            incarnation_number=hello.incarnation_number,
            connected=True,
            there_at=now,
            snapshot_seen=False,
        )
        return session

    def detach(self, uid: str, session: Session) -> None:
        """The stream has ended; its sequence is kept for a reconnect of the same incarnation."""
        if self._sessions.get(uid) is session:
            self._pods[uid] = replace(self._pods[uid], connected=False)

    def current(self, uid: str, session: Session) -> bool:
        """No newer stream of the pod has taken over."""
        return self._sessions.get(uid) is session

    def update(self, uid: str, pod: PodLiveness) -> None:
        """What a pod said."""
        self._there(pod.there_at)
        self._pods[uid] = pod

    def unheard(self, now: float) -> bool:
        """Nobody was there for so long that it is this Controller that cannot hear, or has stood still."""
        return now - max((pod.there_at for pod in self._pods.values()), default=now) >= self._quiet

    def stood_still(self, now: float) -> None:
        """This Controller has not run: everybody is as good as there, from now on."""
        self._pods = {uid: replace(pod, there_at=now) for uid, pod in self._pods.items()}

    def _there(self, now: float) -> None:
        """Somebody is there, and is not yet among ``all`` as such."""
        if self.unheard(now):
            self.heard_again_at = now

    def drop(self, uid: str) -> None:
        """Forget a pod of an assembly that is not complete."""
        self._pods.pop(uid, None)
        self._sessions.pop(uid, None)

    def close(self) -> None:
        """No stream is heard any more."""
        self._sessions.clear()

    def direct(self, directive: Directive) -> None:
        """To every open stream that polls at another pace than is said; a new one has the normal pace."""
        for uid, session in self._sessions.items():
            if self._pods[uid].connected and session.fast_poll is not directive.fast_poll:
                session.fast_poll = bool(directive.fast_poll)
                session.send(directive)
