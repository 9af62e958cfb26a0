"""Parts of the gateway against real HTTP servers."""

from collections.abc import AsyncIterator

import pytest

from gateway.engines.client import EngineHttp


@pytest.fixture
async def http() -> AsyncIterator[EngineHttp]:
    """A client with the token ``s3cret``."""
    client = EngineHttp("s3cret")
    yield client
    await client.close()
