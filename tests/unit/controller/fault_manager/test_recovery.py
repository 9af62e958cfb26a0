"""From evidence to an instance that serves again, or to its reconfiguration (recovery.md sections 4 and 5)."""

import asyncio
from dataclasses import replace

import pytest

from controller.core.errors import Failure, FailureCode
from controller.core.phases import Phase
from controller.core.ports import Stored
from controller.core.records import RuntimeRecord
from controller.core.status import InstanceState
from controller.fault_manager.runtime import FtRuntime
from controller.store.memory import MemoryStore
from motor_ft.model.engine import EngineStatus
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import EndpointStatus
from tests.support.world.adapters import Trouble
from tests.support.world.pods import CAPABILITY, TWO_PODS, D, H, U, registration
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

SCALED_DOWN = ("dp_scale_down", "succeeded")
RECONFIGURED = ("instance_reconfiguration", "succeeded")
REFUSED = FtError(Reason.GUARD_HELD, "somebody else holds the guard")


async def scaled_down(world: World, *dead: int) -> None:
    """The survivors of ``dead`` serve."""
    await world.until(lambda: world.status().dead_committed == dead and world.can_serve())


async def replaced(world: World) -> None:
    """Instance 1 was reconfigured, and instance 2 serves in its place."""
    await world.until(lambda: world.can_serve(2))
    await world.until(lambda: world.status().state is InstanceState.DELETED)


async def test_a_dead_rank_goes_and_the_survivors_serve_after_one_apply() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(1)
        await scaled_down(world, 1)
        status = world.status()
        assert status.phase is Phase.SCALED_DOWN_RUNNING
        assert status.alive_dp_ranks == (0, 2, 3)
        assert (status.pending_removed_ranks, status.last_error) == ((), "")
        assert status.generation == 2
        assert world.coordinator.ranks() == {0, 2, 3}
        assert world.applies() == {rank: [(status.request_id, (1,))] for rank in (0, 2, 3)}
        assert world.store.written[-1].dead_committed == (1,)
        assert world.observed.strategies == [SCALED_DOWN]
        assert world.stops == []


async def test_a_recovery_passes_the_phases_in_order_and_names_every_stage() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(1)
        await scaled_down(world, 1)
        assert world.observed.phases[1] == [
            Phase.NORMAL,
            Phase.DECIDING,
            Phase.SCALING_DOWN,
            Phase.POST_SCALE_CLEANUP,
            Phase.SCALED_DOWN_RUNNING,
        ]
        assert "published" in world.observed.stages


async def test_the_second_round_removes_cumulatively_and_never_brings_a_dead_rank_back() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(0)
        await scaled_down(world, 0)
        before = len(world.coordinator.sent)
        await world.lose(2, among=(1, 2, 3))
        await scaled_down(world, 0, 2)
        assert [removed for _, removed in world.engine(1).applies] == [(0,), (0, 2)]
        assert all(0 not in ranks for _, _, ranks in world.coordinator.sent[before:])
        assert world.coordinator.ranks() == {1, 3}


async def test_several_dead_ranks_go_with_one_apply() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(0, 3)
        await scaled_down(world, 0, 3)
        assert {rank: [removed for _, removed in told] for rank, told in world.applies().items()} == {
            1: [(0, 3)],
            2: [(0, 3)],
        }


async def test_a_pod_that_lost_all_its_ranks_stays_and_its_empty_heartbeat_is_accepted() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(2, 3)
        await scaled_down(world, 2, 3)
        await asyncio.sleep(3 * SETTINGS.heartbeat_interval)
        assert world.pod(2).endpoint_states() == ()
        assert world.pod(2).rejected == []
        assert world.stops == []
        assert world.status().state is InstanceState.ACTIVE


async def test_all_ranks_dead_are_reconfigured_at_once() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(0, 1, 2, 3)
        await replaced(world)
        assert world.applies() == {}
        assert world.observed.strategies == [RECONFIGURED]


@pytest.mark.parametrize(
    ("dead", "unhealthy"),
    [
        pytest.param([], [0, 1, 2, 3], id="nobody-is-dead"),
        pytest.param([1], [0, 2], id="one-survivor-has-not-noticed"),
        pytest.param([1], [], id="all-survivors-are-idle"),
    ],
)
async def test_an_incomplete_collection_is_over_exactly_at_its_deadline(dead: list[int], unhealthy: list[int]) -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        begun = world.clock.now()
        for rank in dead:
            await world.see(rank, D)
        for rank in unhealthy:
            await world.see(rank, U)
        await asyncio.sleep(SETTINGS.fault_collection_timeout / 2)
        await world.see(1, D if dead else U)  # evidence that comes again does not extend it
        await asyncio.sleep(begun + SETTINGS.fault_collection_timeout - 0.001 - world.clock.now())
        assert world.controller.started == []
        assert world.status().phase is Phase.NORMAL
        assert world.coordinator.ranks() == {0, 1, 2, 3}
        await asyncio.sleep(0.002)
        assert world.controller.started == ["instance_reconfiguration"]
        await replaced(world)
        assert world.applies() == {}


async def test_a_fault_that_clears_while_it_is_collected_starts_nothing() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.see(1, D)
        await world.see(0, U)
        await world.see(1, H)
        await world.see(0, H)
        await asyncio.sleep(2 * SETTINGS.fault_collection_timeout)
        assert world.controller.started == []
        assert world.can_serve()


async def test_a_fault_that_returns_opens_a_new_collection() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.see(1, D)
        await asyncio.sleep(SETTINGS.fault_collection_timeout - 1)
        await world.see(1, H)
        await world.see(1, D)
        await asyncio.sleep(SETTINGS.fault_collection_timeout - 1)
        assert world.controller.started == []


async def test_healing_while_survivors_are_awaited_returns_to_the_phase_before() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(1)
        world.engine(3).status = H  # the Controller has seen it UNHEALTHY, the transaction does not any more
        await world.until(lambda: world.status().phase is Phase.WAITING_ENGINE_FAULT)
        for rank in range(4):
            await world.see(rank, H)
        await world.until(lambda: world.status().phase is Phase.NORMAL)
        assert world.observed.strategies == [("dp_scale_down", "cancelled")]
        assert [pod.state.guard for pod in world.pods.values()] == [None, None]
        assert world.can_serve()
        assert all(event != "del" for event, _, _ in world.coordinator.sent)
        assert world.applies() == {}


async def test_what_is_left_after_a_transaction_is_collected_anew() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(1)
        world.engine(3).status = H
        await asyncio.sleep(20)
        await world.see(1, H)
        await world.until(lambda: world.observed.strategies == [("dp_scale_down", "cancelled")])
        ended = world.clock.now()
        await asyncio.sleep(SETTINGS.fault_collection_timeout - 1)
        assert world.controller.started == ["dp_scale_down"]
        await asyncio.sleep(ended + SETTINGS.fault_collection_timeout + 1 - world.clock.now())
        assert world.controller.started == ["dp_scale_down", "instance_reconfiguration"]


async def test_healing_after_the_withdrawal_publishes_again() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.coordinator.up.clear()
        await world.lose(1)
        await world.until(lambda: world.controller.publisher.waiting)
        await world.see(1, H)
        world.coordinator.up.set()
        await world.until(lambda: world.observed.strategies == [("dp_scale_down", "cancelled")])
        assert world.status().phase is Phase.NORMAL
        assert world.can_serve()
        assert world.coordinator.ranks() == {0, 1, 2, 3}
        assert world.applies() == {}


async def test_one_of_two_dead_ranks_that_comes_back_is_not_removed() -> None:
    """DEAD is the only authority to remove a rank: the transaction ends, and the rest is judged anew."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(1, 2)
        world.engine(3).status = H
        await world.until(lambda: world.status().phase is Phase.WAITING_ENGINE_FAULT)
        await world.see(2, U)
        await world.see(3, U)
        await scaled_down(world, 1)
        assert world.observed.strategies == [("dp_scale_down", "cancelled"), SCALED_DOWN]
        assert {removed for told in world.applies().values() for _, removed in told} == {(1,)}


async def test_an_unreachable_rank_that_answers_unhealthy_is_a_survivor() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        for rank in (0, 2, 3):
            await world.see(rank, U)
        await world.see(1, EngineStatus.UNKNOWN)
        world.engine(1).status = U
        await world.until(lambda: world.observed.strategies == [("dp_scale_down", "cancelled")])
        assert world.status().engine_statuses[1] is U
        assert "none is DEAD" in world.status().last_decision
        assert world.applies() == {}


async def test_a_refused_guard_leads_to_reconfiguration_and_no_second_attempt() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.pod(2).refuses["guard"] = REFUSED
        await world.lose(1)
        await replaced(world)
        assert world.controller.started == ["dp_scale_down", "instance_reconfiguration"]
        assert world.observed.strategies == [("dp_scale_down", "failed"), RECONFIGURED]
        assert world.applies() == {}
        assert {address for address, _, _ in world.stops} == set(world.pods)


async def test_a_failure_after_apply_leads_to_reconfiguration_and_never_to_a_second_apply() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        engine = world.engine(3)
        engine.recovers = False
        await world.lose(1)
        await replaced(world)
        assert len(engine.applies) == 1
        assert world.applies() == {}  # the engines of the new instance
        assert world.observed.phases[1][-2:] == [Phase.SCALING_DOWN, Phase.RECONFIGURING]
        assert all(reason.startswith("RECOVERY_TIMEOUT: ") for _, _, reason in world.stops)


async def test_a_gate_reason_is_shown_and_falls_back() -> None:
    pods = [replace(pod, capability=replace(CAPABILITY, external_lb=False)) for pod in TWO_PODS]
    async with World(*pods) as world:
        await world.serve()
        await world.lose(1)
        await replaced(world)
        gate = world.status().gate
        assert gate is not None
        assert gate.reasons == ("EXTERNAL_LB_REQUIRED",)
        assert world.calls("guard") == []


async def test_an_instance_that_is_reconfigured_is_out_of_the_view_before_anything_is_stopped() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        views: list[set[int]] = []
        for pod in world.pods.values():

            async def look() -> None:
                views.append(set(world.coordinator.ranks()))
                assert world.store.written[-1].phase is Phase.RECONFIGURING

            pod.hold["stop"] = look
        await world.lose(0, 1, 2, 3)
        await world.until(lambda: len(views) == 2)
        assert not world.can_serve()
        assert world.status().phase is Phase.RECONFIGURING


async def test_a_reconfiguration_without_replacement_stops_automation_and_alerts() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        await world.lose(0, 1, 2, 3)
        await world.until(lambda: world.status().automation_stopped)
        assert world.status().last_error.startswith("RECONFIGURATION_FAILED: no replacement")
        assert world.observed.stopped == [1]
        await asyncio.sleep(10 * SETTINGS.strategy_center_check_interval)
        assert world.controller.started == ["instance_reconfiguration"]


async def unpublished(world: World) -> None:
    """Rank 1 was removed while the Coordinator was away."""
    await world.serve()

    async def cut() -> None:
        world.coordinator.up.clear()

    world.pod(1).hold["commit"] = cut
    await world.lose(1)
    await world.until(lambda: world.status().last_error.startswith("PUBLISH_PENDING"))


async def test_a_publication_that_fails_after_the_commit_converges() -> None:
    async with World(*TWO_PODS) as world:
        await unpublished(world)
        status = world.status()
        assert status.phase is Phase.SCALED_DOWN_RUNNING
        assert status.dead_committed == (1,)
        assert not status.serving_published
        assert not status.can_serve
        watch = aiter(world.controller.board.subscribe(10))
        world.coordinator.up.set()
        world.controller.publisher.kick()
        changed = await anext(watch)
        assert (changed.can_serve, changed.last_error) == (True, ""), "one change, nothing in between is seen"
        assert world.coordinator.ranks() == {0, 2, 3}


async def test_a_publication_of_an_instance_that_rests_is_pending_no_more_when_it_is_held() -> None:
    """Nobody is routed to it before it is ACTIVE again, but the Coordinators know all that there is to know."""
    async with World(*TWO_PODS) as world:
        await unpublished(world)
        world.pod(2).normal[3] = EndpointStatus.ABNORMAL
        await world.until(lambda: world.status().state is InstanceState.INACTIVE)
        world.coordinator.up.set()
        world.controller.publisher.kick()
        assert not world.status().serving_published
        await world.until(lambda: world.status().last_error == "")


async def test_a_publication_that_is_confirmed_before_its_failure_is_told_is_not_pending() -> None:
    """Its time was over, and the SET that made up for it came a moment later: nothing would ever clear the error."""
    stored = Stored(RuntimeRecord(Phase.SCALED_DOWN_RUNNING, 2, (0, 1), (1,)), 1)
    runtime = FtRuntime(1, stored, MemoryStore(), lambda: None, patience_sec=1.0)
    runtime.published(held=True, paused=False)
    runtime.show(failure=Failure(FailureCode.PUBLISH_PENDING, "not confirmed in time"))
    assert runtime.volatile.last_error == ""
    runtime.published(held=False, paused=False)
    runtime.show(failure=Failure(FailureCode.PUBLISH_PENDING, "not confirmed in time"))
    assert runtime.volatile.last_error.startswith("PUBLISH_PENDING")


async def test_a_fault_during_a_transaction_is_judged_when_it_ends() -> None:
    """A rank that dies after apply: the first round fails or ends, and the death is not lost."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        committing = asyncio.Event()
        go_on = asyncio.Event()

        async def wait() -> None:
            committing.set()
            await go_on.wait()

        world.pod(1).hold["commit"] = wait
        await world.lose(1)
        await committing.wait()
        world.pod(1).hold.clear()
        await world.lose(2, among=(0, 2, 3))
        go_on.set()
        await scaled_down(world, 1, 2)
        assert [removed for _, removed in world.engine(0).applies] == [(1,), (1, 2)]


async def test_a_process_exit_is_not_cancelled_by_a_healthy_reading() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.owner(1).exit(1)
        await world.see(1, H)
        for rank in (0, 2, 3):
            await world.see(rank, U)
        await scaled_down(world, 1)


async def test_an_engine_that_was_restarted_behind_our_back_is_dead() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        pod = world.pod(1)
        pod.engines[1].incarnation = "engine-1#again"
        await pod.tell(pod.snapshot())
        for rank in (0, 2, 3):
            await world.see(rank, U)
        await scaled_down(world, 1)


async def test_a_stronger_source_of_a_death_reaches_the_transaction() -> None:
    """A rank that was only unreachable would be asked once more; one whose process has ended is not."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(among=(0, 2, 3))
        world.engine(3).status = H
        await world.see(1, EngineStatus.UNKNOWN)
        await world.until(lambda: world.status().phase is Phase.WAITING_ENGINE_FAULT)
        await world.owner(1).exit(1)
        world.engine(1).status = H
        await world.see(3, U)
        await scaled_down(world, 1)


async def test_two_instances_that_fail_at_the_same_moment_recover_independently() -> None:
    first = [registration(number, [number - 1], job="job-1", dp_size=2) for number in (1, 2)]
    second = [registration(number, [number - 3], job="job-2", dp_size=2) for number in (3, 4)]
    async with World(*first, *second) as world:
        await world.serve()
        await world.until(lambda: world.can_serve(2))
        world.pod(3).refuses["guard"] = REFUSED
        for number in (1, 2, 3, 4):
            await world.pod(number).see((number - 1) % 2, D if number in (1, 4) else U)
        await scaled_down(world, 0)
        await world.until(lambda: world.can_serve(3))
        assert world.observed.strategies.count(SCALED_DOWN) == 1
        assert world.status(3).job_name == "job-2"
        assert {address for address, _, _ in world.stops} == {"10.0.0.3:9000", "10.0.0.4:9000"}


async def test_a_failed_scale_down_is_withdrawn_before_its_new_phase_is_written() -> None:
    """A SET between the write and its answer publishes nothing that is being rebuilt."""
    pods = [replace(pod, capability=replace(CAPABILITY, eplb=False)) for pod in TWO_PODS]
    async with World(*pods) as world:
        await world.serve()
        world.store.script[Phase.RECONFIGURING] = Trouble.ANSWER_LOST
        world.store.reads_fail = True
        await world.lose(1)
        await world.until(lambda: world.observed.strategies == [("dp_scale_down", "failed")])
        world.controller.publisher.kick()
        assert world.coordinator.ranks() == set()
        assert world.status().phase is Phase.DECIDING, "the answer is not there yet"
        world.store.reads_fail = False
        await world.until(lambda: world.can_serve(2))
