"""Of the transaction: what ends it, and what it goes on through."""

from tests.simulation.scenario import BY_HAND, Config, Event, Job, Pod
from tests.simulation.stories.story import DEATH, Story, story, then

NODE, STORE, COORDINATOR = "controller 0 - node 0/1", "controller 0 - store", "controller 0 - coordinator 0"
ASKED_FIRST = ("controller 0 - node 0/0", NODE)
"""When Controller 1 leads it hears late of a pod that has started again."""
FAILS = Event(10.0, "step_exception", "0/0")
"""Everybody is unhealthy, nobody dead."""
SILENT = (Event(10.0, "frontend_kill", "0/1"), Event(10.5, "step_exception", "0/0"))
"""Rank 1 cannot be reached, and everybody is unhealthy."""
RETRIES = Config(fast_recovery=True)
PODS = (Pod((0, 1)), Pod((2, 3)))
UNWATCHED = Job(pods=PODS, mode="endpoint")

STORIES: dict[str, Story] = {
    # --- told to end ---
    "the Controller is told to end while DECIDING is written": story(
        "cancelled=this Controller hands over",
        DEATH,
        Event(11.5, "lag", STORE, 0.4),
        then("terminate", "controller 0", "store DECIDING"),
        config=Config(store_lease=20.0),
    ),
    "the Controller is told to end while guards are taken": story(
        "cancelled=this Controller hands over", DEATH, then("terminate", "controller 0", "arrive Guard")
    ),
    "the Controller is told to end while survivors are read": story(
        "cancelled=this Controller hands over", DEATH, then("terminate", "controller 0", "arrive Status")
    ),
    "the Controller is told to end while guards learn the plan": story(
        "cancelled=this Controller hands over", DEATH, then("terminate", "controller 0", "arrive Guard", nth=3)
    ),
    "the Controller is told to end while the instance is withdrawn": story(
        "cancelled=this Controller hands over",
        DEATH,
        then("lag", COORDINATOR, "arrive Guard", value=0.5),
        then("terminate", "controller 0", "answer Guard", nth=4, delay=0.2),
    ),
    "the store is gone when the phase before is to be written": story(
        "PERSIST_FAILED",
        DEATH,
        then("terminate", "controller 0", "arrive Guard"),
        then("store_down", after="arrive Guard", value=5.0),
    ),
    # --- the store ---
    "the store is gone before DECIDING is written": story(
        "PERSIST_FAILED: ", DEATH, Event(12.0, "store_down", value=4.0)
    ),
    "the store is gone before WAITING_ENGINE_FAULT is written": story(
        "PERSIST_FAILED: ",
        DEATH,
        then("says", "0/3", "arrive Guard", value=5, text="diagnosing"),
        then("store_down", after="arrive Status", value=4.0),
    ),
    # --- survivors before the plan ---
    "survivors are not ready in time": story(
        "failure=APPLY_READY_TIMEOUT", DEATH, then("says", "0/3", "arrive Guard", value=60, text="diagnosing")
    ),
    "nobody is left when they are read": story(
        "no survivor is left",
        DEATH,
        then("worker_kill", "0/0", "arrive Guard"),
        job=Job(pods=(Pod((0, 1)),), mode="endpoint"),
    ),
    "somebody dies while DECIDING is written": story(
        "step=guarding removed=[1, 3]",
        DEATH,
        Event(11.5, "lag", STORE, 0.4),
        then("root_kill", "0/3", "store DECIDING"),
        config=Config(store_lease=20.0),
    ),
    "who was only silent is gone while guards are taken": story(
        "engine process ended rank=1", *SILENT, then("root_kill", "0/1", "arrive Guard")
    ),
    "who was only silent is ended with the plan": story("engine process ended rank=1", *SILENT),
    "who was only silent says that it is dead while survivors recover": story(
        "rank=1 status=dead",
        *SILENT,
        Event(10.2, "worker_kill", "0/1"),
        then("frontend_restore", "0/1", "answer Apply", nth=2),
        job=UNWATCHED,
    ),
    "who was only silent answers again": story(
        "answer again",
        *SILENT,
        then("frontend_restore", "0/1", "answer Status", nth=2),
    ),
    "there is no time left to begin": story(
        "failure=RECOVERY_WINDOW_EXPIRED",
        Event(9.0, "order", "0", text="pause"),
        DEATH,
        Event(40.0, "order", "0", text="resume"),
        job=Job(pods=PODS, window=60.0),
        calm_at=45.0,
    ),
    # --- retry ---
    "somebody works when all are to be told to retry": story(
        "cancelled=rank 1 is healthy",
        FAILS,
        then("says", "0/1", "arrive Guard", nth=2, value=9, text="healthy"),
        config=RETRIES,
    ),
    "somebody works while an instance is withdrawn for a retry": story(
        "cancelled=rank 1 is healthy",
        FAILS,
        then("lag", COORDINATOR, "arrive Guard", value=0.7),
        then("says", "0/1", "answer Guard", nth=4, value=9, text="healthy"),
        config=RETRIES,
    ),
    # --- survivors after the plan ---
    "a survivor dies while guards learn the plan": story(
        "after the plan was frozen", DEATH, then("root_kill", "0/3", "arrive Guard", nth=4)
    ),
    "a survivor is not ready any more after the plan": story(
        "rank 3 is diagnosing after the plan was frozen",
        DEATH,
        then("lag", COORDINATOR, "arrive Guard", value=0.7),
        then("says", "0/3", "answer Guard", nth=4, value=9, text="diagnosing"),
    ),
    "a survivor dies while SCALING_DOWN is written": story(
        "after the plan was frozen",
        DEATH,
        then("lag", STORE, "answer Guard", nth=4, value=0.4),
        then("root_kill", "0/3", "store SCALING_DOWN"),
        config=Config(store_lease=20.0),
    ),
    "a survivor dies while another one is told": story(
        "after the plan was frozen",
        DEATH,
        then("slow", "0/0", "arrive Apply", value=1.0),
        then("root_kill", "0/3", "answer Apply"),
    ),
    "the Controller stands still until the engines' window is over": story(
        "20 s are needed",
        DEATH,
        then("stop_process", "controller 0", "store SCALING_DOWN", value=40.0),
        job=Job(pods=PODS, window=60.0),
        config=Config(store_lease=60.0),
        calm_at=60.0,
    ),
    "the Controller stands still until the lease is too short": story(
        "s of the guard lease are left",
        DEATH,
        then("stop_process", "controller 0", "store SCALING_DOWN", value=22.0),
        config=Config(store_lease=60.0),
    ),
    "a survivor says that it is dead after the plan": story(
        "after the plan was frozen",
        DEATH,
        then("lag", COORDINATOR, "arrive Guard", value=0.7),
        then("worker_kill", "0/3", "answer Guard", nth=4),
        job=UNWATCHED,
    ),
    "a survivor was told something by hand, in vain": story(
        "rank 0 shows a failed command",
        Event(5.0, "order", "0", text="pause"),
        DEATH,
        Event(13.0, "strange", "0/0", text=BY_HAND),
        Event(15.0, "order", "0", text="resume"),
        config=Config(execution=20.0),
    ),
    "a reading of a survivor is older than its acceptance": story(
        "dp_scale_down outcome=succeeded",
        DEATH,
        then("lag", COORDINATOR, "arrive Guard", value=0.7),
        then("slow", "0/3", "answer Guard", nth=4, value=1.5),
        then("frontend_restore", "0/3", "store SCALING_DOWN"),
        then("slow", "0/2", "answer Apply", nth=2, value=1.5),
        job=Job(pods=PODS, round_time=4.0),
    ),
    "other engines are in the place of those that were told": story(
        "is another engine now",
        Event(2.5, "controller_kill", "0"),
        Event(20.0, "worker_kill", "0/1"),
        *(then("cut", path, "answer Status", nth=4, delay=0.1, value=8.0, text="both") for path in ASKED_FIRST),
        *(then("node_kill", pod, "answer Status", nth=4, delay=0.1) for pod in ("0/0", "0/1")),
        job=Job(pods=PODS, boot=0.2, restart=0.2, round_time=3.0),
        config=Config(poll=2.0),
        controllers=2,
    ),
    # --- commit ---
    "a pod does not answer to the commit": story(
        "failure=COMMIT_FAILED",
        DEATH,
        then("cut", NODE, "arrive Guard", nth=5, value=90.0, text="both"),
        calm_at=70.0,
    ),
    "no completion in time": story(
        "no completion in time from",
        DEATH,
        then("cut", NODE, "arrive Probe", value=30.0, text="back"),
        config=Config(probe="on"),
        calm_at=45.0,
    ),
}
