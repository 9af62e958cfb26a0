"""Withdraw, stop every pod, wait for the replacement (recovery.md section 8)."""

import asyncio
from dataclasses import replace

import pytest

from controller.core.decision import Action
from controller.core.errors import FailureCode
from controller.core.outcome import Outcome
from controller.core.phases import Phase
from controller.core.ports import Strategy, StrategyResult
from controller.core.transaction import Spec
from controller.fault_manager.runtime import FtRuntime
from controller.store.memory import MemoryStore
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.tasks import Tasks
from tests.support.world.adapters import Trouble
from tests.support.world.case import bare_case
from tests.support.world.pods import TWO_PODS, FakePod
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

GIVE_UP = SETTINGS.heartbeat_ttl + SETTINGS.limits.lease
POLL = SETTINGS.limits.poll_interval


class Rebuild:
    """One reconfiguration of the instance of a world, run by the test instead of the actor."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.replaced = asyncio.Event()
        self.tasks = Tasks("test")

    async def strategy(self) -> Strategy:
        stored = await self.world.store.runtime(1)
        assert stored is not None
        self.runtime = FtRuntime(1, stored, self.world.store, lambda: None, patience_sec=5)
        spec = Spec(
            instance_id=1,
            request_id="rebuild",
            generation=stored.record.generation + 1,
            previous_phase=stored.record.phase,
            pods=tuple(pod.registration for pod in self.world.pods.values()),
            original=frozenset(range(4)),
            dead_committed=frozenset(),
            candidates={},
            unhealthy_since={},
            scale_down_enabled=True,
            recovery_timeout=120.0,
        )
        case = bare_case(spec, self.runtime, self.replaced.wait)
        return self.world.controller.strategies[Action.INSTANCE_RECONFIGURATION](case)

    async def run(self) -> asyncio.Task[StrategyResult]:
        return self.tasks.spawn("rebuild", (await self.strategy()).execute())


def stops(pod: FakePod) -> int:
    return sum(method == "stop" for method, _ in pod.calls)


async def test_every_pod_is_stopped_at_once_and_a_ready_replacement_ends_it() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        rebuild = Rebuild(world)
        begun = world.clock.now()
        task = await rebuild.run()
        await world.until(lambda: len(world.stops) == 2)
        assert world.clock.now() - begun < 1
        assert not task.done()
        rebuild.replaced.set()
        assert await task == StrategyResult(Outcome.SUCCEEDED)
        assert rebuild.runtime.record.phase is Phase.RECONFIGURING
        assert rebuild.runtime.record.generation == 2
        assert {(command.request_id, command.generation) for _, command, _ in world.stops} == {("rebuild", 2)}
        assert sorted(world.controller.nodes.forgotten) == sorted(world.pods)


async def test_a_stop_without_an_answer_is_repeated_until_it_has_one() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        world.pod(2).silent = True
        rebuild = Rebuild(world)
        task = await rebuild.run()
        await world.until(lambda: stops(world.pod(2)) == 3)
        world.pod(2).silent = False
        await world.until(lambda: len(world.stops) == 2)
        assert stops(world.pod(1)) == 1
        rebuild.replaced.set()
        assert (await task).outcome is Outcome.SUCCEEDED


async def test_a_pod_that_stays_silent_for_ttl_and_lease_counts_as_gone() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        world.pod(2).silent = True
        rebuild = Rebuild(world)
        rebuild.replaced.set()
        begun = world.clock.now()
        result = await (await rebuild.run())
        waited = world.clock.now() - begun
        assert result.outcome is Outcome.SUCCEEDED
        assert GIVE_UP <= waited <= GIVE_UP + SETTINGS.limits.request_timeout + POLL


async def test_a_pod_that_is_in_another_instance_by_now_counts_as_stopped() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        world.pod(2).refuses["stop"] = FtError(Reason.UNKNOWN_INSTANCE, "this pod belongs to instance 2")
        rebuild = Rebuild(world)
        rebuild.replaced.set()
        assert (await (await rebuild.run())).outcome is Outcome.SUCCEEDED
        assert stops(world.pod(2)) == 1


async def test_a_pod_that_refuses_all_the_time_fails_the_reconfiguration() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        world.pod(2).refuses["stop"] = FtError(Reason.PERMISSION_DENIED, "not you")
        rebuild = Rebuild(world)
        rebuild.replaced.set()
        result = await (await rebuild.run())
        assert result.outcome is Outcome.FAILED
        assert str(result.failure) == (
            "RECONFIGURATION_FAILED: not stopped: 10.0.0.2:9000 says PERMISSION_DENIED: not you"
        )
        assert [address for address, _, _ in world.stops] == ["10.0.0.1:9000"]


async def test_a_pod_that_refuses_an_old_epoch_is_stopped_with_the_next() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        pod = world.pod(2)
        pod.state = replace(pod.state, fence=pod.state.fence.note(1, 9, 1))
        rebuild = Rebuild(world)
        task = await rebuild.run()
        await world.until(lambda: stops(pod) == 2)
        await pod.disconnect()
        await pod.connect()
        await world.until(lambda: len(world.stops) == 2)
        rebuild.replaced.set()
        assert (await task).outcome is Outcome.SUCCEEDED


async def test_without_a_replacement_it_fails_exactly_at_the_assembly_timeout() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        begun = world.clock.now()
        result = await (await Rebuild(world).run())
        assert world.clock.now() - begun == pytest.approx(SETTINGS.assemble_timeout)
        assert result.failure is not None
        assert result.failure.code is FailureCode.RECONFIGURATION_FAILED


async def test_nothing_is_stopped_before_the_phase_is_durable() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        rebuild = Rebuild(world)
        strategy = await rebuild.strategy()
        world.store.down = True
        task = rebuild.tasks.spawn("rebuild", strategy.execute())
        await asyncio.sleep(30)
        assert world.calls("stop") == []
        assert rebuild.runtime.volatile.withdrawn, "it is out of the projection meanwhile"
        world.store.down = False
        rebuild.replaced.set()
        assert (await task).outcome is Outcome.SUCCEEDED


async def test_a_phase_whose_answer_was_lost_takes_one_generation() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        world.store.script[Phase.RECONFIGURING] = Trouble.ANSWER_LOST
        rebuild = Rebuild(world)
        strategy = await rebuild.strategy()
        world.store.reads_fail = True
        task = rebuild.tasks.spawn("rebuild", strategy.execute())
        await asyncio.sleep(3 * POLL)
        world.store.reads_fail = False
        rebuild.replaced.set()
        await task
        assert rebuild.runtime.record.generation == 2


async def test_a_controller_that_does_not_lead_stops_nobody() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        strategy = await Rebuild(world).strategy()
        await MemoryStore(world.shelf).lead()
        with pytest.raises(FtError) as ended:
            await strategy.execute()
        assert ended.value.reason is Reason.NOT_LEADER
        assert world.calls("stop") == []


async def test_a_coordinator_that_is_away_delays_no_stop() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        world.coordinator.up.clear()
        rebuild = Rebuild(world)
        task = await rebuild.run()
        await world.until(lambda: len(world.stops) == 2)
        assert world.controller.publisher.waiting == 1
        rebuild.replaced.set()
        assert (await task).outcome is Outcome.SUCCEEDED


async def test_it_is_never_cut_short() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        rebuild = Rebuild(world)
        strategy = await rebuild.strategy()
        strategy.stop("every DEAD rank is back")
        rebuild.replaced.set()
        assert (await strategy.execute()).outcome is Outcome.SUCCEEDED
        assert len(world.stops) == 2
