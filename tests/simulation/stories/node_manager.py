"""Of the NodeManager: guards, orders and their repeats, its journal."""

from tests.simulation.scenario import BY_HAND, GATEWAY, PORTLESS, Event, Job, Pod
from tests.simulation.stories.story import DEATH, Story, story, then

ADOPTED = Job(pods=(Pod((0, 1)), Pod((2, 3))), mode="adopted", restart=0.2)


def _said(what: str, says: str) -> Story:
    """In the name of the holder, under its plan, before it says anything itself."""
    return story(says, DEATH, then("strange", "0/1", "store SCALING_DOWN", text=what))


STORIES: dict[str, Story] = {
    # --- orders that are not those of the plan ---
    "an order removes others than the plan": _said("removes others", "must name the removed ranks"),
    "a retry moves the store": _said("retry that moves the store", "retry removes no rank and moves no store"),
    "an order removes nobody": _said("removes nobody", "at least one rank, ascending, each once"),
    "an order tells whom it removes": _said("removes whom it tells", "only survivors receive apply"),
    "an order names no master": _said("names no master", "address of the lowest survivor is missing"),
    "a guard with another plan": _said("made-up plan", "is not the hash of the plan that was sent"),
    "an order of another generation": _said("apply in another generation", "call Guard again"),
    "an abort retires": _said("abort that retires", "an abort retires nothing"),
    "a survivor is retired": _said("commit of a survivor", "the plan does not remove ranks"),
    "a leader that was": story(
        "only the present leader may act", DEATH, Event(20.0, "strange", "0/1", text="guard of a former leader")
    ),
    "a guard of a transaction that has ended": story(
        "has ended here; a transaction has one id", DEATH, Event(20.0, "strange", "0/1", text="guard that is late")
    ),
    "a generation that is over": story(
        "of instance 1 is over", DEATH, Event(20.0, "strange", "0/1", text="guard of a former generation")
    ),
    # --- repeats ---
    "an order again after a crash": story(
        "Apply again: OK",
        DEATH,
        then("node_kill", "0/1", "post apply", nth=3),
        then("controller_kill", "0", "post apply", nth=3),
        then("strange", "0/1", "post apply", nth=3, delay=0.5, text="Apply again"),
        job=ADOPTED,
    ),
    "another order with its id after a crash": story(
        "already told the engines something else",
        DEATH,
        then("node_kill", "0/1", "post apply", nth=3),
        then("controller_kill", "0", "post apply", nth=3),
        then("strange", "0/1", "post apply", nth=3, delay=0.5, text="removes others"),
        job=ADOPTED,
    ),
    "a commit again after a crash": story(
        "node 0/1       Finalize to controller 0 OK",
        DEATH,
        then("disk_slow", "0/1", "arrive Finalize", value=0.3),
        then("node_kill", "0/1", "arrive Finalize", nth=2, delay=0.1),
        job=ADOPTED,
    ),
    "an order without a port, by another way": story(
        '"dp_store_port": 29701',
        Event(10.0, "worker_kill", "0/0"),
        then("cut", "controller 0 - node 0/1", "store SCALING_DOWN", value=10.0, text="there"),
        then("strange", "0/1", "store SCALING_DOWN", delay=0.5, text=PORTLESS),
        job=Job(pods=(Pod((0,)), Pod((1, 2)))),
    ),
    # --- by hand ---
    "removed by hand": story(
        '"request_id": "by-hand-',
        Event(5.0, "order", "0", text="pause"),
        DEATH,
        Event(13.0, "strange", "0/0", text=BY_HAND),
        Event(13.0, "strange", "0/1", text=BY_HAND),
    ),
    # --- the gateway ---
    "somebody else is at the gateway": story(
        "asked rank 0 of engine",
        Event(8.0, "strange", "0/0", text=GATEWAY),
        Event(12.0, "worker_kill", "0/1"),
        job=Job(pods=(Pod((0, 1)),), mode="endpoint"),
    ),
}
