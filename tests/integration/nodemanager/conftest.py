"""One pod for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.nodemanager.gateway import ScriptedGateway
from tests.integration.nodemanager.node import Node


@pytest.fixture
async def gateway() -> ScriptedGateway:
    return ScriptedGateway()


@pytest.fixture
async def node(tmp_path: Path, gateway: ScriptedGateway) -> AsyncIterator[Node]:
    """Ranks 0 and 1 of four, not launched, in an instance whose scale-down is on."""
    async with Node(tmp_path, gateway, ranks=(0, 1), launched=()).running() as running:
        await running.join()
        yield running
