"""Of the Controller around it: what is registered, stored, decided and asked."""

from tests.simulation.stories.story import Story

STORIES: dict[str, Story] = {}
