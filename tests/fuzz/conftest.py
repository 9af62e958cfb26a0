"""What no example may do, and the REST routes that they meet."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry

from gateway.metrics import RestMetrics
from gateway.rest.controller import controller_routes
from gateway.rest.controller_client import ControllerClient
from gateway.rest.node_manager import node_manager_routes
from tests.fuzz import surfaces
from tests.integration.gateway.rest_fakes import Rest, serve_rest
from tests.integration.nodemanager.gateway import ScriptedGateway
from tests.integration.nodemanager.node import Node

NothingCrashed = Callable[[], None]


@pytest.fixture
def nothing_crashed() -> Iterator[NothingCrashed]:
    """Called after an example, it fails when anything was logged with an exception: a task, a call or a step."""
    with structlog.testing.capture_logs() as lines:

        def check() -> None:
            crashes = [line for line in lines if line.get("exc_info")]
            lines.clear()
            assert crashes == []

        yield check
        check()


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    """All REST routes, on top of a real NodeManager and a real Controller."""
    async with (
        Node(tmp_path, ScriptedGateway(), ranks=(0, 2), launched=()).running() as node,
        surfaces.controller() as controller,
    ):
        await node.join()
        client = ControllerClient([controller.target], 10.0)
        routes = node_manager_routes(node.local, metrics=RestMetrics(CollectorRegistry()))
        async with serve_rest([*routes, *controller_routes(client)]) as rest:
            yield rest
        await client.close()
