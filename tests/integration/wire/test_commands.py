"""Fence before answers, answers before lease; commands run once and to their end."""

import asyncio

import pytest

from motor_ft.model.errors import FieldError, FtError, Reason
from motor_ft.v1 import common_pb2, node_manager_pb2
from motor_ft.wire.channel import call
from tests.integration.wire.support import TIMEOUT, Context, Served, apply, guard, header, nothing
from tests.support.waiting import until


def when_done(context: Context, event: asyncio.Event) -> None:
    """Set ``event`` when the caller has gone."""
    context.add_done_callback(lambda _: event.set())  # type: ignore[arg-type]  # typed as a class, not a protocol


async def test_the_order_is_fence_answers_lease_servicer(served: Served) -> None:
    await call(served.stub.Apply, apply(), timeout=TIMEOUT)
    assert served.ledger.asked == ["fence", "replay", "lease LIVE hash", "apply", "answered"]


async def test_finalize_asks_for_the_owner(served: Served) -> None:
    await call(served.stub.Finalize, node_manager_pb2.FinalizeRequest(header=header()), timeout=TIMEOUT)
    assert served.ledger.asked == ["fence", "replay", "lease OWNER", "answered"]


async def test_guard_is_not_deduplicated_the_same_id_renews(served: Served) -> None:
    first = await call(served.stub.Guard, guard(), timeout=TIMEOUT)
    second = await call(served.stub.Guard, guard(), timeout=TIMEOUT)
    assert (first.dp_store_port, second.dp_store_port) == (1, 2)
    assert served.ledger.asked == ["fence", "guard"] * 2


async def test_the_same_request_gets_the_first_answer_without_running_or_leasing(served: Served) -> None:
    first = await call(served.stub.Apply, apply(), timeout=TIMEOUT)
    served.ledger.asked.clear()
    served.ledger.refuse_lease = FtError(Reason.GUARD_EXPIRED, "over")
    assert await call(served.stub.Apply, apply(), timeout=TIMEOUT) == first
    assert served.ledger.asked == ["fence", "replay"]


async def test_the_same_id_with_another_payload_is_refused(served: Served) -> None:
    await call(served.stub.Apply, apply(port=1), timeout=TIMEOUT)
    with pytest.raises(FtError) as refused:
        await call(served.stub.Apply, apply(port=2), timeout=TIMEOUT)
    assert refused.value.reason is Reason.REQUEST_ID_REUSED
    assert served.ledger.asked.count("apply") == 1


async def test_a_duplicate_waits_for_the_call_that_runs(served: Served) -> None:
    running, go = asyncio.Event(), asyncio.Event()

    async def act(_context: Context) -> None:
        running.set()
        await go.wait()

    served.servicer.act = act
    first = asyncio.ensure_future(call(served.stub.Apply, apply(), timeout=TIMEOUT))
    await running.wait()
    second = asyncio.ensure_future(call(served.stub.Apply, apply(), timeout=TIMEOUT))
    await until(lambda: served.ledger.asked.count("replay") == 2)
    go.set()
    assert await first == await second
    assert served.ledger.asked.count("apply") == 1


async def test_a_duplicate_runs_when_the_call_that_ran_has_failed(served: Served) -> None:
    running, go = asyncio.Event(), asyncio.Event()

    async def act(_context: Context) -> None:
        if not running.is_set():
            running.set()
            await go.wait()
            raise FtError(Reason.ENGINE_UNREACHABLE, "gone")

    served.servicer.act = act
    first = asyncio.ensure_future(call(served.stub.Apply, apply(), timeout=TIMEOUT))
    await running.wait()
    second = asyncio.ensure_future(call(served.stub.Apply, apply(), timeout=TIMEOUT))
    await until(lambda: served.ledger.asked.count("replay") == 2)
    go.set()
    with pytest.raises(FtError, match="gone"):
        await first
    assert (await second).outcomes[0].observation == 2


async def test_without_its_lease_a_command_does_not_run(served: Served) -> None:
    served.ledger.refuse_lease = FtError(Reason.GUARD_REQUIRED, "no guard")
    with pytest.raises(FtError) as refused:
        await call(served.stub.Apply, apply(), timeout=TIMEOUT)
    assert refused.value.reason is Reason.GUARD_REQUIRED
    assert served.ledger.asked == ["fence", "replay", "lease LIVE hash", "failed"]


async def test_an_old_epoch_is_refused_even_where_an_answer_is_recorded(served: Served) -> None:
    await call(served.stub.Apply, apply(epoch=1), timeout=TIMEOUT)
    await call(served.stub.Guard, guard(epoch=2), timeout=TIMEOUT)
    with pytest.raises(FtError) as refused:
        await call(served.stub.Apply, apply(epoch=1), timeout=TIMEOUT)
    assert refused.value.reason is Reason.STALE_EPOCH
    assert refused.value.metadata == {"got": "1", "current": "2"}


async def test_an_old_epoch_may_not_watch_either(served: Served) -> None:
    served.ledger.epoch = 2
    stream = served.stub.WatchStatus(node_manager_pb2.WatchStatusRequest(header=header(epoch=1)))
    with pytest.raises(Exception, match="old epoch"):
        [response async for response in stream]


async def test_a_bad_header_is_refused_with_its_fields_before_anything_else(served: Served) -> None:
    request = node_manager_pb2.ApplyRequest(header=common_pb2.CommandHeader(instance_id=1, controller_epoch=-1))
    with pytest.raises(FieldError) as refused:
        await call(served.stub.Apply, request, timeout=TIMEOUT)
    assert sorted(refused.value.violations) == ["header.controller_epoch", "header.generation", "header.request_id"]
    assert served.ledger.asked == []


async def test_a_caller_that_goes_away_does_not_stop_a_command(served: Served) -> None:
    running, go, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def act(context: Context) -> None:
        when_done(context, go)
        running.set()
        await go.wait()
        done.set()

    served.servicer.act = act
    caller = asyncio.ensure_future(call(served.stub.Apply, apply(), timeout=TIMEOUT))
    await running.wait()
    caller.cancel()
    await asyncio.wait([caller])
    await done.wait()
    served.servicer.act = nothing
    answer = await call(served.stub.Apply, apply(), timeout=TIMEOUT)
    assert answer.outcomes[0].observation == 1
    assert served.ledger.asked.count("apply") == 1


async def test_shutdown_waits_for_a_command_whose_caller_has_gone(served: Served) -> None:
    running, gone, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def act(context: Context) -> None:
        when_done(context, gone)
        running.set()
        await go.wait()

    served.servicer.act = act
    caller = asyncio.ensure_future(call(served.stub.Apply, apply(), timeout=TIMEOUT))
    await running.wait()
    caller.cancel()
    await gone.wait()
    stopping = asyncio.ensure_future(served.server.stop(TIMEOUT))
    go.set()
    await stopping
    assert served.ledger.asked[-1] == "answered"


async def test_shutdown_does_not_wait_longer_than_its_grace(served: Served) -> None:
    running = asyncio.Event()

    async def act(_context: Context) -> None:
        running.set()
        await asyncio.Event().wait()

    served.servicer.act = act
    caller = asyncio.ensure_future(call(served.stub.Apply, apply(), timeout=TIMEOUT))
    await running.wait()
    await served.server.stop(0)
    with pytest.raises(FtError) as refused:
        await caller
    assert refused.value.reason is Reason.OUTCOME_UNKNOWN
    assert served.ledger.asked[-1] == "failed"
