"""Engines that were started without fault tolerance: only whether they live is read, and they are told nothing."""

import pytest

from motor_ft.model.engine import ApplyOutcome, EngineObservation, EngineStatus, Problem
from tests.contract.test_dialect_replies import read
from tests.integration.gateway.hubs import open_hub, order, targets
from tests.integration.gateway.raw_server import raw_server
from tests.support.engine import FakeGroup

NAME = "vllm_no_ft"


async def test_one_that_lives_is_healthy_and_one_whose_core_is_gone_is_dead_and_then_unreachable() -> None:
    async with FakeGroup(1, fault_tolerance=False) as group, open_hub(group, NAME) as hub:
        assert await read(hub, 0) == EngineObservation(0, EngineStatus.HEALTHY)
        await group.inject(0, "engine_kill")
        assert await read(hub, 0) == EngineObservation(0, EngineStatus.DEAD)
        await group.inject(0, "frontend_kill")
        assert (await read(hub, 0)).problem is Problem.UNREACHABLE


@pytest.mark.parametrize(("removed", "order_name"), [((), "retry"), ((1,), "scale_down")])
async def test_no_order_reaches_one_and_no_ft_route_is_asked(removed: tuple[int, ...], order_name: str) -> None:
    """Also where it would know better."""
    async with FakeGroup(2) as group, open_hub(group, NAME) as hub:
        await hub.observe(targets([0]), 5.0)
        (outcome,) = await hub.apply(order([0], removed=removed))
        assert (outcome.outcome, outcome.detail) == (
            ApplyOutcome.REFUSED,
            f"engines of dialect {NAME} do not know {order_name}; nothing was sent",
        )
        assert group.journal.requests == {"GET /health"}


@pytest.mark.parametrize("status", [204, 301, 401, 404, 500])
async def test_any_other_answer_is_no_evidence(status: int) -> None:
    async with (
        raw_server(lambda exchange: exchange.answer(status, b"")) as server,
        open_hub({0: server.url}, NAME) as hub,
    ):
        assert (await read(hub, 0)).problem is Problem.HTTP_STATUS
