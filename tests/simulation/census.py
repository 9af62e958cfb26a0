"""What a history has gone through, in the words of those who ask whether everything is tried."""

from collections.abc import Iterable, Iterator, Sequence

from tests.simulation.scenario import TURNS, Event, Scenario

DEATHS = {"worker_kill", "engine_kill", "root_kill"}
HEALING = {"unfreeze", "frontend_restore", "hardware_cleared"}
STORM = ("message delay", "message loss", "message duplication", "messages out of order", "reply loss")


def kinds(scenario: Scenario, happened: Sequence[Event], counted: Iterable[str] = ()) -> Iterator[str]:
    """Kinds of faults that have happened, switches that were set, and phases that were come to."""
    deaths = [event for event in happened if event.kind in DEATHS]
    if deaths:
        yield "rank death"
    if len({event.who for event in deaths}) > 1:
        yield "second death"
    for event in happened:
        yield from _event(event)
        if event.kind in TURNS and event.after:
            yield "engine turns at some moment"
        if event.kind == "hardware":
            yield f"hardware {_order(event, deaths)}"
    if len(set(scenario.jobs)) > 1:
        yield "several instances"
    if scenario.controllers > 1 and any(event.kind in {"controller_kill", "stop_process"} for event in happened):
        yield "leader change"
    for name in ("scale_down", "fast_recovery", "scale_up", "idle_probe", "relaunch", "reinference"):
        yield f"configuration: {name} {'on' if getattr(scenario.config, name) else 'off'}"
    for job in scenario.jobs:
        yield f"configuration: {job.mode}, {job.dialect}, {job.role}"
        if job.mixed and len(job.pods) > 1:
            yield "configuration: pods that differ"
    for name in counted:
        if name.startswith(("phase ", "post ", "strange ", "console ")):
            yield name


def _event(event: Event) -> Iterator[str]:
    match event.kind:
        case kind if kind in HEALING:
            yield "healing"
        case "idle":
            yield "idle survivors"
        case "storm":
            yield from STORM
        case "cut":
            yield "partition" if event.text == "both" else f"partition of one direction ({event.text})"
            if event.text == "back":
                yield "reply loss"
            if "store" in event.who:
                yield "store: unknown outcome"
        case "store_down":
            yield "store failure"
        case "controller_kill" | "node_kill":
            yield f"{event.kind.removesuffix('_kill')} crash and restart" + (" at some await" if event.value else "")
        case "clock":
            yield "clock step"
        case "hardware" if "odd" in event.text:
            yield "hardware unmappable"
        case "hardware" | "worker_kill" | "engine_kill" | "root_kill":
            pass
        case "engine_trouble" | "order" | "strange" | "damage":
            yield f"{event.kind}: {event.text}"
        case kind:
            yield kind


def _order(hardware: Event, deaths: list[Event]) -> str:
    job = hardware.who.split("/")[0]
    times = [death.at for death in deaths if death.who.split("/")[0] == job]
    if not times:
        return "and never a death"
    return "before the death" if hardware.at < min(times) else "after the death"
