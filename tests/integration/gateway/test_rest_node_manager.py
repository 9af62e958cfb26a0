"""The four routes of a NodeManager, in the RFC's own shapes."""

from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from gateway.metrics import RestMetrics
from gateway.rest.node_manager import PREFIX, node_manager_routes
from motor_ft.model.command import Command
from motor_ft.model.engine import ApplyOutcome, EngineObservation, EngineStatus, FtState, Problem
from motor_ft.model.errors import CATALOG, FtError, Reason
from tests.integration.gateway.rest_fakes import FakeNode, Rest, serve_rest

GUARD = {"request_id": "r1", "lease_sec": 90}
PARAMS = {"removed_dp_ranks": [3, 1], "dp_master_ip": "10.0.0.5"}
APPLY: dict[str, object] = {"endpoint_ids": [2, 0], "instruction": "scale_down", "params": PARAMS, "request_id": "r1"}
FINALIZE = {"request_id": "r1", "commit": True, "retired_endpoint_ids": [1]}
BODIES: dict[str, dict[str, object]] = {
    "status": {"endpoint_ids": [0]},
    "apply": APPLY,
    "guard": GUARD,
    "finalize": FINALIZE,
}
FENCE = {"controller_epoch": 5, "generation": 2}


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def rest(node: FakeNode, registry: CollectorRegistry) -> AsyncIterator[Rest]:
    async with serve_rest(node_manager_routes(node, metrics=RestMetrics(registry))) as rest:
        yield rest


async def test_status_writes_every_field_of_every_entry(rest: Rest, node: FakeNode) -> None:
    node.readings[1] = EngineObservation(
        1,
        EngineStatus.UNHEALTHY,
        "e1",
        9,
        FtState.RECOVERING,
        "RuntimeError",
        "rec-1",
        "[FT] text",
        (0, 1),
    )
    assert await rest.post(f"{PREFIX}/status", {"endpoint_ids": [1, 0]}) == (
        200,
        {
            "0": {
                "id": 0,
                "status": "healthy",
                "ft_state": None,
                "fault_info": None,
                "last_ft_request_id": None,
                "ft_error": None,
                "mask": [],
            },
            "1": {
                "id": 1,
                "status": "unhealthy",
                "ft_state": "recovering",
                "fault_info": "RuntimeError",
                "last_ft_request_id": "rec-1",
                "ft_error": "[FT] text",
                "mask": [0, 1],
            },
        },
    )


async def test_the_rfcs_own_bodies_are_unfenced_commands(rest: Rest, node: FakeNode) -> None:
    command = Command(7, "r1", None, None)
    assert await rest.post(f"{PREFIX}/guard", GUARD) == (200, {"status": "guarded"})
    assert await rest.post(f"{PREFIX}/apply", APPLY) == (200, {"status": "accepted"})
    assert await rest.post(f"{PREFIX}/finalize", FINALIZE) == (200, {"status": "committed"})
    assert node.calls == [
        ("guard", command, 90.0),
        ("apply", command, (0, 2), (1, 3), "10.0.0.5", None),
        ("finalize", command, True, (1,)),
    ]


async def test_with_epoch_and_generation_they_are_fenced(rest: Rest, node: FakeNode) -> None:
    command = Command(7, "r1", 5, 2)
    await rest.post(f"{PREFIX}/guard", GUARD | FENCE)
    await rest.post(f"{PREFIX}/apply", APPLY | FENCE | {"params": PARAMS | {"dp_store_port": 29500}})
    await rest.post(f"{PREFIX}/finalize", FINALIZE | FENCE)
    assert node.calls == [
        ("guard", command, 90.0),
        ("apply", command, (0, 2), (1, 3), "10.0.0.5", 29500),
        ("finalize", command, True, (1,)),
    ]


async def test_an_abort_retires_nothing(rest: Rest, node: FakeNode) -> None:
    answer = await rest.post(f"{PREFIX}/finalize", FINALIZE | {"commit": False})
    assert answer == (200, {"status": "aborted"})
    assert node.calls[0][2:] == (False, ())


async def test_unfenced_commands_are_counted_and_fenced_ones_are_not(rest: Rest, registry: CollectorRegistry) -> None:
    await rest.post(f"{PREFIX}/guard", GUARD)
    await rest.post(f"{PREFIX}/guard", GUARD | FENCE)
    counted = registry.get_sample_value("motor_ft_unfenced_commands_total", {"path": f"{PREFIX}/guard"})
    assert counted == 1


@pytest.mark.parametrize("route", BODIES)
async def test_switched_off_every_route_is_404_before_the_body_is_looked_at(
    rest: Rest, node: FakeNode, route: str
) -> None:
    node.enabled = False
    for answer in (
        await rest.post(f"{PREFIX}/{route}", BODIES[route]),
        await rest.post_raw(f"{PREFIX}/{route}", b"{" * 100_000),
    ):
        assert (answer[0], answer[1]["error"]["reason"]) == (404, "FEATURE_DISABLED")
    assert node.calls == []


@pytest.mark.parametrize("route", ["apply", "guard", "finalize"])
async def test_strict_fencing_refuses_unfenced_commands(node: FakeNode, route: str) -> None:
    routes = node_manager_routes(node, metrics=RestMetrics(CollectorRegistry()), strict_fencing=True)
    async with serve_rest(routes) as rest:
        status, body = await rest.post(f"{PREFIX}/{route}", BODIES[route])
        assert (status, body["error"]["reason"]) == (409, "FENCING_REQUIRED")
        assert node.calls == []
        assert (await rest.post(f"{PREFIX}/{route}", BODIES[route] | FENCE))[0] == 200


@pytest.mark.parametrize("reason", Reason)
async def test_a_refusal_has_the_catalogs_status_and_its_reason(rest: Rest, node: FakeNode, reason: Reason) -> None:
    node.error = FtError(reason, "what, where, what to do", holder="x")
    assert await rest.post(f"{PREFIX}/guard", GUARD) == (
        CATALOG[reason].rest_status,
        {"error": {"reason": reason, "message": "what, where, what to do"}},
    )


async def test_an_unexpected_failure_does_not_leak_its_text(rest: Rest, node: FakeNode) -> None:
    node.error = RuntimeError("the password is swordfish")
    status, body = await rest.post(f"{PREFIX}/guard", GUARD)
    assert (status, body["error"]["reason"]) == (500, "INTERNAL")
    assert "swordfish" not in str(body)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (Problem.UNREACHABLE, "ENGINE_UNREACHABLE"),
        (Problem.LOCAL, "ENGINE_UNREACHABLE"),
        (Problem.HTTP_STATUS, "ENGINE_PROTOCOL"),
        (Problem.PROTOCOL, "ENGINE_PROTOCOL"),
        (Problem.IDENTITY, "ENGINE_IDENTITY_MISMATCH"),
    ],
)
async def test_an_engine_that_cannot_be_read_is_a_502_that_names_the_rank(
    rest: Rest, node: FakeNode, problem: Problem, reason: str
) -> None:
    node.readings[1] = EngineObservation(1, EngineStatus.UNKNOWN, problem=problem, detail="why")
    assert await rest.post(f"{PREFIX}/status", {"endpoint_ids": [0, 1]}) == (
        502,
        {"error": {"reason": reason, "message": "rank 1: why"}},
    )


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (ApplyOutcome.REFUSED, "ENGINE_REFUSED"),
        (ApplyOutcome.UNKNOWN, "OUTCOME_UNKNOWN"),
        (ApplyOutcome.NOT_SENT, "ENGINE_UNREACHABLE"),
    ],
)
async def test_an_apply_that_not_all_engines_accepted_is_a_502(
    rest: Rest, node: FakeNode, outcome: ApplyOutcome, reason: str
) -> None:
    node.outcome = outcome
    status, body = await rest.post(f"{PREFIX}/apply", APPLY)
    assert (status, body["error"]["reason"]) == (502, reason)
    assert f"rank 0: {outcome}: HTTP 400: no" in body["error"]["message"]


@pytest.mark.parametrize(
    ("route", "change", "field"),
    [
        ("status", {"endpoint_ids": []}, "endpoint_ids"),
        ("status", {"endpoint_ids": None}, "endpoint_ids"),
        ("status", {"endpoint_ids": [-1]}, "endpoint_ids"),
        ("status", {"endpoint_ids": [True]}, "endpoint_ids"),
        ("status", {"endpoint_ids": ["0"]}, "endpoint_ids"),
        ("status", {"endpoint_ids": [0, 0]}, "endpoint_ids"),
        ("status", {"endpoint_ids": [2**40]}, "endpoint_ids"),
        ("status", {"more": 1}, "more"),
        ("guard", {"lease_sec": 0}, "lease_sec"),
        ("guard", {"lease_sec": -1}, "lease_sec"),
        ("guard", {"lease_sec": 3601}, "lease_sec"),
        ("guard", {"lease_sec": "90"}, "lease_sec"),
        ("guard", {"lease_sec": None}, "lease_sec"),
        ("guard", {"request_id": ""}, "request_id"),
        ("guard", {"request_id": "x" * 129}, "request_id"),
        ("guard", {"request_id": "a\n"}, "request_id"),
        ("guard", {"request_id": "é"}, "request_id"),
        ("guard", {"request_id": 7}, "request_id"),
        ("guard", {"controller_epoch": 5}, "controller_epoch"),
        ("guard", {"generation": 5}, "controller_epoch"),
        ("guard", {"controller_epoch": -1, "generation": 0}, "controller_epoch"),
        ("guard", {"controller_epoch": 2**63, "generation": 0}, "controller_epoch"),
        ("guard", {"controler_epoch": 5, "generation": 1}, "controler_epoch"),
        ("apply", {"instruction": "retry"}, "instruction"),
        ("apply", {"instruction": None}, "instruction"),
        ("apply", {"params": None}, "params"),
        ("apply", {"params": {}}, "removed_dp_ranks"),
        ("apply", {"params": {"removed_dp_ranks": [1, 1], "dp_master_ip": "x"}}, "params.removed_dp_ranks"),
        ("apply", {"params": {"removed_dp_ranks": [], "dp_master_ip": "x"}}, "params.removed_dp_ranks"),
        ("apply", {"params": {"removed_dp_ranks": [1], "dp_master_ip": ""}}, "params.dp_master_ip"),
        (
            "apply",
            {"params": {"removed_dp_ranks": [1], "dp_master_ip": "x", "dp_store_port": 0}},
            "params.dp_store_port",
        ),
        ("finalize", {"commit": 1}, "commit"),
        ("finalize", {"retired_endpoint_ids": [1, 1]}, "retired_endpoint_ids"),
    ],
)
async def test_a_bad_field_is_a_400_that_names_it_and_nothing_is_done(
    rest: Rest, node: FakeNode, route: str, change: dict[str, object], field: str
) -> None:
    status, body = await rest.post(f"{PREFIX}/{route}", BODIES[route] | change)
    assert (status, body["error"]["reason"]) == (400, "INVALID_REQUEST")
    assert field in body["error"]["message"]
    assert node.calls == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'"x"', b"NaN", b"[" * 10_000])
async def test_what_is_not_a_json_object_is_a_400(rest: Rest, body: bytes) -> None:
    status, answer = await rest.post_raw(f"{PREFIX}/guard", body)
    assert (status, answer["error"]["reason"]) == (400, "INVALID_REQUEST")


async def test_another_media_type_is_a_400_that_says_which_is_needed(rest: Rest) -> None:
    status, answer = await rest.post_raw(f"{PREFIX}/guard", b"{}", "text/plain")
    assert status == 400
    assert "application/json" in answer["error"]["message"]


async def test_a_long_body_is_refused(rest: Rest) -> None:
    status, answer = await rest.post_raw(f"{PREFIX}/guard", b" " * 100_000)
    assert (status, answer["error"]["reason"]) == (413, "INVALID_REQUEST")


async def test_unknown_paths_and_methods_are_answered_in_json_too(rest: Rest) -> None:
    status, unknown = await rest.post("/nowhere", {})
    assert (status, unknown["error"]["message"]) == (
        404,
        "POST /nowhere: Not Found; GET /openapi.json says what there is",
    )
    async with rest.session.get(f"{rest.url}{PREFIX}/guard") as answer:
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")
        assert (await answer.json())["error"]["reason"] == "INVALID_REQUEST"
