"""Guard over gRPC: one holder, and what comes with a plan."""

import socket
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from motor_ft.model.command import freeze_plan
from motor_ft.model.errors import FtError, Reason
from tests.integration.nodemanager.gateway import ScriptedGateway
from tests.integration.nodemanager.node import EPOCH, INSTANCE, Node, command
from tests.support.ports import bindable
from tests.support.waiting import until


def refuses(reason: Reason) -> pytest.RaisesExc[FtError]:
    return pytest.RaisesExc(FtError, check=lambda error: error.reason is reason)


async def test_same_id_renews_other_id_is_refused_while_live_and_allowed_after_expiry(node: Node) -> None:
    a, b = command("a"), command("b")
    await node.guard(a, 10)
    await node.guard(a, 20)
    with refuses(Reason.GUARD_HELD) as caught:
        await node.guard(b)
    assert caught.value.metadata["holder"] == "a"
    assert float(caught.value.metadata["remaining"]) == pytest.approx(20, abs=5)
    node.clock.ahead += 20
    await node.guard(b)


@pytest.mark.parametrize("lease", [0, -1, 3601, None])
async def test_a_bad_lease_is_a_clear_error(node: Node, lease: float | None) -> None:
    with refuses(Reason.INVALID_REQUEST) as caught:
        await node.guard(command(), lease)
    assert caught.value.message.startswith("lease: ")
    assert node.state.guard is None


async def test_what_was_superseded_is_refused_before_anything_else(node: Node) -> None:
    await node.guard(command("a", generation=3))
    with refuses(Reason.STALE_EPOCH):
        await node.guard(command("a", generation=9, epoch=EPOCH - 1))
    with refuses(Reason.STALE_GENERATION):
        await node.guard(command("a", generation=2))
    with refuses(Reason.UNKNOWN_INSTANCE):
        await node.guard(replace(command("a", generation=3), instance_id=INSTANCE + 1))


async def test_guard_epoch_and_generation_survive_a_restart(tmp_path: Path, gateway: ScriptedGateway) -> None:
    node = Node(tmp_path, gateway, ranks=(0, 1), launched=())
    async with node.running():
        await node.join()
        await node.guard(command("a", generation=3, epoch=EPOCH + 1))
    async with node.running():
        with refuses(Reason.GUARD_HELD):
            await node.guard(command("b", generation=4, epoch=EPOCH + 1))
        with refuses(Reason.STALE_EPOCH):
            await node.guard(command("a", generation=3))
        with refuses(Reason.STALE_GENERATION):
            await node.guard(command("a", generation=2, epoch=EPOCH + 1))
        await node.guard(command("a", generation=3, epoch=EPOCH + 1))


async def test_with_the_feature_off_nothing_is_served(node: Node) -> None:
    await node.join(on=False)
    by, plan = command(), node.plan()
    with refuses(Reason.FEATURE_DISABLED):
        await node.guard(by)
    with refuses(Reason.FEATURE_DISABLED):
        await node.status(by, 0)
    with refuses(Reason.FEATURE_DISABLED):
        await node.apply(node.apply_request(by, plan, 0))
    with refuses(Reason.FEATURE_DISABLED):
        await node.finalize(by)


async def test_the_node_of_the_lowest_survivor_keeps_the_store_port_free_and_names_it_again(node: Node) -> None:
    plan = node.plan()
    assert not (await node.guard(command())).HasField("dp_store_port")
    answers = [
        await node.guard(command(), plan=plan),
        await node.guard(command(), plan=plan),
        await node.guard(command()),
    ]
    assert {answer.dp_store_port for answer in answers} == {node.first_port}
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", node.first_port))
    await node.finalize(command(), commit=False)
    with socket.socket() as other:
        other.bind(("127.0.0.1", node.first_port))


async def test_the_store_port_is_free_again_when_the_lease_is_over_and_nobody_finalized(node: Node) -> None:
    await node.guard(command(), 0.2, plan=node.plan())
    await until(lambda: bindable("127.0.0.1", node.first_port))
    assert node.state.guard is not None


async def test_a_taken_range_is_named(node: Node) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", node.first_port))
        with refuses(Reason.PORT_UNAVAILABLE) as caught:
            await node.guard(command(), plan=node.plan())
    assert str(node.first_port) in caught.value.message


async def test_the_node_of_another_rank_reserves_nothing(tmp_path: Path, gateway: ScriptedGateway) -> None:
    async with Node(tmp_path, gateway, ranks=(1, 2), launched=()).running() as node:
        await node.join()
        assert not (await node.guard(command(), plan=node.plan())).HasField("dp_store_port")


async def test_a_plan_that_means_an_engine_that_was_replaced_is_refused(node: Node) -> None:
    plan = node.plan()
    other = freeze_plan(INSTANCE, 1, frozenset(plan.removed), {**dict(plan.survivors), 0: "before"})
    with refuses(Reason.ENGINE_IDENTITY_MISMATCH):
        await node.guard(command(), plan=other)
    assert node.state.guard is None


async def test_a_plan_that_means_an_engine_that_has_ended_is_refused(tmp_path: Path, gateway: ScriptedGateway) -> None:
    """Something else may answer at its address by now."""
    async with Node(tmp_path, gateway, ranks=(0, 1), launched=(0, 1)).running() as node:
        await node.join()
        plan = node.plan(removed=[2])
        node.kill_engine(1)
        await until(lambda: node.deaths)
        with refuses(Reason.ENGINE_IDENTITY_MISMATCH):
            await node.guard(command(), plan=plan)
        assert node.state.guard is None


async def test_a_plan_whose_hash_is_wrong_is_refused_and_nobody_is_killed(
    tmp_path: Path, gateway: ScriptedGateway
) -> None:
    async with Node(tmp_path, gateway, ranks=(0, 1), launched=(1,)).running() as node:
        await node.join()
        with refuses(Reason.PLAN_MISMATCH):
            await node.guard(command(), plan=replace(node.plan(), plan_hash="0" * 64))
        assert psutil.Process(node.state.engines[1].pid).status() != psutil.STATUS_ZOMBIE


async def test_the_owner_of_a_removed_rank_ends_what_is_left_of_it(tmp_path: Path, gateway: ScriptedGateway) -> None:
    async with Node(tmp_path, gateway, ranks=(0, 1), launched=(0, 1)).running() as node:
        await node.join()
        await node.guard(command())
        zero, one = (psutil.Process(node.state.engines[rank].pid) for rank in (0, 1))
        assert one.status() != psutil.STATUS_ZOMBIE
        await node.guard(command(), plan=node.plan())
        assert one.status() == psutil.STATUS_ZOMBIE
        assert zero.status() != psutil.STATUS_ZOMBIE
