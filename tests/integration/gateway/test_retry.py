"""Retry through the hub to engines of both vLLM dialects (engine-contract 1.1, 1.5, 2.3 and 2.4)."""

import pytest

from motor_ft.model.engine import ApplyOutcome, EngineObservation, EngineStatus
from tests.integration.gateway.hubs import Hub, open_hub, order, targets
from tests.support.engine import FakeGroup
from tests.support.waiting import until

HEALTHY, UNHEALTHY, DEAD, DIAGNOSING, UNKNOWN = EngineStatus
RANKS = range(3)
BOTH = pytest.mark.parametrize("dialect", ["vllm_v1", "vllm_0_33"])


async def read(hub: Hub) -> tuple[EngineObservation, ...]:
    return await hub.observe(targets(RANKS), 5.0)


async def settled(hub: Hub, status: EngineStatus, *, failed: bool = False) -> tuple[EngineObservation, ...]:
    """Every engine reads like this."""
    readings: tuple[EngineObservation, ...] = ()

    async def reached() -> bool:
        nonlocal readings
        readings = await read(hub)
        return all((seen.status, seen.command_failed) == (status, failed) for seen in readings)

    await until(reached)
    return readings


async def all_unhealthy(group: FakeGroup, hub: Hub) -> None:
    for rank in RANKS:
        await group.inject(rank, "step_exception")
    await settled(hub, UNHEALTHY)


@BOTH
async def test_every_rank_accepts_and_the_group_recovers(dialect: str) -> None:
    """Dialect (b) runs it under our id, dialect (a) under one that each engine makes."""
    async with FakeGroup(3, dialect) as group, open_hub(group, dialect) as hub:
        await all_unhealthy(group, hub)
        outcomes = await hub.apply(order(RANKS))
        assert [outcome.outcome for outcome in outcomes] == [ApplyOutcome.ACCEPTED] * 3
        ids = [outcome.engine_request_id for outcome in outcomes]
        assert ids == ["r1"] * 3 if dialect == "vllm_v1" else len({*ids, "r1"}) == 4
        after = await settled(hub, HEALTHY)
        assert all(seen.observation > outcome.observation for seen, outcome in zip(after, outcomes, strict=True))
        assert {seen.last_ft_request_id for seen in after} == {""}, "a success leaves no receipt"


@BOTH
async def test_each_engine_is_told_once_however_often_it_is_asked(dialect: str) -> None:
    async with FakeGroup(3, dialect) as group, open_hub(group, dialect) as hub:
        await all_unhealthy(group, hub)
        first = await hub.apply(order(RANKS))
        await settled(hub, HEALTHY)
        assert await hub.apply(order(RANKS)) == first
        assert [record.rank for record in group.applies()] == list(RANKS)
        assert all(isinstance(sent.body, dict) and sent.body["instruction"] == "retry" for sent in group.applies())


@BOTH
async def test_a_failure_is_named_by_the_id_of_its_acceptance(dialect: str) -> None:
    """Nothing else tells it from one of an earlier command: dialect (a) has no command state."""
    async with FakeGroup(3, dialect) as group, open_hub(group, dialect) as hub:
        await all_unhealthy(group, hub)
        await group.inject(1, "vote_failure")
        outcomes = await hub.apply(order(RANKS))
        after = await settled(hub, UNHEALTHY, failed=True)
        assert [seen.last_ft_request_id for seen in after] == [outcome.engine_request_id for outcome in outcomes]
        assert after[1].ft_error == "One or more workers failed"


@BOTH
async def test_a_healthy_engine_accepts_and_refuses_afterwards(dialect: str) -> None:
    """202 never means that it will run."""
    async with FakeGroup(3, dialect) as group, open_hub(group, dialect) as hub:
        await read(hub)
        outcomes = await hub.apply(order(RANKS))
        after = await settled(hub, HEALTHY, failed=True)
        assert [outcome.outcome for outcome in outcomes] == [ApplyOutcome.ACCEPTED] * 3
        assert [seen.last_ft_request_id for seen in after] == [outcome.engine_request_id for outcome in outcomes]
        assert after[0].ft_error == "[FT] Rejecting retry on engine 0: status is HEALTHY"


@BOTH
async def test_what_is_no_acceptance_of_one_engine_leaves_those_of_the_others(dialect: str) -> None:
    async with FakeGroup(3, dialect) as group, open_hub(group, dialect) as hub:
        await all_unhealthy(group, hub)
        await group.inject(0, "apply_error", status=503)
        await group.inject(1, "drop_before_reply")
        outcomes = await hub.apply(order(RANKS))
        expected = [ApplyOutcome.REFUSED, ApplyOutcome.UNKNOWN, ApplyOutcome.ACCEPTED]
        assert [outcome.outcome for outcome in outcomes] == expected
