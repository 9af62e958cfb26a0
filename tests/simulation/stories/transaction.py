"""Of the transaction: what ends it, and what it goes on through."""

from tests.simulation.stories.story import DEATH, Story, story, then

STORIES: dict[str, Story] = {
    "a survivor dies while guards learn the plan": story(
        "after the plan was frozen", DEATH, then("root_kill", "0/3", "arrive Guard", nth=4)
    ),
}
