"""The original strategies: what decides alone with DP scale-down switched off, and what it falls back on (RFC 4.2).

Recovery.md section 4, baseline table. The gravest evidence decides: relaunching engines on broken cards helps nobody.
"""

from collections.abc import Callable, Sequence

from controller.core.correlation import Concern
from controller.core.hardware import is_link_down
from controller.core.snapshot import Action, Decision, Snapshot
from motor_ft.model.hardware import FaultLevel
from motor_ft.model.topology import Role

_NAMED = 4
"""So many faults are named in a reason."""

Row = Callable[[Snapshot, float], Decision | None]


def original_strategy(snapshot: Snapshot, faults: Sequence[Concern]) -> Action:
    """What to do about hardware faults of L4 and above, where something has to be done."""
    if not _cut_off(faults) and _may_scale_p2d(snapshot, faults):
        return Action.SCALE_P2D
    return Action.INSTANCE_RECONFIGURATION


def uncorrelated(snapshot: Snapshot) -> tuple[Concern, ...]:
    """Hardware faults that the engines are not waited for: those that cannot be mapped, or all unless ACTIVE."""
    faults = snapshot.hardware.standing(snapshot.active)
    return tuple(each for each in faults if each.ranks is None) or (() if snapshot.in_service else faults)


def isolates(snapshot: Snapshot) -> bool:
    """Nobody shall be routed to the instance now.

    That is no strategy: it follows the hardware, whatever runs and also while automation is paused or stopped. Hardware
    that engines are waited for does not isolate: the strategy that comes of it withdraws (RFC section 4.2).
    """
    if snapshot.dissolved:
        return True
    if snapshot.scale_down_enabled and snapshot.strategy != Action.SCALE_P2D:
        return bool(uncorrelated(snapshot))
    return bool(snapshot.hardware.standing(snapshot.active))


def hardware(snapshot: Snapshot, now: float) -> Decision | None:
    """L4 to L6: isolated; a decode instance may take the place of a prefill instance, once for every fault."""
    faults = snapshot.hardware.standing(snapshot.active)
    if cut := _cut_off(faults):
        why = f"network links are down: {named(cut)}"
        return Decision(Action.INSTANCE_RECONFIGURATION, why, "L6")
    if _may_scale_p2d(snapshot, faults):
        return Decision(Action.SCALE_P2D, f"hardware faults: {named(faults)}", "L4")
    if not faults:
        return None
    return partial_loss(snapshot) or Decision(Action.NONE, f"isolated while the hardware has {named(faults)}", "L4")


def engines(snapshot: Snapshot, now: float) -> Decision | None:
    """L2: restart the engines in place, once for every incident, else the whole instance."""
    faulty = sorted(snapshot.unhealthy | snapshot.dead)
    if not faulty:
        return None
    relaunch = Action.ENGINE_RELAUNCH in snapshot.enabled - snapshot.tried
    action = Action.ENGINE_RELAUNCH if relaunch else Action.INSTANCE_RECONFIGURATION
    return Decision(action, f"engines of ranks {faulty} are UNHEALTHY or DEAD", "L2")


def well(snapshot: Snapshot, now: float) -> Decision:
    """Nothing is wrong, or nothing that asks for more than L1 and L3 do: nothing."""
    return partial_loss(snapshot) or Decision(Action.NONE, "no active rank is UNHEALTHY or DEAD", "10")


def partial_loss(snapshot: Snapshot) -> Decision | None:
    """Pods that speak are stopped, each once, when others are gone: they come back together, or not at all."""
    if not (snapshot.missing and snapshot.stoppable):
        return None
    why = f"pods {sorted(snapshot.missing)} are gone, {sorted(snapshot.stoppable)} cannot serve without them"
    return Decision(Action.PARTIAL_LOSS, why, "loss")


def dissolved(snapshot: Snapshot, now: float) -> Decision | None:
    """Pods were stopped for the loss of others: the rest follows when it comes back, and nothing else starts.

    After a restart of the Controller that is everybody who comes: whom the Stop has reached is not known any more.
    """
    if not snapshot.dissolved:
        return None
    why = "pods were stopped for the loss of others; they come back as another instance"
    action = Action.PARTIAL_LOSS if snapshot.stoppable else Action.NONE
    return Decision(action, why, "loss")


ROWS: tuple[Row, ...] = (hardware, engines, well)
"""The last fits everything."""


def named(faults: Sequence[Concern]) -> str:
    """The first ones; a switch that fails has hundreds."""
    more = f" and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
    return ", ".join(map(str, faults[:_NAMED])) + more


def _may_scale_p2d(snapshot: Snapshot, faults: Sequence[Concern]) -> bool:
    wanted = any(snapshot.hardware.asks(each) for each in faults)
    return wanted and snapshot.role is Role.DECODE and Action.SCALE_P2D in snapshot.enabled


def _cut_off(faults: Sequence[Concern]) -> list[Concern]:
    return [each for each in faults if each.level is FaultLevel.L6 and is_link_down(each.fault)]
