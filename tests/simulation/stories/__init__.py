"""Histories that are told on purpose, for what chance comes to too seldom; the rules hold in them as in all others."""

from tests.simulation.stories import controller, node_manager, transaction
from tests.simulation.stories.story import Story

STORIES: dict[str, Story] = {**transaction.STORIES, **controller.STORIES, **node_manager.STORIES}
"""By what happens in them."""
