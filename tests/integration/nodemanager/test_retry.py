"""Retry over gRPC: under a plan that removes nobody, once, to the engine that was meant (recovery.md section 8)."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from motor_ft.model.command import Command, ScaleDownPlan
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import common_pb2, node_manager_pb2
from motor_ft.wire.convert import command_to_header
from tests.integration.nodemanager.gateway import ScriptedGateway
from tests.integration.nodemanager.node import Node, command
from tests.integration.nodemanager.test_apply import ACCEPTED, NOT_SENT, UNKNOWN, outcomes
from tests.integration.nodemanager.test_guard import refuses
from tests.support.ports import bindable

OP = command()


def retry(plan: ScaleDownPlan, *ranks: int, by: Command = OP) -> node_manager_pb2.ApplyRequest:
    return node_manager_pb2.ApplyRequest(
        header=command_to_header(by),
        instruction=common_pb2.INSTRUCTION_RETRY,
        dp_ranks=ranks,
        plan_hash=plan.plan_hash,
    )


async def guarded(node: Node) -> ScaleDownPlan:
    """Everybody stays."""
    plan = node.plan(removed=())
    await node.guard(OP, plan=plan)
    return plan


async def test_the_engines_are_told_in_the_words_of_a_retry(node: Node, gateway: ScriptedGateway) -> None:
    plan = await guarded(node)
    assert outcomes(await node.apply(retry(plan, 0, 1))) == {0: ACCEPTED, 1: ACCEPTED}
    (sent,) = gateway.applies
    assert sent.header == command_to_header(OP)
    assert sent.instruction == common_pb2.INSTRUCTION_RETRY
    assert [(target.dp_rank, target.engine_incarnation) for target in sent.targets] == [
        (rank, node.incarnation(rank)) for rank in (0, 1)
    ]
    assert (list(sent.removed_dp_ranks), sent.dp_master_ip, sent.dp_store_port) == ([], "", 0)


async def test_its_plan_reserves_no_port(node: Node) -> None:
    """No store moves; rank 0, the lowest, is here."""
    grant = await node.guard(OP, plan=node.plan(removed=()))
    assert not grant.HasField("dp_store_port")
    assert bindable("127.0.0.1", node.first_port)


async def test_it_is_refused_without_exactly_this_plan(node: Node, gateway: ScriptedGateway) -> None:
    """The plan says which engines are meant; one that removes ranks is for something else."""
    nobody, somebody = node.plan(removed=()), node.plan(removed=(1,))
    with refuses(Reason.GUARD_REQUIRED):
        await node.apply(retry(nobody, 0))
    await node.guard(OP)
    for plan in (nobody, replace(nobody, plan_hash="")):
        with pytest.raises(FtError, match=r"PLAN_MISMATCH|plan_hash"):
            await node.apply(retry(plan, 0))
    await node.guard(OP, plan=somebody)
    with refuses(Reason.PLAN_MISMATCH):
        await node.apply(retry(somebody, 0))
    with refuses(Reason.PLAN_MISMATCH):
        await node.guard(OP, plan=nobody)
    assert gateway.applies == []


async def test_under_its_plan_nobody_is_removed(node: Node, gateway: ScriptedGateway) -> None:
    plan = await guarded(node)
    with refuses(Reason.PLAN_MISMATCH):
        await node.apply(node.apply_request(OP, replace(plan, removed=(1,)), 0))
    with refuses(Reason.PLAN_MISMATCH):
        await node.finalize(OP, commit=True, retired=(1,))
    assert gateway.applies == []
    assert not node.state.retired


async def test_a_rank_that_was_removed_is_not_told(node: Node, gateway: ScriptedGateway) -> None:
    await node.guard(OP, plan=node.plan())
    await node.finalize(OP, retired=(1,))
    later = command("later", generation=2)
    plan = node.plan(removed=(), generation=2)
    await node.guard(later, plan=plan)
    with refuses(Reason.UNKNOWN_RANK):
        await node.apply(retry(plan, 0, 1, by=later))
    assert gateway.applies == []


async def test_an_engine_that_was_replaced_is_not_told_the_others_are(node: Node, gateway: ScriptedGateway) -> None:
    plan = await guarded(node)
    engines = {0: replace(node.state.engines[0], incarnation="another"), 1: node.state.engines[1]}
    await node.journal.update(lambda state: replace(state, engines=engines))
    assert outcomes(await node.apply(retry(plan, 0, 1))) == {0: NOT_SENT, 1: ACCEPTED}
    assert [[target.dp_rank for target in sent.targets] for sent in gateway.applies] == [[1]]


async def test_a_repeat_gets_the_first_answer_and_tells_nobody(node: Node, gateway: ScriptedGateway) -> None:
    plan = await guarded(node)
    first = await node.apply(retry(plan, 0, 1))
    gateway.outcome = common_pb2.APPLY_OUTCOME_REFUSED
    assert await node.apply(retry(plan, 0, 1)) == first
    with refuses(Reason.REQUEST_ID_REUSED):
        await node.apply(retry(plan, 0))
    assert len(gateway.applies) == 1


async def test_what_was_not_answered_before_a_restart_is_unknown_and_never_sent_again(
    tmp_path: Path, gateway: ScriptedGateway
) -> None:
    node = Node(tmp_path, gateway, ranks=(0, 1), launched=())
    async with node.running():
        await node.join()
        plan = await guarded(node)
        gateway.answer.clear()
        asking = asyncio.create_task(node.apply(retry(plan, 0, 1)))
        await gateway.applied.wait()
        asking.cancel()
    gateway.answer.set()
    async with node.running():
        assert outcomes(await node.apply(retry(plan, 0, 1))) == {0: UNKNOWN, 1: UNKNOWN}
    assert len(gateway.applies) == 1


async def test_an_abort_gives_the_guard_back_and_retires_nobody(node: Node) -> None:
    plan = await guarded(node)
    await node.apply(retry(plan, 0, 1))
    answer = await node.finalize(OP, commit=False)
    assert (answer.committed, list(answer.retired_dp_ranks)) == (False, [])
    assert node.state.guard is None
    with refuses(Reason.STALE_REQUEST_ID):
        await node.guard(OP, plan=plan)
