"""Of the NodeManager: guards, orders and their repeats, its journal."""

from tests.simulation.stories.story import Story

STORIES: dict[str, Story] = {}
