"""From evidence to an action: one pure function, the first row that fits (recovery.md section 4, RFC section 4.3)."""

from dataclasses import replace

from controller.core import baseline
from controller.core.baseline import Row, named
from controller.core.correlation import Concern, Correlation
from controller.core.phases import STABLE, Phase
from controller.core.snapshot import PASSIVE, Action, Decision, Snapshot

__all__ = ["PASSIVE", "Action", "Decision", "Snapshot", "decide", "faults_of"]

_WITHOUT_STORE = PASSIVE | {Action.TOKEN_REINFERENCE, Action.INSTANCE_RECONFIGURATION}
"""What needs no durable write, or withdraws the instance and then waits for it itself."""

_NEVER_PREEMPTED = frozenset({Action.TOKEN_REINFERENCE, Action.INSTANCE_RECONFIGURATION})


def decide(snapshot: Snapshot, now: float) -> Decision:
    """The first row that fits decides, of the whole table or, with the feature off, of the baseline table alone."""
    table = COMMON + (ROWS if snapshot.scale_down_enabled else baseline.ROWS)
    decision = next(decision for row in table if (decision := row(snapshot, now)) is not None)
    if snapshot.store_problem and decision.action not in _WITHOUT_STORE:
        why = f"{decision.action} waits for the store, {snapshot.store_problem}; {decision.reason}"
        decision = replace(decision, action=Action.WAIT, reason=why)
    return replace(decision, isolate=baseline.isolates(snapshot))


def _barred(snapshot: Snapshot) -> list[str]:
    """Why nothing may be started, whatever it is."""
    bars = {
        f"phase is {snapshot.phase}": snapshot.phase is Phase.RECONFIGURING,
        "automation is stopped": snapshot.automation_stopped,
        f"automation is paused {snapshot.paused}": bool(snapshot.paused),
        "superseded by a newer instance of the job": snapshot.superseded,
        "the instance was never ready": not snapshot.ready,
    }
    return [text for text, barred in bars.items() if barred]


def _token_reinference(snapshot: Snapshot, now: float) -> Decision | None:
    """Row 0, the only one that ends a strategy that runs.

    Once in an incident: a fault that comes and goes must not hold back the recovery of engines for ever.
    """
    faults = snapshot.hardware.transient(snapshot.active)
    allowed = Action.TOKEN_REINFERENCE in snapshot.enabled - snapshot.tried
    if not (allowed and faults) or snapshot.strategy in _NEVER_PREEMPTED or _barred(snapshot):
        return None
    why = f"hardware faults that clear by themselves: {named(faults)}"
    return Decision(Action.TOKEN_REINFERENCE, why, "0", stop=snapshot.strategy is not None)


def _blocked(snapshot: Snapshot, now: float) -> Decision | None:
    """Row 00. A strategy that only waits for hardware ends with the fault."""
    why = _barred(snapshot)
    over = _over(snapshot)
    if snapshot.strategy is not None:
        why.insert(0, f"strategy {snapshot.strategy} runs{over}")
    if snapshot.phase not in STABLE and snapshot.phase is not Phase.RECONFIGURING:
        why.append(f"phase is {snapshot.phase}")
    return Decision(Action.NONE, "; ".join(why), "00", stop=bool(over)) if why else None


def _over(snapshot: Snapshot) -> str:
    waits_for = faults_of(snapshot.strategy, snapshot.hardware, snapshot.active)
    return ", and its hardware faults are over" if waits_for == () else ""


def faults_of(strategy: str | None, hardware: Correlation, active: frozenset[int]) -> tuple[Concern, ...] | None:
    """The hardware faults that a strategy is about; None for one that is about engines."""
    match strategy:
        case Action.TOKEN_REINFERENCE:
            return hardware.transient(active)
        case Action.SCALE_P2D:
            return hardware.standing(active)
        case _:
            return None


def _no_evidence(snapshot: Snapshot, now: float) -> Decision | None:
    """Row 10; faults of row 1 are named, and start nothing."""
    if snapshot.unhealthy or snapshot.dead or snapshot.hardware.unhandled(snapshot.active):
        return None
    decision = baseline.well(snapshot, now)
    if handled := snapshot.hardware.handled(snapshot.active):
        return replace(decision, reason=f"{decision.reason}; only of removed ranks, so handled: {named(handled)}")
    return decision


def _no_correlation(snapshot: Snapshot, now: float) -> Decision | None:
    """The original strategy at once."""
    faults = baseline.uncorrelated(snapshot)
    if not faults:
        return None
    unmappable = faults[0].ranks is None
    what = "that no rank can be told for" if unmappable else "of an instance that is not ACTIVE"
    return Decision(baseline.original_strategy(snapshot, faults), f"hardware faults {what}: {named(faults)}", "2")


def _hardware_first(snapshot: Snapshot, now: float) -> Decision | None:
    since = snapshot.hardware.hardware_first
    if since is None or snapshot.hardware.matched(snapshot.active, snapshot.dead):
        return None
    faults = named(snapshot.hardware.unhandled(snapshot.active))
    window, deadline = snapshot.correlation_window_sec, since + snapshot.correlation_window_sec
    if now >= deadline:
        why = f"no engine evidence matched the hardware within {window:g} s: {faults}"
        return Decision(Action.INSTANCE_RECONFIGURATION, why, "4")
    return Decision(Action.WAIT, f"up to {window:g} s for engines to notice the hardware: {faults}", "3", deadline)


def _all_unhealthy(snapshot: Snapshot, now: float) -> Decision | None:
    if snapshot.dead or not snapshot.complete:
        return None
    text = "every active rank is UNHEALTHY and none is DEAD"
    if Action.FAST_RECOVERY in snapshot.enabled - snapshot.tried:
        return Decision(Action.FAST_RECOVERY, text, "5")
    return _collect(snapshot, now, text, "5")


def _all_dead(snapshot: Snapshot, now: float) -> Decision | None:
    if snapshot.dead != snapshot.active:
        return None
    return Decision(Action.INSTANCE_RECONFIGURATION, "every active rank is DEAD", "7")


def _unhealthy_and_dead(snapshot: Snapshot, now: float) -> Decision | None:
    if not (snapshot.unhealthy and snapshot.dead and snapshot.complete):
        return None
    text = f"DEAD {sorted(snapshot.dead)}, UNHEALTHY {sorted(snapshot.unhealthy)}: complete"
    return Decision(Action.DP_SCALE_DOWN, text, "6")


def _incomplete(snapshot: Snapshot, now: float) -> Decision | None:
    silent = sorted(snapshot.active - snapshot.unhealthy - snapshot.dead)
    return _collect(snapshot, now, f"ranks {silent} are neither UNHEALTHY nor DEAD", "8")


def _collect(snapshot: Snapshot, now: float, text: str, row: str) -> Decision:
    deadline = snapshot.deadline
    if deadline is not None and now >= deadline:
        why = f"{text}, and the collection of {snapshot.collection_timeout_sec:g} s is over"
        return Decision(Action.INSTANCE_RECONFIGURATION, why, "9" if row == "8" else row)
    return Decision(Action.WAIT, text, row, deadline)


COMMON: tuple[Row, ...] = (_token_reinference, _blocked, baseline.dissolved)
ROWS: tuple[Row, ...] = (
    _no_evidence,
    _no_correlation,
    _hardware_first,
    _all_unhealthy,
    _unhealthy_and_dead,
    _all_dead,
    _incomplete,
)
"""Rows of recovery.md section 4 in their order, the last fits everything. Row 10 comes early because most instances are
well; row 1 is what ``Correlation.unhandled`` leaves out."""
