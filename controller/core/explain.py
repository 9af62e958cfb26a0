"""What would be decided on an instance now, and what stands in the way; acts on nothing (``Explain``)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from controller.core.correlation import correlate
from controller.core.decision import Decision, Snapshot, decide
from controller.core.evidence import Evidence, survivor_seen_unhealthy
from controller.core.gate import GateResult, check_gate
from controller.core.topology import Participant, TopologyError, resolve
from motor_ft.model.topology import Registration


@dataclass(frozen=True, slots=True)
class Facts:
    """One instance as its actor knows it; times in seconds.

    ``first`` is what is decided before any row of the table is looked at, ``held`` is what keeps the actor from acting.
    """

    snapshot: Snapshot
    evidence: Evidence
    pods: tuple[Registration, ...]
    recovery_timeout_sec: float
    begin_window_sec: float
    hardware_problems: str
    first: Decision | None
    held: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """At monotonic time ``now``; ``participants`` of a scale-down that removes what is D, none with a problem."""

    now: float
    facts: Facts
    decision: Decision
    gate: GateResult
    participants: tuple[Participant, ...]
    topology_problem: str
    blockers: tuple[str, ...]


def explain(facts: Facts, now: float) -> Explanation:
    """Decide as the actor would, on what it knows now."""
    known = facts.snapshot
    hardware = correlate(
        known.hardware,
        active=known.active,
        unhealthy=known.unhealthy,
        dead=known.dead,
        window_sec=known.correlation_window_sec,
        now=now,
    )
    facts = replace(facts, snapshot=replace(known, hardware=hardware))
    decision = facts.first or decide(facts.snapshot, now)
    gate = check_gate(
        scale_down_enabled=known.scale_down_enabled,
        capabilities=[pod.capability for pod in facts.pods],
        survivors=len(known.active - known.dead),
    )
    participants: tuple[Participant, ...] = ()
    problem = ""
    try:
        participants = resolve(facts.pods, known.active, known.dead)
    except TopologyError as error:
        problem = str(error)
    blockers = tuple(_blockers(facts, decision, gate, problem, now))
    return Explanation(now, facts, decision, gate, participants, problem, blockers)


def _blockers(facts: Facts, decision: Decision, gate: GateResult, problem: str, now: float) -> Iterator[str]:
    yield from facts.held
    if decision.row in {"00", "start"}:
        yield decision.reason
    for reason in gate.reasons:
        yield f"gate: {reason}"
    if problem:
        yield f"topology: {problem}"
    since = survivor_seen_unhealthy(facts.evidence, facts.snapshot.active - facts.snapshot.dead).values()
    if since and (left := facts.recovery_timeout_sec - (now - min(since))) < facts.begin_window_sec:
        yield f"{left:.1f} s of the engines' recovery window are left, {facts.begin_window_sec:g} s are needed"
    if facts.hardware_problems:
        yield f"hardware evidence may be incomplete: {facts.hardware_problems}"
