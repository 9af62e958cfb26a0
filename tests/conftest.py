"""What holds for every test: no skips, no leaks, no time limits inside hypothesis."""

import asyncio

import pytest
from hypothesis import settings

# Python 3.11 makes a loop for whoever asks first, which nobody closes; looptime asks, around tests without a loop too.
asyncio.set_event_loop(None)

pytest_plugins = ("pytester", "tests.support.leaks", "tests.support.no_skips")

# The parent is hypothesis's own choice for this environment: in CI its runs are repeatable.
settings.register_profile("motor-ft", parent=settings(), deadline=None)
settings.load_profile("motor-ft")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Evidence bundles of tests/e2e; kept anyway when a test fails."""
    parser.addoption("--keep-evidence", action="store_true", help="keep the evidence folders of end-to-end tests")
