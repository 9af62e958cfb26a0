"""The hub: shared reading, counters, and orders that go out once or not at all."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from gateway.engines.poller import Watch
from motor_ft.model.engine import ApplyOutcome, EngineObservation, EngineStatus, ProbeOutcome, Problem
from motor_ft.model.errors import FtError
from tests.integration.gateway.hubs import Hub, metric, open_hub, order, targets
from tests.integration.gateway.raw_server import Exchange, raw_server
from tests.support.engine import FakeGroup
from tests.support.ports import free_port


def status(rank: int = 0, value: str = "healthy") -> bytes:
    """Body of a status answer."""
    return json.dumps({"schema_version": 1, "engines": [{"id": rank, "status": value}]}).encode()


async def healthy(exchange: Exchange) -> None:
    await exchange.answer(200, status())


async def nobody_answers(exchange: Exchange) -> None:
    await asyncio.Event().wait()


def accepting(request_id: str = "r1") -> bytes:
    return json.dumps({"message": "", "request_id": request_id}).encode()


async def until_seen(watch: Watch, status: EngineStatus) -> EngineObservation:
    while True:
        if (reading := await watch.next()).status is status:
            return reading


class TestReading:
    """observe and watch."""

    async def test_counters_grow_with_every_reading_and_carry_the_incarnation(self) -> None:
        async with FakeGroup(1) as group, open_hub(group, "vllm_v1") as hub:
            seen = [(await hub.observe(targets([0], process), 5.0))[0] for process in ("e1", "e1", "e2")]
        assert [(reading.incarnation, reading.observation) for reading in seen] == [("e1", 1), ("e1", 2), ("e2", 3)]

    async def test_readings_come_in_the_asked_order(self) -> None:
        async with FakeGroup(3) as group, open_hub(group) as hub:
            assert [reading.rank for reading in await hub.observe(targets([2, 0, 1]), 5.0)] == [2, 0, 1]

    async def test_an_unknown_rank_is_named_and_nothing_is_read(self) -> None:
        async with raw_server(healthy) as server, open_hub({0: server.url}, "vllm_v1") as hub:
            with pytest.raises(FtError, match=r"UNKNOWN_RANK.*\[7\]"):
                await hub.observe(targets([0, 7]), 5.0)
            with pytest.raises(FtError, match="UNKNOWN_RANK"):
                await hub.apply(order([7]))
            assert server.requests == []

    async def test_a_slow_engine_delays_nobody_else(self) -> None:
        async with AsyncExitStack() as stack:
            slow = await stack.enter_async_context(raw_server(nobody_answers))
            quick = await stack.enter_async_context(raw_server(healthy))
            hub = await stack.enter_async_context(open_hub({0: quick.url, 1: slow.url}, "vllm_v1"))
            watch = stack.enter_context(hub.watch(targets([0, 1]), 0.01, 60.0))
            assert (await watch.next()).rank == 0
            await quick.received(3)
            assert len(slow.requests) == 1

    async def test_one_reader_for_all_watchers_and_never_two_readings_at_a_time(self) -> None:
        at_once = peak = 0
        release = asyncio.Semaphore(0)

        async def counted(exchange: Exchange) -> None:
            nonlocal at_once, peak
            at_once += 1
            peak = max(peak, at_once)
            await release.acquire()
            at_once -= 1
            await exchange.answer(200, status(1))

        async with (
            raw_server(counted) as server,
            raw_server(healthy) as other,
            open_hub({1: server.url, 0: other.url}, "vllm_v1") as hub,
        ):
            with (
                hub.watch(targets([1]), 0.001, 60.0) as first,
                hub.watch(targets([1]), 0.001, 60.0) as second,
            ):
                await server.received(1)
                await hub.observe(targets([0]), 5.0)  # time enough for a second reader to show itself
                assert len(server.requests) == 1
                for number in range(2, 6):
                    release.release()
                    await server.received(number)
                assert await first.next() == await second.next()
        assert peak == 1

    async def test_a_newcomer_does_not_wait_for_the_others_interval(self) -> None:
        async with raw_server(healthy) as server, open_hub({0: server.url}, "vllm_v1") as hub:
            with hub.watch(targets([0]), 3600.0, 5.0) as first:
                await first.next()
                with hub.watch(targets([0]), 3600.0, 5.0) as second:
                    assert (await second.next()).observation == 2

    async def test_reading_stops_with_the_last_watcher(self) -> None:
        async with raw_server(healthy) as server, open_hub({0: server.url}, "vllm_v1") as hub:
            with hub.watch(targets([0]), 0.001, 5.0) as watch:
                await watch.next()
            await asyncio.sleep(0)
            assert "engines/poll-0" not in {task.get_name() for task in asyncio.all_tasks()}
            seen = len(server.requests)
            (reading,) = await hub.observe(targets([0]), 5.0)
            assert len(server.requests) == seen + 1
            with hub.watch(targets([0]), 3600.0, 5.0) as watch:
                assert (await watch.next()).observation == reading.observation + 1

    async def test_a_change_is_shown_by_whoever_reads_it_first(self) -> None:
        value = "healthy"

        async def changing(exchange: Exchange) -> None:
            await exchange.answer(200, status(0, value))

        async with raw_server(changing) as server, open_hub({0: server.url}, "vllm_v1") as hub:
            with hub.watch(targets([0]), 3600.0, 5.0) as watch:
                await watch.next()
                value = "dead"
                await hub.observe(targets([0]), 5.0)
                assert (await watch.next()).status is EngineStatus.DEAD

    async def test_fault_and_end_of_an_engine_are_watched(self) -> None:
        async with FakeGroup(2) as group, open_hub(group) as hub:
            with hub.watch(targets([0, 1]), 0.01, 5.0) as watch:
                assert {(await watch.next()).rank for _ in range(2)} == {0, 1}
                await group.inject(1, "worker_kill")
                assert (await until_seen(watch, EngineStatus.DEAD)).rank == 1
                assert (await until_seen(watch, EngineStatus.UNHEALTHY)).rank == 0
                await group.inject(1, "frontend_kill")
                unread = [await until_seen(watch, EngineStatus.UNKNOWN) for _ in range(2)]
                assert {reading.problem for reading in unread} == {Problem.UNREACHABLE}
                assert unread[0].observation < unread[1].observation

    async def test_a_reading_of_an_engine_that_was_replaced_meanwhile_says_nothing(self) -> None:
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def held(exchange: Exchange) -> None:
            asked.set()
            await go_on.wait()
            await exchange.answer(200, status())

        async with raw_server(held) as server, open_hub({0: server.url}, "vllm_v1") as hub:
            old = asyncio.create_task(hub.observe(targets([0], "e1"), 5.0))
            await asked.wait()
            new = asyncio.create_task(hub.observe(targets([0], "e2"), 5.0))
            await asyncio.sleep(0)
            go_on.set()
            ((before,), (after,)) = await asyncio.gather(old, new)
        assert (before.incarnation, before.problem) == ("e1", Problem.LOCAL)
        assert (after.incarnation, after.status) == ("e2", EngineStatus.HEALTHY)

    async def test_an_engine_in_neither_or_both_dialects_is_not_believed(self) -> None:
        async with FakeGroup(1, fault_tolerance=False) as group, open_hub(group, "auto") as hub:
            ((neither,)) = await hub.observe(targets([0]), 5.0)
        async with raw_server(healthy) as server, open_hub({0: server.url}, "auto") as hub:
            ((both,)) = await hub.observe(targets([0]), 5.0)
        assert (neither.problem, both.problem) == (Problem.HTTP_STATUS, Problem.PROTOCOL)

    async def test_a_new_process_may_speak_another_dialect(self) -> None:
        speaks = "/v1/fault_tolerance/status"

        async def one_path(exchange: Exchange) -> None:
            found = exchange.path == speaks
            await exchange.answer(200 if found else 404, status() if found else b"{}")

        async with raw_server(one_path) as server, open_hub({0: server.url}, "auto") as hub:
            await hub.observe(targets([0], "e1"), 5.0)
            speaks = "/fault_tolerance/status"
            ((stale,)) = await hub.observe(targets([0], "e1"), 5.0)
            ((fresh,)) = await hub.observe(targets([0], "e2"), 5.0)
        assert (stale.problem, fresh.status) == (Problem.HTTP_STATUS, EngineStatus.HEALTHY)

    async def test_readings_are_counted_by_problem(self) -> None:
        async with open_hub({0: f"http://127.0.0.1:{free_port()}"}, "vllm_v1") as hub:
            await hub.observe(targets([0]), 5.0)
            assert metric(hub, "motor_ft_engine_reads_total", problem="unreachable") == 1


class TestApply:
    """Orders."""

    async def test_the_outcome_carries_the_counter_at_the_202_and_only_a_later_reading_is_larger(self) -> None:
        """A reading that began before the 202 never counts as after it, even when it ends later."""
        started, finish = asyncio.Event(), asyncio.Event()

        async def engine(exchange: Exchange) -> None:
            if exchange.request.startswith(b"POST"):
                await exchange.answer(202, accepting())
                return
            if started.is_set():
                await finish.wait()
            started.set()
            await exchange.answer(200, status())

        async with raw_server(engine) as server, open_hub({0: server.url}, "vllm_v1") as hub:
            await hub.observe(targets([0]), 5.0)
            before = asyncio.create_task(hub.observe(targets([0]), 5.0))
            await server.received(2)
            (outcome,) = await hub.apply(order([0]))
            finish.set()
            (stale,), (fresh,) = await before, await hub.observe(targets([0]), 5.0)
        assert outcome.outcome is ApplyOutcome.ACCEPTED
        assert stale.observation <= outcome.observation < fresh.observation

    async def test_all_targets_get_it_at_the_same_time(self) -> None:
        together = asyncio.Barrier(3)

        async def engine(exchange: Exchange) -> None:
            await together.wait()
            await exchange.answer(202, accepting())

        async with (
            raw_server(engine) as server,
            open_hub(dict.fromkeys(range(3), server.url), "vllm_v1") as hub,
        ):
            declare(hub, 3)
            outcomes = await hub.apply(order(range(3)))
        assert [(o.rank, o.outcome) for o in outcomes] == [(rank, ApplyOutcome.ACCEPTED) for rank in range(3)]

    async def test_the_same_id_is_never_sent_to_an_engine_twice(self) -> None:
        async with FakeGroup(1) as group, open_hub(group) as hub:
            declare(hub, 1)
            first = await hub.apply(order([0]))
            assert await hub.apply(order([0])) == first
            assert len(group.applies()) == 1
            await hub.apply(order([0], "r2"))
            assert len(group.applies()) == 2

    async def test_of_the_orders_that_are_remembered_the_oldest_goes_first(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("gateway.engines.hub._REMEMBERED", 2)
        async with FakeGroup(1) as group, open_hub(group) as hub:
            declare(hub, 1)
            for request_id in ("r1", "r2", "r3", "r3", "r2"):
                await hub.apply(order([0], request_id))
            assert len(group.applies()) == 3
            await hub.apply(order([0], "r1"))
            assert len(group.applies()) == 4

    async def test_an_unknown_outcome_is_not_tried_again(self) -> None:
        async with FakeGroup(1) as group, open_hub(group) as hub:
            declare(hub, 1)
            await group.inject(0, "drop_before_reply")
            assert [(await hub.apply(order([0])))[0].outcome for _ in range(2)] == [ApplyOutcome.UNKNOWN] * 2
            assert len(group.applies()) == 1

    async def test_what_certainly_did_not_leave_may_be_tried_again(self) -> None:
        async with FakeGroup(1) as group, open_hub(group, "vllm_v1") as hub:
            declare(hub, 1)
            await group.inject(0, "frontend_kill")
            (outcome,) = await hub.apply(order([0]))
            assert outcome.outcome is ApplyOutcome.NOT_SENT
            await group.inject(0, "frontend_restore")
            (outcome,) = await hub.apply(order([0]))
            assert outcome.outcome is ApplyOutcome.ACCEPTED

    async def test_a_caller_that_gives_up_stops_nothing_and_learns_the_outcome_later(self) -> None:
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def engine(exchange: Exchange) -> None:
            asked.set()
            await go_on.wait()
            await exchange.answer(202, accepting())

        async with raw_server(engine) as server, open_hub({0: server.url}, "vllm_v1") as hub:
            declare(hub, 1)
            caller = asyncio.create_task(hub.apply(order([0])))
            await asked.wait()
            caller.cancel()
            again = asyncio.create_task(hub.apply(order([0])))
            go_on.set()
            assert [outcome.outcome for outcome in await again] == [ApplyOutcome.ACCEPTED]
            assert len(server.requests) == 1

    async def test_another_process_than_declared_gets_nothing(self) -> None:
        async with FakeGroup(2) as group, open_hub(group) as hub:
            declare(hub, 1)
            other, never = await hub.apply(order([0, 1], incarnation="e0"))
            assert (other.outcome, never.outcome) == (ApplyOutcome.NOT_SENT, ApplyOutcome.NOT_SENT)
            assert "'e1'" in other.detail
            assert "none" in never.detail
            assert group.applies() == []

    async def test_a_lease_that_is_over_sends_nothing(self) -> None:
        async with FakeGroup(1) as group, open_hub(group) as hub:
            declare(hub, 1)
            hub.clock.now = 160.0
            (outcome,) = await hub.apply(order([0], deadline=160.0))
            assert (outcome.outcome, outcome.detail) == (ApplyOutcome.NOT_SENT, "the guard lease is over")
            assert group.applies() == []

    async def test_an_epoch_that_was_overtaken_sends_nothing(self) -> None:
        async with FakeGroup(1) as group, open_hub(group) as hub:
            declare(hub, 1)
            hub.fence.admit(order([0], epoch=6).command)
            (outcome,) = await hub.apply(order([0], epoch=5))
            assert outcome.outcome is ApplyOutcome.NOT_SENT
            assert "STALE_EPOCH" in outcome.detail
            assert group.applies() == []

    @pytest.mark.parametrize("late", ["epoch", "lease", "incarnation", "host"])
    async def test_what_changes_while_the_dialect_is_found_out_is_still_seen(self, late: str) -> None:
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def engine(exchange: Exchange) -> None:
            asked.set()
            await go_on.wait()
            await exchange.answer(200 if exchange.path.startswith("/v1") else 404, status())

        async with raw_server(engine) as server, open_hub({0: server.url}, "auto") as hub:
            declare(hub, 1)
            applying = asyncio.create_task(hub.apply(order([0])))
            await asked.wait()
            if late == "epoch":
                hub.fence.admit(order([0], epoch=6).command)
            elif late == "lease":
                hub.clock.now = 1e9
            elif late == "host":
                hub.ended.add("r1")
            else:
                declare(hub, 1, "e2")
            go_on.set()
            (outcome,) = await applying
            assert outcome.outcome is ApplyOutcome.NOT_SENT
            assert not any(request.startswith(b"POST") for request in server.requests)

    async def test_an_engine_whose_dialect_is_not_known_gets_nothing(self) -> None:
        async with FakeGroup(1, fault_tolerance=False) as group, open_hub(group, "auto") as hub:
            declare(hub, 1)
            (outcome,) = await hub.apply(order([0]))
            assert outcome.outcome is ApplyOutcome.NOT_SENT
            assert group.applies() == []

    async def test_outcomes_are_counted(self) -> None:
        async with FakeGroup(1) as group, open_hub(group) as hub:
            declare(hub, 1)
            await hub.apply(order([0]))
            assert metric(hub, "motor_ft_engine_applies_total", instruction="retry", outcome="accepted") == 1


class TestCompletion:
    """One token."""

    async def test_a_healthy_engine_serves(self) -> None:
        async with FakeGroup(1) as group, open_hub(group) as hub:
            declare(hub, 1)
            assert await hub.probe_completion(targets([0])[0], 5.0) == (ProbeOutcome.SERVED, "")

    async def test_healthy_but_completions_fail_is_found_out(self) -> None:
        async with FakeGroup(1) as group, open_hub(group) as hub:
            declare(hub, 1)
            await group.inject(0, "completions_fail")
            outcome, detail = await hub.probe_completion(targets([0])[0], 5.0)
            assert outcome is ProbeOutcome.FAILED
            assert "HTTP 500" in detail

    @pytest.mark.parametrize(
        ("answers", "expected"),
        [
            ({"/v1/models": (404, b'{"detail":"Not Found"}')}, ProbeOutcome.NOT_SERVED_HERE),
            ({"/v1/completions": (404, b'{"detail":"Not Found"}')}, ProbeOutcome.NOT_SERVED_HERE),
            ({"/v1/models": (200, b'{"data":[]}')}, ProbeOutcome.FAILED),
            ({"/v1/models": (401, b'{"error":"Unauthorized"}')}, ProbeOutcome.FAILED),
            ({"/v1/completions": (200, b'{"choices":[{"text":"","finish_reason":"abort"}]}')}, ProbeOutcome.FAILED),
            ({"/v1/completions": (200, b'{"choices":[{"text":"","finish_reason":"error"}]}')}, ProbeOutcome.FAILED),
            ({"/v1/completions": (200, b'{"choices":[{"text":""}]}')}, ProbeOutcome.FAILED),
            ({"/v1/completions": (200, b'{"choices":[]}')}, ProbeOutcome.FAILED),
            ({"/v1/completions": (200, b"<html>")}, ProbeOutcome.FAILED),
            ({"/v1/completions": (200, b'{"choices":[{"text":"a","finish_reason":"length"}]}')}, ProbeOutcome.SERVED),
        ],
    )
    async def test_what_an_answer_shows(self, answers: dict[str, tuple[int, bytes]], expected: ProbeOutcome) -> None:
        async def engine(exchange: Exchange) -> None:
            default = (200, b'{"data":[{"id":"m"}]}')
            await exchange.answer(*answers.get(exchange.path, default))

        async with raw_server(engine) as server, open_hub({0: server.url}, "vllm_v1") as hub:
            declare(hub, 1)
            assert (await hub.probe_completion(targets([0])[0], 5.0))[0] is expected

    async def test_an_engine_that_is_gone_or_not_meant_fails(self) -> None:
        async with open_hub({0: f"http://127.0.0.1:{free_port()}"}, "vllm_v1") as hub:
            declare(hub, 1)
            assert (await hub.probe_completion(targets([0])[0], 5.0))[0] is ProbeOutcome.FAILED
            outcome, detail = await hub.probe_completion(targets([0], "e9")[0], 5.0)
        assert outcome is ProbeOutcome.FAILED
        assert "'e9'" in detail


def declare(hub: Hub, ranks: int, incarnation: str = "e1") -> None:
    """Tell the hub which processes are meant, without reading them."""
    with hub.watch(targets(range(ranks), incarnation), 3600.0, 5.0):
        pass
