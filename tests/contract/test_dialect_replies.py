"""Each dialect against the faithful fake: every reply of engine-contract 1.3 to 1.5 has its one meaning."""

from dataclasses import replace
from unittest.mock import ANY

import pytest

from motor_ft.model.engine import ApplyOutcome, EngineObservation, EngineStatus, FtState, Problem
from tests.contract.test_dialect_refusals import FT_OFF, VLLM
from tests.integration.gateway.hubs import COMMANDED, Hub, open_hub, order, targets
from tests.support.engine import FAST, FakeGroup
from tests.support.ports import free_port

SHORT = replace(FAST, check_in=0.3, store_timeout=0.3)
UNREADABLE = [
    ("wrong_id", Problem.IDENTITY, "asked rank 0"),
    ("unknown_status", Problem.PROTOCOL, "paused"),
    ("schema_version", Problem.PROTOCOL, "schema_version"),
    ("non_json", Problem.PROTOCOL, "<html>proxy error"),
]


async def read(hub: Hub, rank: int) -> EngineObservation:
    (reading,) = await hub.observe(targets([rank]), 5.0)
    return replace(reading, observation=0, incarnation="")


async def lose(group: FakeGroup, rank: int) -> list[int]:
    """Kill a worker; returns the survivors once all are unhealthy."""
    await group.inject(rank, "worker_kill")
    survivors = [other for other in range(group.config.dp_size) if other != rank]
    await group.until(lambda: all(group.statuses()[other] == "unhealthy" for other in survivors))
    return survivors


async def accept(hub: Hub, ranks: list[int], removed: tuple[int, ...] = (), request_id: str = "r1") -> None:
    await hub.observe(targets(ranks), 5.0)
    outcomes = await hub.apply(order(ranks, request_id, removed, port=free_port()))
    assert [outcome.outcome for outcome in outcomes] == [ApplyOutcome.ACCEPTED] * len(ranks), outcomes


@pytest.mark.parametrize("name", COMMANDED)
async def test_idle_engines_are_healthy(name: str) -> None:
    async with FakeGroup(2, name) as group, open_hub(group, name) as hub:
        assert await read(hub, 1) == EngineObservation(1, EngineStatus.HEALTHY)


@pytest.mark.parametrize("name", COMMANDED)
@pytest.mark.parametrize(("injection", "problem", "shown"), UNREADABLE)
async def test_lies_are_found_out(name: str, injection: str, problem: Problem, shown: str) -> None:
    async with FakeGroup(1, name) as group, open_hub(group, name) as hub:
        await group.inject(0, injection, **({"value": 2} if injection == "schema_version" else {}))
        reading = await read(hub, 0)
    if (name, injection) == ("sglang", "wrong_id"):
        problem, shown = Problem.PROTOCOL, "not one entry for each of 1 ranks, but [1]"
    assert (reading.status, reading.problem) == (EngineStatus.UNKNOWN, problem)
    assert shown in reading.detail


@pytest.mark.parametrize(("name", "text"), FT_OFF.items())
async def test_without_fault_tolerance_there_is_no_fault(name: str, text: str) -> None:
    async with FakeGroup(1, name, fault_tolerance=False) as group, open_hub(group, name) as hub:
        reading = await read(hub, 0)
    assert (reading.problem, reading.detail) == (Problem.HTTP_STATUS, text)


@pytest.mark.parametrize("name", COMMANDED)
async def test_an_engine_whose_server_ended_is_unreachable(name: str) -> None:
    async with FakeGroup(1, name) as group, open_hub(group, name) as hub:
        await read(hub, 0)
        await group.inject(0, "frontend_kill")
        assert (await read(hub, 0)).problem is Problem.UNREACHABLE
        await group.inject(0, "frontend_restore")
        assert (await read(hub, 0)).status is EngineStatus.HEALTHY


@pytest.mark.parametrize("name", ["vllm_v1", "sglang"])
async def test_b_and_c_need_their_key_and_say_so(name: str) -> None:
    async with FakeGroup(1, name, api_key="s3cret") as group:
        async with open_hub(group, name, token="s3cret") as hub:
            assert (await read(hub, 0)).status is EngineStatus.HEALTHY
        async with open_hub(group, name, token="wrong") as hub:
            reading = await read(hub, 0)
    assert (reading.problem, reading.detail) == (Problem.HTTP_STATUS, "HTTP 401: Unauthorized")


async def test_a_needs_no_key() -> None:
    async with FakeGroup(1, "vllm_0_33", api_key="s3cret") as group, open_hub(group, "vllm_0_33") as hub:
        assert (await read(hub, 0)).status is EngineStatus.HEALTHY


async def test_b_scales_down_and_leaves_no_receipt() -> None:
    async with FakeGroup(4, "vllm_v1", tp_size=2) as group, open_hub(group) as hub:
        survivors = await lose(group, 1)
        assert await read(hub, 1) == EngineObservation(1, EngineStatus.DEAD)
        assert await read(hub, 0) == EngineObservation(
            0, EngineStatus.UNHEALTHY, fault_info="RuntimeError", mask=(0, 0, 1, 1, 0, 0, 0, 0)
        )
        await accept(hub, survivors, (1,))
        await group.until(lambda: all(group.statuses()[rank] == "healthy" for rank in survivors))
        assert [await read(hub, rank) for rank in survivors] == [
            EngineObservation(rank, EngineStatus.HEALTHY) for rank in survivors
        ]
        assert [(record.rank, record.status) for record in group.applies()] == [(r, 202) for r in survivors]


async def test_b_shows_a_running_command_by_its_id() -> None:
    slow = replace(FAST, round_time=30.0)
    async with FakeGroup(2, "vllm_v1", timings=slow) as group, open_hub(group) as hub:
        await lose(group, 1)
        await accept(hub, [0], (1,), "rec-17-a1")
        await group.until(lambda: group.entry(0).get("ft_state") == "recovering")
        reading = await read(hub, 0)
        assert (reading.ft_state, reading.last_ft_request_id) == (FtState.RECOVERING, "rec-17-a1")


async def test_b_shows_a_missing_peer_as_failed_and_still_unhealthy() -> None:
    async with FakeGroup(3, "vllm_v1", timings=SHORT) as group, open_hub(group) as hub:
        await lose(group, 2)
        await accept(hub, [1], (2,))
        await group.until(lambda: group.entry(1).get("ft_state") == "failed")
        reading = await read(hub, 1)
    assert (reading.status, reading.ft_state, reading.last_ft_request_id) == (
        EngineStatus.UNHEALTHY,
        FtState.FAILED,
        "r1",
    )
    assert "Not all engines joined recovery round 'r1'" in reading.ft_error


async def test_b_shows_a_failed_vote_as_dead_and_failed() -> None:
    async with FakeGroup(3, "vllm_v1") as group, open_hub(group) as hub:
        survivors = await lose(group, 2)
        await group.inject(0, "vote_failure")
        await accept(hub, survivors, (2,))
        await group.until(lambda: all(group.entry(rank).get("ft_state") == "failed" for rank in survivors))
        reading = await read(hub, 1)
    assert (reading.status, reading.ft_state) == (EngineStatus.DEAD, FtState.FAILED)
    assert reading.ft_error == "[FT] Recovery vote failed"


@pytest.mark.parametrize(("name", "state"), [("vllm_v1", FtState.FAILED), ("vllm_0_33", FtState.NONE)])
async def test_a_command_to_a_healthy_engine_is_accepted_and_then_rejected_in_the_entry(
    name: str, state: FtState
) -> None:
    async with FakeGroup(2, name) as group, open_hub(group) as hub:
        await hub.observe(targets([0]), 5.0)
        (outcome,) = await hub.apply(order([0]))
        assert outcome.outcome is ApplyOutcome.ACCEPTED
        await group.until(lambda: "ft_error" in group.entry(0))
        reading = await read(hub, 0)
    assert (reading.status, reading.ft_state) == (EngineStatus.HEALTHY, state)
    assert reading.ft_error == "[FT] Rejecting retry on engine 0: status is HEALTHY"
    assert reading.last_ft_request_id == outcome.engine_request_id


async def test_a_makes_the_ids_and_b_and_c_echo_ours() -> None:
    ids = {}
    for name in COMMANDED:
        async with FakeGroup(1, name) as group, open_hub(group, name) as hub:
            await hub.observe(targets([0]), 5.0)
            (outcome,) = await hub.apply(order([0], "ours"))
            ids[name] = outcome.engine_request_id
            (record,) = group.applies()
            assert record.reply == {"message": ANY, "request_id": ids[name]}
    assert ids["vllm_v1"] == ids["sglang"] == "ours"
    assert ids["vllm_0_33"] not in {"", "ours"}


async def test_a_retries_the_whole_group() -> None:
    async with FakeGroup(2, "vllm_0_33") as group, open_hub(group) as hub:
        for rank in range(2):
            await group.inject(rank, "step_exception")
        await group.until(lambda: set(group.statuses().values()) == {"unhealthy"})
        assert await read(hub, 0) == EngineObservation(0, EngineStatus.UNHEALTHY, fault_info="RuntimeError")
        await accept(hub, [0, 1])
        await group.until(lambda: set(group.statuses().values()) == {"healthy"})


async def test_a_scale_down_never_reaches_an_engine_of_dialect_a() -> None:
    async with FakeGroup(2, "vllm_0_33") as group, open_hub(group) as hub:
        await hub.observe(targets([0]), 5.0)
        (outcome,) = await hub.apply(order([0], removed=(1,)))
        assert outcome.outcome is ApplyOutcome.REFUSED
        assert "vllm_0_33" in outcome.detail
        assert group.applies() == []


@pytest.mark.parametrize("name", COMMANDED)
async def test_a_503_is_a_refusal_in_the_engines_words(name: str) -> None:
    async with FakeGroup(1, name) as group, open_hub(group) as hub:
        await hub.observe(targets([0]), 5.0)
        await group.inject(0, "apply_error", status=503, message="not now")
        (outcome,) = await hub.apply(order([0]))
    assert (outcome.outcome, outcome.detail) == (ApplyOutcome.REFUSED, "HTTP 503: not now")


@pytest.mark.parametrize("name", COMMANDED)
@pytest.mark.parametrize("run", [True, False])
async def test_a_lost_reply_is_unknown_and_the_order_went_out_once(name: str, run: bool) -> None:
    async with FakeGroup(1, name) as group, open_hub(group) as hub:
        await hub.observe(targets([0]), 5.0)
        await group.inject(0, "drop_before_reply", run=run)
        (outcome,) = await hub.apply(order([0]))
        assert outcome.outcome is ApplyOutcome.UNKNOWN
        assert len(group.applies(0)) == 1


@pytest.mark.parametrize("name", COMMANDED)
async def test_an_order_that_is_swallowed_after_the_202_is_accepted_all_the_same(name: str) -> None:
    """A 202 says queued, never more: only later readings tell."""
    async with FakeGroup(1, name) as group, open_hub(group) as hub:
        await hub.observe(targets([0]), 5.0)
        await group.inject(0, "drop_after_202")
        (outcome,) = await hub.apply(order([0]))
        assert outcome.outcome is ApplyOutcome.ACCEPTED
        assert await read(hub, 0) == EngineObservation(0, EngineStatus.HEALTHY)


@pytest.mark.parametrize("name", VLLM)
async def test_the_dialect_is_found_by_reading_only(name: str) -> None:
    async with FakeGroup(1, name) as group, open_hub(group, "auto") as hub:
        assert (await read(hub, 0)).status is EngineStatus.HEALTHY
        assert group.applies() == []


async def test_c_is_not_found_and_taken_for_b_it_is_not_read() -> None:
    """The paths are the same; an order never gets out, for no engine is healthy, unhealthy or dead."""
    async with FakeGroup(2, "sglang") as group, open_hub(group, "auto") as hub:
        reading = await read(hub, 1)
    assert (reading.problem, reading.detail) == (Problem.IDENTITY, "asked rank 1, the answer is about [0, 1]")


async def test_c_scales_down_with_one_order_and_leaves_a_receipt() -> None:
    """Four ranks, then three, then two: each time one POST with what is new, whose id every rank shows."""
    async with FakeGroup(4, "sglang") as group, open_hub(group, "sglang") as hub:
        await hub.observe(targets(range(4)), 5.0)
        for lost, retired, survivors in ((3, (), [0, 1, 2]), (1, (3,), [0, 2])):
            await group.inject(lost, "worker_kill")
            await group.until(lambda: "healthy" not in group.statuses().values())
            assert (await read(hub, lost)).status is EngineStatus.DEAD
            apply = order(survivors, f"lost-{lost}", (*retired, lost))
            outcomes = await hub.apply(replace(apply, order=replace(apply.order, retired=retired)))
            assert [outcome.outcome for outcome in outcomes] == [ApplyOutcome.ACCEPTED] * len(survivors)
            await group.until(lambda: "unhealthy" not in group.statuses().values())
            assert [await read(hub, rank) for rank in survivors] == [
                EngineObservation(rank, EngineStatus.HEALTHY, last_ft_request_id=f"lost-{lost}") for rank in survivors
            ]
        sent = [record.body["params"] for record in group.applies() if isinstance(record.body, dict)]
        assert sent == [{"removed_dp_ranks": [3]}, {"removed_dp_ranks": [1]}]


async def test_c_shows_a_refusal_at_every_rank_by_our_id() -> None:
    async with FakeGroup(2, "sglang") as group, open_hub(group, "sglang") as hub:
        await hub.observe(targets([0, 1]), 5.0)
        await hub.apply(order([0], removed=(1,)))
        await group.until(lambda: group.rank(0).group.receipt)
        readings = [await read(hub, rank) for rank in range(2)]
    assert {(seen.status, seen.last_ft_request_id, seen.ft_error) for seen in readings} == {
        (EngineStatus.HEALTHY, "r1", "scale_down_requires_unresolved_expected_dp_fault")
    }


async def test_c_whose_server_ended_is_unreachable_for_every_rank() -> None:
    async with FakeGroup(2, "sglang") as group, open_hub(group, "sglang") as hub:
        await group.inject(0, "window_expiry")
        assert {(await read(hub, rank)).problem for rank in range(2)} == {Problem.UNREACHABLE}
