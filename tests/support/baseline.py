"""The baseline: what a build without DP scale-down does about a fault, written anew from the specification.

RFC section 8, last row; recovery.md section 4: baseline table, feature off, instance states. Nothing is taken from the
product. One fault of a job is over before its next one: ``Baseline`` says what it has led to by then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

GRAVE = frozenset({"L4", "L5", "L6", "unmapped", "node"})
"""Hardware that isolates. The others: ``L1`` to ``L3``, ``transient``, and ``link``, which stops the instance."""


@dataclass
class Job:
    """One job and its instance. ``present`` is hardware that is broken, ``counted`` what of it came after READY.

    The larger ``born``, the later its instance has formed.
    """

    name: str
    role: str
    pods: tuple[int, ...]
    born: int
    present: set[str] = field(default_factory=set)
    counted: set[str] = field(default_factory=set)
    faulty: bool = False
    abnormal: bool = False
    waited: bool = False

    @property
    def isolated(self) -> bool:
        return bool(self.counted & GRAVE)

    @property
    def view(self) -> str:
        """What a Coordinator holds of it; always of all ranks or of none."""
        return "nothing" if self.isolated else "paused" if self.abnormal else "served"


class Baseline:
    """``started`` are strategies by job, ``commands`` what each pod was told."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.jobs = tuple(jobs)
        self.started: Counter[tuple[str, str]] = Counter()
        self.commands: Counter[tuple[str, int]] = Counter()

    @property
    def views(self) -> dict[str, str]:
        """What a Coordinator holds, by job."""
        return {job.name: job.view for job in self.jobs if job.view != "nothing"}

    # --- engines ---

    def engine(self, job: Job) -> None:
        """U or D, however it is known: relaunched in place, at once, unless the cards are broken."""
        job.faulty = True
        if not job.isolated:
            self._start("engine_relaunch", job, "restart")
            job.faulty = job.abnormal = job.waited = False

    # --- hardware ---

    def hardware(self, job: Job, kind: str, *, clears: bool) -> None:
        """It ``clears`` soon, or stays; what is there already says nothing new."""
        if kind not in job.present:
            job.present.add(kind)
            job.counted.add(kind)
            self._broken(job, kind, clears)
        if clears:
            self.cleared(job, kind)

    def _broken(self, job: Job, kind: str, clears: bool) -> None:
        if kind == "link":
            self.rebuild(job)
        elif kind == "transient" and not job.waited:
            self._start("token_reinference", job)
            job.waited = job.faulty
        elif kind in GRAVE and job.role == "decode":
            self._start("scale_p2d", job)
            if not clears:
                self._replace(job)

    def _replace(self, decode: Job) -> None:
        """The newest prefill instance that is well gives way, unless it is the last one; then the decode is rebuilt."""
        well = [job for job in self.jobs if job.role == "prefill" and job.view == "served" and not job.faulty]
        if len(well) > 1:
            self.rebuild(max(well, key=lambda job: job.born))
        self._anew(decode, decode.pods)

    def cleared(self, job: Job, kind: str) -> None:
        """The isolation ends with its last fault, and engines that have failed meanwhile are met then."""
        job.present.discard(kind)
        job.counted.discard(kind)
        if job.faulty and not job.isolated:
            self.engine(job)

    # --- life ---

    def lost(self, job: Job) -> None:
        """The last pod is gone for longer than the TTL and comes back as another start.

        The others are stopped for it, and they form a new instance; alone it has engines then that nobody knows.
        """
        *others, _ = job.pods
        if others:
            self._start("partial_loss", job)
            self._anew(job, others)
        else:
            job.abnormal = False
            self.engine(job)

    def restarted(self) -> None:
        """The Controller has ended and begun again: that is no fault of anybody."""
        for job in self.jobs:
            job.waited = False

    def rebuild(self, job: Job) -> None:
        """A new instance of the job from the same pods."""
        self._start("instance_reconfiguration", job)
        self._anew(job, job.pods)

    def _anew(self, job: Job, stopped: Iterable[int]) -> None:
        """These are stopped, once; what is broken when the new instance is READY is its baseline."""
        self.commands.update(("stop", pod) for pod in stopped)
        job.born, job.counted = 1 + max(other.born for other in self.jobs), set()
        job.faulty = job.abnormal = job.waited = False

    def _start(self, strategy: str, job: Job, command: str = "") -> None:
        self.started[(strategy, job.name)] += 1
        if command:
            self.commands.update((command, pod) for pod in job.pods)
