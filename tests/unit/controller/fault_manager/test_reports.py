"""What reporters say, in whatever order and number, and what is believed (protocol.md section 2)."""

import asyncio
from dataclasses import replace

import pytest

from controller.core.phases import Phase
from controller.core.reports import Directive, EngineHealthy, Heartbeat, SoftwareFault
from controller.core.status import InstanceState
from controller.fault_manager.instance import InstanceActor
from motor_ft.model.engine import EngineObservation, EngineStatus
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import EndpointStatus
from tests.support.world.hardware import FakeAdapter, card, with_cards
from tests.support.world.pods import TWO_PODS, D, FakeEngine, FakePod, H, U, fault, registration
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime


def directives(pod: FakePod) -> list[tuple[bool | None, float | None]]:
    """(fast poll, freeze) of every directive that the pod got."""
    return [(said.fast_poll, said.freeze_suicide_sec) for said in pod.heard if isinstance(said, Directive)]


def by_rpc(rank: int, status: EngineStatus, *, instance_id: int | None = None, number: int = 1) -> SoftwareFault:
    return SoftwareFault(instance_id, f"10.0.0.{number}", 9000, rank, EngineObservation(rank, status))


def healthy(engine: FakeEngine) -> EngineHealthy:
    """A report that the engine, whatever it is in now, is healthy."""
    return EngineHealthy(replace(engine.read(), status=H))


async def test_a_duplicate_sequence_counts_as_delivered_and_changes_nothing() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.see(0, D)
        pod = world.pod(1)
        assert pod.attachment is not None
        await pod.attachment.deliver(2, healthy(pod.engines[0]))
        await asyncio.sleep(0.1)
        assert world.status().engine_statuses[0] is D


async def test_sequences_go_on_over_a_reconnect_of_the_same_start_and_begin_anew_with_the_next() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        pod = world.pod(1)
        await world.see(0, U)
        await pod.disconnect()
        again = await world.manager.attach(pod.hello(), pod.heard.append)
        await again.deliver(1, healthy(pod.engines[0]))
        await asyncio.sleep(0.1)
        assert world.status().engine_statuses[0] is U
        await pod.disconnect()
        pod.restart_node_manager()
        await pod.connect()
        await pod.see(0, H)
        await asyncio.sleep(0.1)
        assert world.status().engine_statuses[0] is H


async def test_a_newer_stream_replaces_an_older_one_whose_end_then_means_nothing() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        pod = world.pod(1)
        older = pod.attachment
        assert older is not None
        await pod.connect()
        with pytest.raises(FtError) as refused:
            await older.deliver(99, healthy(pod.engines[0]))
        assert refused.value.reason is Reason.STALE_INCARNATION
        older.detach()
        await asyncio.sleep(0.1)
        assert [pod.connected for pod in world.status().pods] == [True, True]


async def test_a_report_about_a_rank_of_another_pod_is_refused_and_changes_nothing() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        with pytest.raises(FtError) as refused:
            await world.pod(1).tell(fault(EngineObservation(2, D)))
        assert refused.value.reason is Reason.UNKNOWN_RANK
        await asyncio.sleep(0.1)
        assert world.status().engine_statuses[2] is H


async def test_a_heartbeat_with_a_missing_rank_is_refused_and_is_no_evidence() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        pod = world.pod(1)
        assert pod.attachment is not None
        with pytest.raises(FtError) as refused:
            await pod.attachment.deliver(0, Heartbeat(pod.endpoint_states()[:1]))
        assert refused.value.reason is Reason.TOPOLOGY_MISMATCH
        await asyncio.sleep(2 * SETTINGS.fault_collection_timeout)
        assert world.controller.started == []


async def test_a_rank_that_was_removed_can_say_what_it_wants() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(1)
        await world.until(lambda: world.status().dead_committed == (1,) and world.can_serve())
        for status in (H, U, D):
            await world.see(1, status)
        await world.pod(1).exit(1)
        await asyncio.sleep(2 * SETTINGS.fault_collection_timeout)
        assert 1 not in world.status().engine_statuses
        assert world.controller.started == ["dp_scale_down"]
        assert world.can_serve()


async def test_silent_pods_make_the_instance_inactive_at_the_ttl_and_remove_nobody() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        for pod in world.pods.values():
            await pod.beat()
            await pod.disconnect()
        heard = world.clock.now()
        await asyncio.sleep(heard + SETTINGS.heartbeat_ttl - 0.1 - world.clock.now())
        assert world.status().state is InstanceState.ACTIVE
        await asyncio.sleep(0.2)
        assert world.status().state is InstanceState.INACTIVE
        await asyncio.sleep(2 * SETTINGS.fault_collection_timeout)
        assert world.controller.started == []
        await world.connect()
        await world.until(lambda: world.status().state is InstanceState.ACTIVE)


async def test_a_reading_that_is_no_evidence_is_shown_and_starts_nothing() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        reading = replace(world.engine(1).read(), status=EngineStatus.DIAGNOSING)
        await world.pod(1).tell(replace(fault(reading), source=None))
        await asyncio.sleep(0.1)
        assert world.status().engine_statuses[1] is EngineStatus.DIAGNOSING
        assert world.status().last_decision.startswith("none: ")


async def test_a_storm_of_reports_is_decided_on_once_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = []
    step = InstanceActor._step  # noqa: SLF001 - counts the turns of the real one

    async def counted(actor: InstanceActor) -> float:
        steps.append(actor.instance_id)
        return await step(actor)

    async with World(*TWO_PODS) as world:
        await world.serve()
        monkeypatch.setattr(InstanceActor, "_step", counted)
        pod = world.pod(1)
        assert pod.attachment is not None
        revision = world.status().revision
        for sequence in range(100, 10_100):
            reading = pod.engines[0].read()
            status = (U, D, H)[sequence % 3]
            report = EngineHealthy(reading) if status is H else fault(replace(reading, status=status))
            await pod.attachment.deliver(sequence, report)
        await asyncio.sleep(0.5)
        assert len(steps) <= 3
        assert world.status().revision <= revision + 3
        assert len(asyncio.all_tasks()) < 10
        assert len(world.status().engine_statuses) == 4


async def test_pods_poll_fast_and_do_not_give_up_while_their_instance_is_under_suspicion() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        assert directives(world.pod(1)) == []
        await world.see(1, D)
        await asyncio.sleep(0.1)
        await world.see(0, U)
        await asyncio.sleep(0.1)
        suspicion = (True, SETTINGS.fault_collection_timeout)
        assert directives(world.pod(1)) == directives(world.pod(2)) == [suspicion]
        await world.pod(2).connect()
        await asyncio.sleep(0.1)
        assert directives(world.pod(2)) == [suspicion, suspicion], "a new stream begins at the normal pace"
        await world.see(1, H)
        await world.see(0, H)
        await asyncio.sleep(0.1)
        assert directives(world.pod(1)) == [suspicion, (False, 0.0)]


async def test_pods_are_left_alone_where_nothing_is_decided() -> None:
    settings = replace(SETTINGS, enable_dp_scale_down=False)
    async with World(*map(with_cards, TWO_PODS), settings=settings) as world:
        await world.serve()
        adapter = FakeAdapter(world)
        await adapter.connect()
        await adapter.tell(card(1, 1))
        await world.see(1, D)
        world.pod(1).normal[1] = EndpointStatus.ABNORMAL
        await asyncio.sleep(SETTINGS.fault_collection_timeout)
        assert world.controller.started == []
        assert directives(world.pod(1)) == []
        assert world.status().state is InstanceState.INACTIVE, "faults delay the baseline only where they are judged"


async def test_a_software_fault_over_the_rpc_is_evidence_like_any_other() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.manager.report_software_fault(by_rpc(1, D))
        for rank in (0, 2, 3):
            await world.see(rank, U)
        await world.until(lambda: world.status().dead_committed == (1,))


async def test_a_software_fault_over_the_rpc_is_withdrawn_by_healthy() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.manager.report_software_fault(by_rpc(1, D, instance_id=1))
        await world.manager.report_software_fault(by_rpc(1, H))
        await asyncio.sleep(2 * SETTINGS.fault_collection_timeout)
        assert world.controller.started == []


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (by_rpc(1, D, number=9), Reason.UNKNOWN_INSTANCE),
        (by_rpc(1, D, instance_id=2), Reason.UNKNOWN_INSTANCE),
        (by_rpc(2, D), Reason.UNKNOWN_RANK),
    ],
)
async def test_a_software_fault_of_nobody_is_refused(report: SoftwareFault, reason: Reason) -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        with pytest.raises(FtError) as refused:
            await world.manager.report_software_fault(report)
        assert refused.value.reason is reason


async def test_a_software_fault_of_a_rebuilt_pod_belongs_to_its_newest_instance() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        await world.lose(0, 1, 2, 3)
        await world.until(lambda: len(world.stops) == 2)
        for pod in world.pods.values():
            pod.boot()
        await world.pod(1).connect()
        await world.manager.report_software_fault(by_rpc(1, D))
        await world.until(lambda: world.controller.board.get(2))
        assert world.status(2).engine_statuses[1] is D


async def test_a_software_fault_reaches_a_restored_instance_whose_pods_are_not_back_yet() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.kill()
        await world.restart(connect=False)
        await world.manager.report_software_fault(by_rpc(1, D))
        await world.until(lambda: world.status().engine_statuses[1] is D)


async def test_the_epoch_is_raised_above_what_the_fleet_has_seen() -> None:
    async with World(*TWO_PODS) as world:
        pod = world.pod(1)
        pod.state = replace(pod.state, fence=pod.state.fence.note(0, 70, 1))
        await world.connect()
        assert world.manager.epoch == 71
        assert pod.state.fence.epoch == 71


async def test_an_epoch_that_the_fleet_has_seen_from_somebody_else_is_not_ours() -> None:
    async with World(*TWO_PODS) as world:
        pod = world.pod(1)
        pod.state = replace(pod.state, fence=pod.state.fence.note(0, world.manager.epoch, 1))
        await world.connect()
        assert world.manager.epoch == 2


async def test_a_pod_that_starts_again_does_not_raise_the_epoch() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        epoch = world.manager.epoch
        for _ in range(3):
            await world.pod(1).disconnect()
            world.pod(1).restart_node_manager()
            await world.pod(1).connect()
        assert world.manager.epoch == epoch


async def test_a_transaction_keeps_its_epoch_when_a_foreign_fleet_raises_ours() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        applying, go_on = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            applying.set()
            await go_on.wait()

        world.pod(1).hold["apply"] = wait
        await world.lose(1)
        await applying.wait()
        foreign = world.add(registration(5, [0], job="other", dp_size=1))
        foreign.state = replace(foreign.state, fence=foreign.state.fence.note(0, 70, 1))
        await foreign.connect()
        go_on.set()
        await world.until(lambda: world.status().dead_committed == (1,))
        assert world.observed.strategies == [("dp_scale_down", "succeeded")]


async def test_nobody_is_admitted_by_a_controller_that_shuts_down() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.manager.close()
        with pytest.raises(FtError) as refused:
            await world.pod(1).connect()
        assert refused.value.reason is Reason.SHUTTING_DOWN
        assert not world.manager.may_publish()


async def test_every_task_is_named_and_none_is_left_after_close() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.pod(2).silent = True
        await world.lose(1)
        await world.until(lambda: world.status().phase is Phase.DECIDING)
        ours = asyncio.all_tasks() - {asyncio.current_task()}
        assert all("/" in task.get_name() for task in ours), [task.get_name() for task in ours]
        await world.tasks.close()
        await world.manager.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_admission_that_meets_the_shutdown_leaves_no_actor_behind() -> None:
    async with World(*TWO_PODS) as world:
        admitted = asyncio.ensure_future(world.pod(1).connect())
        await world.manager.close()
        await asyncio.gather(admitted, return_exceptions=True)
        await world.tasks.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
