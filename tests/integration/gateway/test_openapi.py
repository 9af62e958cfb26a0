"""The OpenAPI document and the running server say the same: routes, accepted bodies, answers."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from gateway.metrics import RestMetrics
from gateway.rest.controller import controller_routes
from gateway.rest.controller_client import ControllerClient
from gateway.rest.node_manager import PREFIX, node_manager_routes
from motor_ft.model.engine import ApplyOutcome, EngineObservation, EngineStatus, Problem
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import controller_pb2
from tests.integration.gateway.openapi_document import DOCUMENT, errors, operations, request_schema, response_schema
from tests.integration.gateway.rest_fakes import FakeController, FakeNode, Rest, serve_controller, serve_rest
from tests.integration.gateway.test_rest_controller import FAULT, REPORT, STATUS, rfc_instance
from tests.integration.gateway.test_rest_node_manager import BODIES, FENCE

POOL: list[object] = [
    None, True, False, 0, 1, 2, 3, -1, 0.5, 3600, 3601, 65535, 65536, 2**31, 2**63, "", "x", "x" * 129, "a\n", "é",
    "scale_down", "retry", [], [0], [0, 1], [1, 1], [-1], ["0"], [2**31], {}, {"x": 1},
    1.0, 2.0**53, 2.0**63, 1e30, [1.0], [1, 1.0], [1.5],
    {"removed_dp_ranks": [1], "dp_master_ip": "10.0.0.5", "dp_store_port": 29500},
    {"removed_dp_ranks": [1], "dp_master_ip": "10.0.0.5", "dp_store_port": None},
    {"removed_dp_ranks": [1], "dp_master_ip": "10.0.0.5", "dp_store_port": 65536},
    {"removed_dp_ranks": [1], "dp_master_ip": ""}, {"removed_dp_ranks": [], "dp_master_ip": "x"},
    {"dp_master_ip": "x"}, {"removed_dp_ranks": [1], "dp_master_ip": "x", "more": 1},
]  # fmt: skip
WHOLE = {f"{PREFIX}/{route}": body | FENCE for route, body in BODIES.items() if route != "status"}
WHOLE |= {f"{PREFIX}/status": BODIES["status"], REPORT: dict(FAULT)}


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def controller() -> FakeController:
    controller = FakeController()
    controller.instances[7] = rfc_instance()
    return controller


@pytest.fixture
async def rest(node: FakeNode, controller: FakeController) -> AsyncIterator[Rest]:
    """All routes in one server."""
    async with serve_controller(controller) as target:
        client = ControllerClient([target], 5.0)
        async with serve_rest(all_routes(node, client)) as rest:
            yield rest
        await client.close()


def all_routes(node: FakeNode, client: ControllerClient) -> list[web.RouteDef]:
    return [*node_manager_routes(node, metrics=RestMetrics(CollectorRegistry())), *controller_routes(client)]


def demand_documented(method: str, path: str, status: int, body: object) -> None:
    """Fail unless the document has this answer."""
    assert list(errors(response_schema(method, path, status), body)) == [], (method, path, status, body)


async def test_routes_of_the_document_are_exactly_those_of_the_server(node: FakeNode) -> None:
    client = ControllerClient(["127.0.0.1:1"], 5.0)
    served = {(route.method, route.path) for route in all_routes(node, client)}
    await client.close()
    assert served | {("GET", "/openapi.json")} == operations()


async def test_the_server_hands_out_the_document(rest: Rest) -> None:
    assert await rest.get("/openapi.json") == (200, DOCUMENT)


@pytest.mark.parametrize("path", WHOLE)
async def test_a_body_is_accepted_exactly_when_it_fits_the_document(rest: Rest, path: str) -> None:
    """Every field in turn takes every value of the pool, is left out, and is joined by an unknown one."""
    schema = request_schema("POST", path)
    whole = WHOLE[path]
    bodies = [whole | {name: value} for name in schema["properties"] for value in POOL]
    bodies += [{k: v for k, v in whole.items() if k != name} for name in whole] + [whole | {"more": 1}]
    judged = set()
    for body in bodies:
        status, answer = await rest.post(path, body)
        fits = not list(errors(schema, body))
        assert status == (200 if fits else 400), (body, answer)
        demand_documented("POST", path, status, answer)
        judged.add(fits)
    assert judged == {True, False}


@pytest.mark.parametrize("route", BODIES)
async def test_every_refusal_of_a_node_manager_is_documented(rest: Rest, node: FakeNode, route: str) -> None:
    # Nobody says these for a NodeManager, or the route itself does.
    unsaid = {Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED, Reason.FENCING_REQUIRED, Reason.UNKNOWN_INSTANCE}
    unsaid |= {Reason.NOT_READY, Reason.STRATEGY_RUNNING}
    if route == "status":  # has neither id nor effect
        unsaid |= {Reason.REQUEST_ID_REUSED, Reason.STORE_CONFLICT}
    for reason in set(Reason) - unsaid:
        node.error = FtError(reason, "why")
        demand_documented("POST", f"{PREFIX}/{route}", *await rest.post(f"{PREFIX}/{route}", BODIES[route]))


async def test_other_answers_of_a_node_manager_are_documented(rest: Rest, node: FakeNode) -> None:
    node.readings[0] = EngineObservation(0, EngineStatus.UNKNOWN, problem=Problem.PROTOCOL, detail="why")
    node.outcome = ApplyOutcome.UNKNOWN
    for route in BODIES:
        for answer in (
            await rest.post(f"{PREFIX}/{route}", BODIES[route]),
            await rest.post_raw(f"{PREFIX}/{route}", b" " * 100_000),
        ):
            demand_documented("POST", f"{PREFIX}/{route}", *answer)
    node.enabled = False
    for route in BODIES:
        demand_documented("POST", f"{PREFIX}/{route}", *await rest.post(f"{PREFIX}/{route}", {}))


@pytest.mark.parametrize("query", ["", "?instance_id=7", "?instance_id=99", "?instance_id=x"])
@pytest.mark.parametrize("phase", [controller_pb2.PHASE_NORMAL, controller_pb2.PHASE_DISABLED])
async def test_every_status_of_a_controller_is_documented(
    rest: Rest, controller: FakeController, query: str, phase: controller_pb2.Phase.ValueType
) -> None:
    controller.instances[7].phase = phase
    demand_documented("GET", STATUS, *await rest.get(STATUS + query))


async def test_every_refusal_of_a_controller_is_documented(rest: Rest, controller: FakeController) -> None:
    for reason in Reason:
        controller.refusal = FtError(reason, "why")
        demand_documented("POST", REPORT, *await rest.post(REPORT, FAULT))
        if reason in {Reason.NOT_LEADER, Reason.OUTCOME_UNKNOWN, Reason.UNKNOWN_INSTANCE, Reason.INTERNAL}:
            demand_documented("GET", STATUS, *await rest.get(f"{STATUS}?instance_id=7"))
