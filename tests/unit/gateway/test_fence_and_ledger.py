"""The gateway's fence, and that a repeated command gets the first answer."""

import pytest

from gateway.engines.fence import REMEMBERED, Fence
from gateway.rpc.ledger import GatewayLedger
from motor_ft.model.command import Command
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1.engine_pb2 import ApplyInstructionRequest
from motor_ft.wire.convert import command_to_header, duration_to_pb

METHOD = "/motor_ft.v1.EngineService/ApplyInstruction"


def command(epoch: int | None, generation: int | None = 1, instance: int = 7, request_id: str = "r1") -> Command:
    return Command(instance, request_id, epoch, generation)


def payload(ip: str = "10.0.0.1", lease: float = 60.0) -> bytes:
    return ApplyInstructionRequest(
        header=command_to_header(command(5)), dp_master_ip=ip, lease_remaining=duration_to_pb(lease)
    ).SerializeToString()


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        (command(4, 9), Reason.STALE_EPOCH),
        (command(5, 2), Reason.STALE_GENERATION),
    ],
)
def test_a_lower_command_is_refused_with_what_it_got_and_what_holds(late: Command, reason: Reason) -> None:
    fence = Fence()
    fence.admit(command(5, 3))
    for ask in (fence.check, fence.admit):
        with pytest.raises(FtError) as caught:
            ask(late)
        assert caught.value.reason is reason
        assert set(caught.value.metadata) == {"got", "current"}


def test_order_is_by_epoch_first_and_per_instance() -> None:
    fence = Fence()
    fence.admit(command(5, 3))
    fence.admit(command(5, 3))
    fence.admit(command(6, 1))
    fence.admit(command(1, 1, instance=8))
    with pytest.raises(FtError, match="STALE_EPOCH"):
        fence.check(command(5, 3))


def test_of_very_many_instances_those_are_forgotten_that_were_commanded_longest_ago() -> None:
    fence = Fence()
    for instance in (7, 8, 7, *range(1_000_000, 1_000_000 + REMEMBERED - 1)):
        fence.admit(command(5, 3, instance=instance))
    fence.check(command(4, 3, instance=8))
    for instance in (7, 1_000_000, 1_000_000 + REMEMBERED - 2):
        with pytest.raises(FtError, match="STALE_EPOCH"):
            fence.check(command(4, 3, instance=instance))


def test_an_unfenced_command_neither_fails_nor_moves_the_fence() -> None:
    fence = Fence()
    fence.admit(command(5, 3))
    fence.admit(command(None, None))
    with pytest.raises(FtError, match="STALE_EPOCH"):
        fence.check(command(4))


def test_checking_does_not_raise_the_fence() -> None:
    fence = Fence()
    fence.check(command(9))
    fence.check(command(1))


async def test_the_first_answer_comes_again_even_when_less_of_the_lease_is_left() -> None:
    ledger = GatewayLedger(Fence())
    assert await ledger.replay(METHOD, command(5), payload()) is None
    await ledger.answered(METHOD, command(5), payload(), b"first")
    assert await ledger.replay(METHOD, command(5), payload(lease=3.0)) == b"first"


async def test_the_same_id_with_another_payload_is_refused() -> None:
    ledger = GatewayLedger(Fence())
    await ledger.replay(METHOD, command(5), payload())
    with pytest.raises(FtError, match="REQUEST_ID_REUSED"):
        await ledger.replay(METHOD, command(5), payload(ip="10.0.0.2"))


async def test_after_a_failed_call_the_next_one_runs() -> None:
    ledger = GatewayLedger(Fence())
    await ledger.replay(METHOD, command(5), payload())
    ledger.failed(METHOD, command(5), payload())
    assert await ledger.replay(METHOD, command(5), payload()) is None
