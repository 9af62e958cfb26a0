"""Hardware faults beside what the engines say: which ask for action, and have the engines noticed them in time?

Recovery.md section 4, rows 1 to 4; RFC section 4.4. Times are monotonic seconds of this Controller.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from controller.core.hardware import HardwarePolicy, effective_level, is_transient, map_fault
from motor_ft.model.hardware import FaultKey, FaultLevel, HardwareFault
from motor_ft.model.topology import Registration

Ranks = frozenset[int]


@dataclass(frozen=True, slots=True)
class Concern:
    """A hardware fault as one instance sees it; ``ranks`` are None when it cannot be mapped, and never empty.

    ``transient``: it is expected to clear by itself, everything else waits for that.
    """

    fault: HardwareFault
    level: FaultLevel
    ranks: Ranks | None
    transient: bool = False

    @property
    def grave(self) -> bool:
        """L4 or above: the card or the node will be taken away."""
        return self.level.severity >= FaultLevel.L4.severity

    def __str__(self) -> str:
        fault = self.fault
        unconfirmed = ", not confirmed now" if fault.stale else ""
        where = f"{fault.npu_name.strip() or 'the node'} of {fault.node}"
        mapped = "no rank to be told" if self.ranks is None else f"ranks {sorted(self.ranks)}"
        return f"{self.level} {fault.fault_code or fault.raw_level} on {where} ({mapped}{unconfirmed})"


def concern_of(fault: HardwareFault, pods: Iterable[Registration], policy: HardwarePolicy) -> Concern | None:
    """Return what a fault is to the instance whose ``pods`` these are; None when it does not touch the instance."""
    ranks = map_fault(fault, pods)
    if ranks is not None and not ranks:
        return None
    level = effective_level(fault, policy, working=True)  # its own pods are the work
    return Concern(fault, level, ranks, is_transient(fault, level, policy))


@dataclass(frozen=True, slots=True)
class Correlation:
    """All faults that touch one instance, and how far its incident has come.

    ``baseline`` faults were there at READY and ask for nothing until they clear and return. ``spent``: what they ask
    for was done, at this level; they ask for no more until they are graver, or clear and return. ``hardware_first`` is
    when the window of the incident was opened; None without an unhandled fault, and when the engines spoke first.
    ``noticed``: what the engines said inside the window fits the hardware.
    """

    concerns: Mapping[FaultKey, Concern] = field(default_factory=dict)
    baseline: frozenset[FaultKey] = frozenset()
    spent: Mapping[FaultKey, FaultLevel] = field(default_factory=dict)
    hardware_first: float | None = None
    noticed: bool = False

    def standing(self, active: Ranks) -> tuple[Concern, ...]:
        """Faults of L4 or above that came after READY, and not only of ranks that are gone for good."""
        return tuple(each for each in self._grave() if each.ranks is None or each.ranks & active)

    def unhandled(self, active: Ranks) -> tuple[Concern, ...]:
        """Those of them that still ask for action."""
        return tuple(each for each in self.standing(active) if self.asks(each))

    def transient(self, active: Ranks) -> tuple[Concern, ...]:
        """Faults of active ranks that are to be waited for."""
        found = (each for key, each in self.concerns.items() if each.transient and key not in self.baseline)
        return tuple(each for each in found if each.ranks and each.ranks & active and self.asks(each))

    def asks(self, concern: Concern) -> bool:
        """Nothing was done yet for the fault as grave as it is."""
        done = self.spent.get(concern.fault.key)
        return done is None or concern.level.severity > done.severity

    def handled(self, active: Ranks) -> tuple[Concern, ...]:
        """Faults whose ranks are all gone for good: row 1."""
        return tuple(each for each in self._grave() if each.ranks is not None and not each.ranks & active)

    def matched(self, active: Ranks, dead: Ranks) -> bool:
        """The engines have noticed the same; where they say who is D, the ranks of the hardware are among them."""
        return self.noticed and (not dead or self._ranks(active) <= dead)

    def fits(self, active: Ranks, unhealthy: Ranks, dead: Ranks) -> bool:
        """All U, or complete U+D whose D contains the ranks of the hardware."""
        complete = bool(unhealthy) and unhealthy | dead == active
        return complete and (not dead or self._ranks(active) <= dead)

    def _ranks(self, active: Ranks) -> Ranks:
        return active & frozenset().union(*(each.ranks or () for each in self._grave()))

    def _grave(self) -> list[Concern]:
        return [each for key, each in self.concerns.items() if each.grave and key not in self.baseline]


def seen(known: Correlation, key: FaultKey, concern: Concern | None, *, new: bool) -> Correlation:
    """A fault is there or has changed. ``new``: it was not there a moment ago, so nothing is known of it any more."""
    concerns = {each: kept for each, kept in known.concerns.items() if each != key}
    if concern is not None:
        concerns[key] = concern
    if not new:
        return replace(known, concerns=concerns)
    spent = {each: level for each, level in known.spent.items() if each != key}
    return replace(known, concerns=concerns, baseline=known.baseline - {key}, spent=spent)


def cleared(known: Correlation, key: FaultKey) -> Correlation:
    """A fault has ended; when it returns it is new."""
    return seen(known, key, None, new=True)


def at_ready(known: Correlation) -> Correlation:
    """READY: what is there already starts nothing; what asks for nothing yet is new when it becomes graver."""
    asking = (key for key, each in known.concerns.items() if each.grave or each.transient)
    return replace(known, baseline=frozenset(asking))


def carried_out(known: Correlation, concerns: Iterable[Concern]) -> Correlation:
    """What these faults ask for was done."""
    return replace(known, spent={**known.spent, **{each.fault.key: each.level for each in concerns}})


def correlate(
    known: Correlation, *, active: Ranks, unhealthy: Ranks, dead: Ranks, window_sec: float, now: float
) -> Correlation:
    """Take in that the hardware, or what the engines say, has changed; to be called at every change, with its time.

    Equal times count as software first. When U and D are gone and the hardware fault is not, the engines serve on
    broken hardware: it stands for itself from then on, with exactly one new window. A U or D that comes and goes
    inside a window without a match changes nothing of the window.
    """
    since, faulty = known.hardware_first, bool(unhealthy or dead)
    if not known.unhandled(active):
        return replace(known, hardware_first=None, noticed=False)
    if since is None or since == now or (known.noticed and not faulty):
        return replace(known, hardware_first=None if faulty else now, noticed=False)
    in_time = now < since + window_sec and known.fits(active, unhealthy, dead)
    return replace(known, noticed=known.noticed or in_time)
