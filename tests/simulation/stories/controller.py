"""Of the Controller around it: what is registered, stored, decided and asked."""

from typing import Any

from tests.simulation.scenario import Config, Event, Job, Pod
from tests.simulation.stories.story import DEATH, Story, story, then

ONE_POD = (Pod((0, 1)),)
SMALL = Job(pods=ONE_POD)
OFF = Config(scale_down=False)
PAUSE, ASK = Event(5.0, "order", "0", text="pause"), Event(12.0, "order", "0", text="ask")
CLEARS = "L2 card 0x00F1FEF5"
LINK = "L6 card 81078603"


def _damaged(what: str, says: str) -> Story:
    """While no Controller runs."""
    return story(says, Event(5.0, "damage", "0", text=what), job=SMALL, config=Config(store_lease=4.0), calm_at=16.0)


def _hardware(what: str, says: str, *events: Event, value: float = 0.0, job: Job = SMALL, **rest: Any) -> Story:
    return story(says, Event(10.0, "hardware", "0/1", value, what), *events, job=job, calm_at=15.0, **rest)


STORIES: dict[str, Story] = {
    # --- stored records that no Controller has written ---
    "an identity of a later version": _damaged("identity of a later version", "identity record is of version 99"),
    "an identity of nobody": _damaged("identity of nobody", "identity record Expected"),
    "an identity of another instance": _damaged("identity of another instance", "is not that of instance 1"),
    "an identity without a pod": _damaged("identity without a pod", "is not that of instance 1"),
    "a pod without a job": _damaged("pod without a job", "identity record registration.job_name: must not be empty"),
    "a pod without a size": _damaged("pod without a size", "dp_size: must be at least 1"),
    "a pod without a port": _damaged("pod without a port", "identity record registration.node_manager_address"),
    "a pod without endpoints": _damaged("pod without endpoints", "a pod without endpoints cannot take part"),
    "a rank that is outside": _damaged("rank outside", "ranks [99] are outside 0..1"),
    "a rank that is there twice": _damaged("rank twice", "ranks [0] are named twice"),
    "a runtime of a later version": _damaged("runtime of a later version", "runtime record is of version 99"),
    "a runtime that is disabled": _damaged("runtime that is disabled", "DISABLED is derived from the switches"),
    "a generation below 0": _damaged("generation below 0", "generation must be 0 to"),
    "ranks with a gap": _damaged("ranks with a gap", "ranks must be 0 to N-1"),
    "ranks of others": _damaged("ranks of others", "runtime record is of ranks"),
    "a rank of others was removed": _damaged("foreign rank removed", "not (0, 1), (99,)"),
    "every rank was removed": _damaged("every rank removed", "not (0, 1), (0, 1)"),
    "a removed rank is not known any more": story(
        "but were never committed here", DEATH, Event(20.0, "damage", "0", text="no rank removed"), calm_at=21.0
    ),
    "a Controller ends at the commit": story(
        "SCALED_DOWN_RUNNING generation 2", DEATH, then("controller_kill", "0", "store POST_SCALE_CLEANUP")
    ),
    "the store fails before the engines do": story(
        "waits for the store",
        Event(5.0, "store_down", value=20.0),
        Event(16.0, "worker_kill", "0/1"),
        config=Config(store_lease=30.0),
        calm_at=30.0,
    ),
    # --- hardware ---
    "a fault that clears by itself": _hardware(
        CLEARS, "action=token_reinference row=0", Event(14.0, "hardware_cleared", "0/1")
    ),
    "a fault that clears by itself, in a scale-down": story(
        "strategy=dp_scale_down reason=hardware faults that clear by themselves",
        DEATH,
        then("hardware", "0/2", "store DECIDING", text=CLEARS),
        then("hardware_cleared", "0/2", "store DECIDING", delay=3.0),
    ),
    "a link that is noise on this hardware": _hardware(
        LINK, "'FAULT_LEVEL_L1'", ASK, config=Config(hardware_type="800I-A3")
    ),
    "a link that counts all the same": _hardware(
        LINK, "no engine evidence matched", config=Config(hardware_type="800I-A3", link_down="count")
    ),
    "a link that is ignored": _hardware(LINK, "'FAULT_LEVEL_L1'", ASK, config=Config(link_down="ignore")),
    "a card that is nobody's": _hardware("L5 spare", "explained: [] []", ASK),
    "a card of which nobody knows whose it is": _hardware(
        "L5 spare", "no rank to be told", job=Job(pods=(Pod((0, 1), (2,)), Pod((2, 3))))
    ),
    "a card that was nobody's in the baseline": _hardware(
        "L5 spare",
        "explained: [] []",
        Event(5.0, "damage", "0", text="baseline of others"),
        Event(10.5, "hardware_cleared", "0/1"),
        ASK,
        config=Config(store_lease=4.0),
    ),
    "a switch fails": _hardware("L3 card", "FAULT_LEVEL_L3", ASK, value=1010.0),
    "a link is down, scale-down off": _hardware(LINK, "network links are down", config=OFF),
    "a card is broken, scale-down off": _hardware("L4 card", "isolated while the hardware has", config=OFF),
    "a decode instance in place of a prefill instance, scale-down off": _hardware(
        "L4 card",
        "action=scale_p2d row=L4",
        config=OFF,
        jobs=tuple(Job(pods=ONE_POD, role=role) for role in ("decode", "prefill", "prefill")),
    ),
    # --- engines that start anew in place ---
    "a relaunch with a headless engine": story(
        "strategy=engine_relaunch outcome=succeeded",
        DEATH,
        job=Job(pods=(Pod((0, 1), (2,)), Pod((2, 3)))),
        config=OFF,
    ),
    "an engine that was started anew ends": story(
        "new engines of ranks [1] have ended",
        Event(9.0, "step_exception", "0/1"),
        then("root_kill", "0/1", "answer RestartEngines", delay=3.0),
        job=SMALL,
        config=OFF,
    ),
    "engines that were started anew start again": story(
        "strategy=engine_relaunch outcome=succeeded",
        Event(9.0, "step_exception", "0/1"),
        then("node_kill", "0/0", "answer RestartEngines", delay=0.5),
        job=Job(pods=ONE_POD, restart=0.2),
        config=OFF,
    ),
    # --- what is asked, and what nobody may say ---
    "nothing is stated of the engines": story(
        "CAPABILITY_MISSING", DEATH, ASK, job=Job(pods=(Pod((0, 1)), Pod((2, 3))), unstated=True), calm_at=20.0
    ),
    "nobody is left": story(
        "gate: NO_SURVIVOR",
        PAUSE,
        Event(8.0, "root_kill", "0/0"),
        Event(8.0, "root_kill", "0/1"),
        ASK,
        job=SMALL,
        calm_at=15.0,
    ),
    "too late for a recovery": story(
        "recovery window are left",
        PAUSE,
        Event(8.0, "worker_kill", "0/1"),
        Event(60.0, "order", "0", text="ask"),
        job=Job(pods=ONE_POD, window=60.0),
        calm_at=61.0,
    ),
    "nobody tells of the hardware": story(
        "hardware evidence may be incomplete", Event(8.0, "adapter_restart", value=5.0), ASK, job=SMALL, calm_at=15.0
    ),
    "pods at one address": story(
        "topology: NodeManager addresses",
        Event(5.0, "damage", "0", text="pods at one address"),
        *(Event(5.0, "cut", f"controller 0 - node 0/{pod}", 15.0, "both") for pod in range(2)),
        ASK,
        job=Job(pods=(Pod((0,)), Pod((1,)))),
        config=Config(store_lease=4.0),
        calm_at=20.0,
    ),
    "a pod of another size": story(
        "a pod with another size FAILED_PRECONDITION",
        Event(8.0, "strange", "0/0", text="another size"),
        job=SMALL,
        calm_at=12.0,
    ),
    "a pod talks nonsense": story(
        "heartbeat of pod misfit names ranks", Event(8.0, "strange", "0/0", text="nonsense"), job=SMALL, calm_at=12.0
    ),
}
