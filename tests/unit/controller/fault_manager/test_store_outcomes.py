"""Writes that fail, or of which nobody knows what became of them (recovery.md section 3, ports.Store)."""

import asyncio

import pytest

from controller.core.phases import IllegalMoveError, Phase
from controller.core.ports import Stored
from controller.core.records import RuntimeRecord
from controller.core.status import InstanceState
from controller.fault_manager.runtime import FtRuntime
from controller.store.memory import MemoryStore
from motor_ft.model.errors import FtError, Reason
from tests.support.world.adapters import Cord, ScriptedStore, Trouble
from tests.support.world.pods import TWO_PODS
from tests.support.world.world import World

pytestmark = pytest.mark.looptime

COMMITTED = [Phase.POST_SCALE_CLEANUP, Phase.SCALED_DOWN_RUNNING]


async def replaced(world: World) -> None:
    await world.until(lambda: world.can_serve(2))
    await world.until(lambda: world.status().state is InstanceState.DELETED)


@pytest.mark.parametrize("trouble", [Trouble.ANSWER_LOST, Trouble.NOT_WRITTEN])
@pytest.mark.parametrize("phase", [Phase.DECIDING, Phase.SCALING_DOWN, *COMMITTED])
async def test_a_transaction_outlives_one_write_that_is_lost(phase: Phase, trouble: Trouble) -> None:
    """Either its answer was lost, and what is read back counts, or it was not made, and is made after all."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.store.script[phase] = trouble
        await world.lose(1)
        await world.until(lambda: world.status().dead_committed == (1,) and world.can_serve())
        assert world.observed.strategies == [("dp_scale_down", "succeeded")]
        assert [len(told) for told in world.applies().values()] == [1, 1, 1]
        assert world.store.script == {}
        assert world.status().generation == 2


@pytest.mark.parametrize("phase", [Phase.DECIDING, Phase.SCALING_DOWN])
async def test_a_write_before_apply_that_cannot_be_made_ends_in_reconfiguration_without_apply(phase: Phase) -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.store.script[phase] = Trouble.NEVER_WRITTEN
        engines = [world.engine(rank) for rank in range(4)]
        await world.lose(1)
        await replaced(world)
        assert world.observed.strategies[0] == ("dp_scale_down", "failed")
        assert [engine.applies for engine in engines] == [[], [], [], []]
        assert all("PERSIST_FAILED" in reason for _, _, reason in world.stops)


@pytest.mark.parametrize("phase", COMMITTED)
async def test_a_write_after_the_commit_is_repeated_until_it_is_made(phase: Phase) -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.store.script[phase] = Trouble.NEVER_WRITTEN
        await world.lose(1)
        await asyncio.sleep(10 * world.settings.limits.request_timeout)
        assert not world.can_serve()
        del world.store.script[phase]
        await world.until(lambda: world.status().dead_committed == (1,) and world.can_serve())
        assert world.status().phase is Phase.SCALED_DOWN_RUNNING
        assert world.stops == []


async def test_no_transaction_begins_while_the_store_cannot_be_written() -> None:
    """It waits, says so, and begins as soon as the store can be written again."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.store.problem = "the disk is full"
        await world.lose(1)
        await world.until(lambda: world.status().last_decision.startswith("wait: dp_scale_down waits for the store"))
        assert world.status().degraded == ("the disk is full",)
        assert world.observed.degraded_by == {1: 1}
        assert "the store cannot be written: the disk is full" in world.manager.explain(1).blockers
        await asyncio.sleep(20)
        assert world.controller.started == []
        assert world.calls("guard") == []
        assert world.can_serve()
        world.store.problem = ""
        began = world.clock.now()
        world.manager.look_again()
        await world.until(lambda: world.controller.started == ["dp_scale_down"])
        assert world.clock.now() - began < 1, "long before it would have looked by itself"
        await world.until(lambda: world.status().dead_committed == (1,) and world.can_serve())
        assert world.status().degraded == ()
        assert world.observed.degraded_by == {1: 0}


async def test_a_store_that_is_away_stops_nobody_and_withdraws_until_it_is_back() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.store.down = True
        await world.lose(0, 1, 2, 3)
        await asyncio.sleep(30)
        assert world.stops == []
        assert world.manager.view(1) is None
        world.store.down = False
        await replaced(world)


async def test_while_the_store_never_answers_it_stays_withdrawn_and_the_next_controller_rebuilds_it_once() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.store.down, world.store.problem = True, "the disk is full"
        await world.lose(0, 1, 2, 3)
        await asyncio.sleep(5 * world.settings.assemble_timeout)
        world.controller.publisher.kick()
        assert world.coordinator.held == {}
        assert world.status().degraded == ("the disk is full",)
        assert world.controller.started == ["instance_reconfiguration"], "which goes on"
        assert (world.stops, world.observed.strategies, world.observed.stopped) == ([], [], [])
        await world.kill()
        await world.restart()
        await replaced(world)
        assert sorted(address for address, _, _ in world.stops) == sorted(world.pods)
        assert {command.generation for _, command, _ in world.stops} == {2}


async def test_a_record_that_somebody_else_took_over_ends_the_strategy_without_side_effects() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await MemoryStore(world.shelf).lead()
        before = world.calls()
        await world.lose(1)
        await asyncio.sleep(30)
        assert world.calls() == before
        assert world.controller.started == ["dp_scale_down"], "and it is not tried again and again"
        assert world.observed.strategies == []
        assert world.stops == []
        assert world.coordinator.ranks() == {0, 1, 2, 3}


async def test_leadership_that_is_lost_in_a_transaction_ends_it_without_another_command() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        committing, go_on = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            committing.set()
            await go_on.wait()

        world.pod(1).hold["commit"] = wait
        await world.lose(1)
        await committing.wait()
        await MemoryStore(world.shelf).lead()
        go_on.set()
        await asyncio.sleep(30)
        assert world.observed.strategies == []
        assert world.calls("abort", "stop") == []
        assert world.store.written[-1].phase is Phase.SCALING_DOWN


class Changes:
    """A runtime on a store, and how often it has said that it changed."""

    def __init__(self) -> None:
        self.count = 0
        self.store = ScriptedStore(MemoryStore(), Cord())

    def add(self) -> None:
        self.count += 1

    async def runtime(self) -> FtRuntime:
        await self.store.lead()
        record = RuntimeRecord(Phase.NORMAL, 1, (0, 1))
        stored = Stored(record, await self.store.save_runtime(7, record, 0))
        return FtRuntime(7, stored, self.store, self.add, patience_sec=5)


async def test_only_a_legal_move_is_written() -> None:
    changes = Changes()
    runtime = await changes.runtime()
    with pytest.raises(IllegalMoveError):
        await runtime.persist(Phase.POST_SCALE_CLEANUP)
    assert runtime.record.phase is Phase.NORMAL


async def test_a_write_that_changes_nothing_is_not_made() -> None:
    changes = Changes()
    runtime = await changes.runtime()
    await runtime.persist(Phase.NORMAL)
    assert (len(changes.store.written), changes.count) == (1, 0)


async def test_what_another_write_has_left_is_what_the_next_one_goes_on_from() -> None:
    """The answer was lost and nothing could be read back: the next attempt meets its own record."""
    changes = Changes()
    runtime = await changes.runtime()
    changes.store.script[Phase.DECIDING] = Trouble.ANSWER_LOST
    changes.store.reads_fail = True
    with pytest.raises(FtError) as failed:
        await runtime.persist(Phase.DECIDING, begins=True)
    assert failed.value.reason is Reason.STORE_UNAVAILABLE
    assert failed.value.message == "DECIDING of instance 7 is not stored after 5 s: the store does not answer"
    assert runtime.record.generation == 1
    changes.store.reads_fail = False
    await runtime.persist(Phase.DECIDING, begins=True)
    assert (runtime.record.phase, runtime.record.generation) == (Phase.DECIDING, 2)
    stored = await changes.store.runtime(7)
    assert stored is not None
    assert stored.record == runtime.record


async def test_showing_the_same_again_is_no_change() -> None:
    changes = Changes()
    runtime = await changes.runtime()
    runtime.show(withdrawn=True)
    runtime.show(withdrawn=True)
    assert changes.count == 1
