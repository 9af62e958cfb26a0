"""A running server for each test."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.wire.support import Served, serving


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A NodeManagerService with the declared policies."""
    async with serving() as running:
        yield running
