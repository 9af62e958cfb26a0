"""Of the Controller around it: what is registered, stored, decided and asked."""

from tests.simulation.scenario import Config, Event, Job, Pod
from tests.simulation.stories.story import DEATH, Story, story, then

SMALL = Job(pods=(Pod((0, 1)),))


def _damaged(what: str, says: str) -> Story:
    """While no Controller runs."""
    return story(says, Event(5.0, "damage", "0", text=what), job=SMALL, config=Config(store_lease=4.0), calm_at=6.0)


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
}
