"""Apply over gRPC: under the live guard, at most once, to the engine that was meant."""

import asyncio
import socket
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from motor_ft.model.command import Command, ScaleDownPlan
from motor_ft.model.engine import Instruction
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import common_pb2, node_manager_pb2
from motor_ft.wire.convert import command_to_header
from nodemanager.core.applies import ApplyOrder
from tests.integration.nodemanager.gateway import ScriptedGateway
from tests.integration.nodemanager.node import BASE_PORT, EPOCH, Node, command
from tests.integration.nodemanager.test_guard import refuses
from tests.support.disk import full_disk

ACCEPTED = common_pb2.APPLY_OUTCOME_ACCEPTED
REFUSED = common_pb2.APPLY_OUTCOME_REFUSED
UNKNOWN = common_pb2.APPLY_OUTCOME_UNKNOWN
NOT_SENT = common_pb2.APPLY_OUTCOME_NOT_SENT
OP = command()


async def guarded(node: Node, by: Command = OP) -> ScaleDownPlan:
    plan = node.plan()
    await node.guard(by, plan=plan)
    return plan


def outcomes(response: node_manager_pb2.ApplyResponse) -> dict[int, int]:
    return {outcome.dp_rank: outcome.outcome for outcome in response.outcomes}


async def test_the_order_reaches_the_gateway_as_it_was_given(node: Node, gateway: ScriptedGateway) -> None:
    plan = await guarded(node)
    response = await node.apply(node.apply_request(OP, plan, 0, port=31234))
    assert outcomes(response) == {0: ACCEPTED}
    (sent,) = gateway.applies
    assert sent.header == command_to_header(OP)
    assert [(target.dp_rank, target.engine_incarnation) for target in sent.targets] == [(0, node.incarnation(0))]
    assert (list(sent.removed_dp_ranks), sent.dp_master_ip, sent.dp_store_port) == ([1], "127.0.0.1", 31234)
    assert 0 < sent.lease_remaining.ToTimedelta().total_seconds() <= 60


async def test_without_a_port_it_is_the_base_port_plus_the_lowest_survivor(
    tmp_path: Path, gateway: ScriptedGateway
) -> None:
    async with Node(tmp_path, gateway, ranks=(1, 2), launched=()).running() as node:
        await node.join()
        plan = node.plan(removed=(0,))
        await node.guard(OP, plan=plan)
        await node.apply(node.apply_request(OP, plan, 1, 2))
        assert gateway.applies[0].dp_store_port == BASE_PORT + 1


async def test_the_gateway_is_told_which_removed_ranks_are_retired(tmp_path: Path, gateway: ScriptedGateway) -> None:
    async with Node(tmp_path, gateway, ranks=(0, 1, 2), launched=()).running() as node:
        await node.join()
        for op, removed, retired in ((OP, (1,), []), (command("next"), (1, 2), [1])):
            plan = node.plan(removed=removed)
            await node.guard(op, plan=plan)
            await node.apply(node.apply_request(op, plan, 0))
            assert list(gateway.applies[-1].retired_dp_ranks) == retired
            await node.finalize(op, retired=removed)


async def test_the_reserved_port_is_free_when_the_engine_is_told(node: Node, gateway: ScriptedGateway) -> None:
    plan = await guarded(node)
    gateway.answer.clear()
    applying = asyncio.create_task(node.apply(node.apply_request(OP, plan, 0, port=node.first_port)))
    await gateway.applied.wait()
    with socket.socket() as engine:
        engine.bind(("127.0.0.1", node.first_port))
    gateway.answer.set()
    await applying


async def test_apply_is_refused_with_its_reason(node: Node, gateway: ScriptedGateway) -> None:
    plan = node.plan()
    request = node.apply_request(OP, plan, 0)
    with refuses(Reason.GUARD_REQUIRED):
        await node.apply(request)
    await guarded(node)
    with refuses(Reason.STALE_REQUEST_ID):
        await node.apply(node.apply_request(command("other"), plan, 0))
    with refuses(Reason.STALE_EPOCH):
        await node.apply(node.apply_request(command(epoch=EPOCH - 1), plan, 0))
    with refuses(Reason.PLAN_MISMATCH):
        await node.apply(node.apply_request(OP, replace(plan, plan_hash="0" * 64), 0))
    with refuses(Reason.PLAN_MISMATCH):
        await node.apply(node.apply_request(OP, replace(plan, removed=(1, 2)), 0))
    with refuses(Reason.UNKNOWN_RANK):
        await node.apply(node.apply_request(OP, plan, 0, 2))
    node.clock.ahead += 60
    with refuses(Reason.GUARD_EXPIRED):
        await node.apply(request)
    assert gateway.applies == []


async def test_what_cannot_be_written_down_is_refused_and_nothing_is_sent(node: Node, gateway: ScriptedGateway) -> None:
    """Neither guard, nor apply, nor finalize, on a full disk; with room again the same command goes on."""
    plan = await guarded(node)
    with full_disk((node.directory / "journal").stat().st_size):
        with refuses(Reason.STORE_UNAVAILABLE):
            await node.guard(OP, plan=plan)
        with refuses(Reason.STORE_UNAVAILABLE):
            await node.apply(node.apply_request(OP, plan, 0))
        with refuses(Reason.STORE_UNAVAILABLE):
            await node.finalize(OP, commit=True, retired=[1])
        assert node.registry.get_sample_value("motor_ft_journal_available") == 0
    assert gateway.applies == []
    assert node.journal.state.retired == frozenset()
    assert outcomes(await node.apply(node.apply_request(OP, plan, 0))) == {0: ACCEPTED}
    assert len(gateway.applies) == 1
    assert node.registry.get_sample_value("motor_ft_journal_available") == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"instruction": 0}, "instruction"),
        ({"dp_ranks": []}, "dp_ranks"),
        ({"dp_ranks": [1]}, "dp_ranks"),
        ({"removed_dp_ranks": []}, "removed_dp_ranks"),
        ({"dp_master_ip": ""}, "dp_master_ip"),
        ({"dp_store_port": 65536}, "dp_store_port"),
        ({"plan_hash": ""}, "plan_hash"),
    ],
)
async def test_a_malformed_apply_names_its_field(node: Node, change: dict[str, object], field: str) -> None:
    plan = await guarded(node)
    fields: dict[str, object] = {
        descriptor.name: value for descriptor, value in node.apply_request(OP, plan, 0).ListFields()
    }
    request = node_manager_pb2.ApplyRequest(**(fields | change))  # type: ignore[arg-type]
    expected = Reason.PLAN_MISMATCH if field == "plan_hash" else Reason.INVALID_REQUEST
    with pytest.raises(FtError) as caught:
        await node.apply(request)
    assert caught.value.reason is expected
    if expected is Reason.INVALID_REQUEST:
        assert caught.value.message.startswith(f"{field}: ")


async def test_a_repeat_gets_the_first_answer_and_tells_nobody(node: Node, gateway: ScriptedGateway) -> None:
    plan = await guarded(node)
    request = node.apply_request(OP, plan, 0)
    first = await node.apply(request)
    gateway.outcome = REFUSED
    assert await node.apply(request) == first
    node.clock.ahead += 60
    assert await node.apply(request) == first, "also when the guard is over"
    assert len(gateway.applies) == 1


async def test_a_repeat_waits_for_the_first_call(node: Node, gateway: ScriptedGateway) -> None:
    plan = await guarded(node)
    request = node.apply_request(OP, plan, 0)
    gateway.answer.clear()
    first = asyncio.create_task(node.apply(request))
    await gateway.applied.wait()
    second = asyncio.create_task(node.apply(request))
    gateway.answer.set()
    assert await first == await second
    assert len(gateway.applies) == 1


async def test_the_same_id_with_another_payload_is_refused(node: Node, gateway: ScriptedGateway) -> None:
    plan = await guarded(node)
    await node.apply(node.apply_request(OP, plan, 0))
    with refuses(Reason.REQUEST_ID_REUSED):
        await node.apply(node.apply_request(OP, plan, 0, port=31234))
    assert len(gateway.applies) == 1


async def test_an_engine_that_was_replaced_is_not_told(node: Node, gateway: ScriptedGateway) -> None:
    """Engine restarted behind our back: the plan meant another process."""
    plan = await guarded(node)
    engines = {0: replace(node.state.engines[0], incarnation="another"), 1: node.state.engines[1]}
    await node.journal.update(lambda state: replace(state, engines=engines))
    response = await node.apply(node.apply_request(OP, plan, 0))
    assert outcomes(response) == {0: NOT_SENT}
    assert "another" in response.outcomes[0].detail
    assert gateway.applies == []


async def test_nothing_is_sent_for_a_former_leader_whose_apply_waits_behind_the_welcome_of_the_next(
    node: Node, gateway: ScriptedGateway
) -> None:
    plan = await guarded(node)
    order = ApplyOrder(Instruction.SCALE_DOWN, (0,), plan.removed, "127.0.0.1", None, plan.plan_hash)
    async with asyncio.TaskGroup() as group:
        group.create_task(node.join(epoch=EPOCH + 1))
        applying = group.create_task(_refused(node.service.apply(OP, order)))
        finalizing = group.create_task(_refused(node.service.finalize(OP, commit=True, retired=(1,))))
        guarding = group.create_task(_refused(node.service.guard(OP, 60.0, plan)))
    assert {task.result() for task in (applying, finalizing, guarding)} == {Reason.STALE_EPOCH}
    assert gateway.applies == []
    assert not node.state.retired


async def test_two_surfaces_at_the_same_time_tell_an_engine_once(node: Node, gateway: ScriptedGateway) -> None:
    """gRPC and REST remember first answers apart: the intent on disk is what they share."""
    plan = await guarded(node)
    order = ApplyOrder(Instruction.SCALE_DOWN, (0,), plan.removed, "127.0.0.1", None, plan.plan_hash)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(node.service.apply(OP, order))
        second = group.create_task(_refused(node.service.apply(OP, order)))
    assert second.result() is Reason.REQUEST_ID_REUSED
    assert await node.service.apply(OP, order) == first.result(), "later the first answer comes again"
    assert len(gateway.applies) == 1


async def _refused(command: Awaitable[object]) -> Reason:
    with pytest.raises(FtError) as caught:
        await command
    return caught.value.reason


async def test_a_gateway_that_is_gone_leaves_the_outcome_unknown_for_ever(node: Node, gateway: ScriptedGateway) -> None:
    plan = await guarded(node)
    request = node.apply_request(OP, plan, 0)
    gateway.answer.clear()
    applying = asyncio.create_task(node.apply(request))
    await gateway.applied.wait()
    await node.gateway_down()
    assert outcomes(await applying) == {0: UNKNOWN}
    await node.gateway_up()
    assert outcomes(await node.apply(request)) == {0: UNKNOWN}
    assert len(gateway.applies) == 1


async def test_an_answer_survives_a_restart(tmp_path: Path, gateway: ScriptedGateway) -> None:
    node = Node(tmp_path, gateway, ranks=(0, 1), launched=())
    async with node.running():
        await node.join()
        request = node.apply_request(OP, await guarded(node), 0)
        first = await node.apply(request)
    async with node.running():
        assert await node.apply(request) == first
        with refuses(Reason.REQUEST_ID_REUSED):
            await node.apply(node.apply_request(OP, node.plan(), 0, port=31234))
    assert len(gateway.applies) == 1


async def test_a_caller_that_goes_away_does_not_stop_an_apply(node: Node, gateway: ScriptedGateway) -> None:
    plan = await guarded(node)
    request = node.apply_request(OP, plan, 0)
    gateway.answer.clear()
    applying = asyncio.create_task(node.apply(request))
    await gateway.applied.wait()
    applying.cancel()
    gateway.answer.set()
    assert outcomes(await node.apply(request)) == {0: ACCEPTED}
    assert len(gateway.applies) == 1


async def test_unfenced_apply_without_a_plan_derives_everything(node: Node, gateway: ScriptedGateway) -> None:
    """The RFC's own REST bodies, as the routes call them."""
    rest = Command(node.local.instance_id, "rest", None, None)
    await node.local.guard(rest, 30)
    first = await node.local.apply(rest, (0,), (1,), "127.0.0.1", None)
    assert await node.local.apply(rest, (0,), (1,), "127.0.0.1", None) == first
    (sent,) = gateway.applies
    assert (sent.dp_store_port, sent.header.controller_epoch) == (BASE_PORT, EPOCH)
    await node.local.finalize(rest, True, (1,))
    await node.local.finalize(rest, True, (1,))
    assert node.state.retired == {1}


async def test_unfenced_commands_lose_to_a_live_fenced_guard(node: Node, gateway: ScriptedGateway) -> None:
    await guarded(node)
    for request_id in ("rest", OP.request_id):
        rest = replace(OP, request_id=request_id, epoch=None, generation=None)
        with refuses(Reason.GUARD_HELD):
            await node.local.guard(rest, 30)
        with pytest.raises(FtError):
            await node.local.apply(rest, (0,), (1,), "127.0.0.1", None)
        with pytest.raises(FtError):
            await node.local.finalize(rest, False, ())
    assert node.state.guard is not None
    assert node.state.guard.holder == OP
    assert gateway.applies == []


async def test_the_guard_of_the_controller_displaces_an_unfenced_one_and_says_so(
    node: Node, gateway: ScriptedGateway
) -> None:
    rest = Command(node.local.instance_id, "rest", None, None)
    await node.local.guard(rest, 3600)
    with capture_logs() as logs:
        plan = await guarded(node)
    (said,) = (entry for entry in logs if entry["log_level"] == "warning")
    assert (said["displaced"], said["by"]) == ("rest", OP.request_id)
    with refuses(Reason.STALE_REQUEST_ID):
        await node.local.apply(rest, (0,), (1,), "127.0.0.1", None)
    with refuses(Reason.STALE_REQUEST_ID):
        await node.local.finalize(rest, False, ())
    await node.apply(node.apply_request(OP, plan, 0))
    assert [sent.header.request_id for sent in gateway.applies] == [OP.request_id]
