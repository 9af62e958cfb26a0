"""What holds for every test: no skips, no leaks, no time limits inside hypothesis."""

import asyncio

from hypothesis import settings

# Python 3.11 makes a loop for whoever asks first, which nobody closes; looptime asks, around tests without a loop too.
asyncio.set_event_loop(None)

pytest_plugins = ("pytester", "tests.support.leaks", "tests.support.no_skips")

# The parent is hypothesis's own choice for this environment: in CI its runs are repeatable.
settings.register_profile("motor-ft", parent=settings(), deadline=None)
settings.load_profile("motor-ft")
