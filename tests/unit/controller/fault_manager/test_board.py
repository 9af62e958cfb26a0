"""What clients see: the last status of each instance, and every change in order for those who keep up."""

import asyncio

import pytest

from controller.core.phases import Phase
from controller.core.status import InstanceState, InstanceStatus
from controller.fault_manager.board import KEPT_DELETED, Board, BoardSubscription
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import Role

pytestmark = pytest.mark.looptime


def status(
    instance_id: int = 1, *, error: str = "", at: float = 0.0, state: InstanceState = InstanceState.ACTIVE
) -> InstanceStatus:
    return InstanceStatus(
        instance_id=instance_id,
        phase=Phase.NORMAL,
        original_dp_ranks=(0,),
        request_id="",
        dead_committed=(),
        pending_removed_ranks=(),
        fallback_strategy="instance_reconfiguration",
        gate=None,
        engine_statuses={},
        serving_published=False,
        last_error=error,
        can_serve=False,
        generation=1,
        job_name="job",
        model_name="model",
        role=Role.UNION,
        dp_size=1,
        state=state,
        pods=(),
        update_time=at,
    )


async def taken(subscription: BoardSubscription) -> list[InstanceStatus]:
    return [change async for change in subscription]


def test_only_a_change_gets_a_revision_and_time_alone_is_none() -> None:
    board = Board()
    assert board.put(status())
    assert not board.put(status(at=5.0))
    assert board.put(status(error="X: y"))
    shown = board.get(1)
    assert shown is not None
    assert (shown.revision, shown.last_error) == (2, "X: y")


def test_instances_come_by_ascending_id() -> None:
    board = Board()
    for instance_id in (3, 1, 2):
        board.put(status(instance_id))
    assert [shown.instance_id for shown in board.all()] == [1, 2, 3]
    assert board.get(9) is None


def test_only_so_many_deleted_instances_are_kept() -> None:
    board = Board()
    for instance_id in range(KEPT_DELETED + 10):
        board.put(status(instance_id))
        board.put(status(instance_id, state=InstanceState.DELETED))
        board.put(status(instance_id, state=InstanceState.DELETED, error="said once more"))
    assert len(board.all()) == KEPT_DELETED
    assert board.all()[0].instance_id == 10


async def test_a_subscriber_gets_every_change_from_now_on_in_order() -> None:
    board = Board()
    board.put(status(1))
    subscription = board.subscribe(10)
    for error in ("a", "b", "c"):
        board.put(status(error=error))
    subscription.close()
    assert [change.last_error for change in await taken(subscription)] == ["a", "b", "c"]


async def test_a_subscriber_that_is_too_slow_is_cut_after_its_last_change_and_never_skips_one() -> None:
    board = Board()
    slow, quick = board.subscribe(2), board.subscribe(100)
    for error in "abcde":
        board.put(status(error=error))
    changes = aiter(slow)
    assert [(await anext(changes)).last_error for _ in "ab"] == ["a", "b"]
    with pytest.raises(FtError) as cut:
        await anext(changes)
    assert cut.value.reason is Reason.OVERLOADED
    quick.close()
    assert len(await taken(quick)) == 5


async def test_a_closed_or_cut_subscriber_costs_nothing_any_more() -> None:
    board = Board()
    closed, cut = board.subscribe(2), board.subscribe(2)
    closed.close()
    closed.close()
    for error in "abcde":
        board.put(status(error=error))
    cut.close()
    assert await taken(closed) == []
    assert len(await taken(cut)) == 2


async def test_close_ends_a_subscriber_that_waits() -> None:
    subscription = Board().subscribe(1)
    waiting = asyncio.ensure_future(taken(subscription))
    await asyncio.sleep(0)
    subscription.close()
    assert await waiting == []
