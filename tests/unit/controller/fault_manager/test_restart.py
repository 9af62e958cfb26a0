"""A Controller that is killed at any step: what the next one does with what is stored (recovery.md section 3)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from controller.core.history import EventKind
from controller.core.phases import Phase
from controller.core.records import RuntimeRecord
from controller.core.status import InstanceState
from controller.store.codec import Kind
from controller.store.memory import MemoryStore
from controller.store.sqlite import SqliteStore
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.hardware import FaultLevel
from tests.support.world.adapters import Trouble
from tests.support.world.hardware import FakeAdapter, card, with_cards
from tests.support.world.pods import TWO_PODS, D, H, U, registration
from tests.support.world.world import SETTINGS, Controller, World

virtual = pytest.mark.looptime


async def killed_in(world: World, phase: Phase, trouble: Trouble) -> None:
    """One recovery that the Controller does not survive: it ends before, or after, it has written ``phase``."""
    await world.serve()
    world.store.script[phase] = trouble
    await world.lose(1)
    if phase is Phase.WAITING_ENGINE_FAULT:
        world.engine(3).status = H
    await world.store.killed.wait()
    await world.kill()


async def replaced(world: World) -> None:
    await world.until(lambda: world.can_serve(2))
    await world.until(lambda: world.status().state is InstanceState.DELETED)


@virtual
@pytest.mark.parametrize("phase", [Phase.DECIDING, Phase.WAITING_ENGINE_FAULT, Phase.SCALING_DOWN])
async def test_an_interrupted_transaction_is_reconfigured_and_never_replayed(phase: Phase) -> None:
    async with World(*TWO_PODS) as world:
        await killed_in(world, phase, Trouble.KILLED_AFTER)
        await world.restart(connect=False)
        assert world.status().phase in {phase, Phase.RECONFIGURING}
        assert world.coordinator.held == {}, "it is not in the first SET"
        applied = world.applies()
        await world.connect()
        await replaced(world)
        assert applied == world.applies() == {}
        assert world.controller.started == ["instance_reconfiguration"]
        assert {address for address, _, _ in world.stops} == set(world.pods)


@virtual
async def test_the_window_between_apply_and_its_record_is_reconfigured() -> None:
    """The engines were told, NodeManagers have committed, and dead_committed was never written."""
    async with World(*TWO_PODS) as world:
        await killed_in(world, Phase.POST_SCALE_CLEANUP, Trouble.KILLED_BEFORE)
        assert world.pod(1).state.retired == {1}
        told = [engine for pod in world.pods.values() for engine in pod.engines.values() if engine.applies]
        assert len(told) == 3
        await world.restart()
        await replaced(world)
        assert [len(engine.applies) for engine in told] == [1, 1, 1]
        assert world.status(2).dead_committed == ()


@virtual
@pytest.mark.parametrize(
    ("phase", "trouble"),
    [
        (Phase.POST_SCALE_CLEANUP, Trouble.KILLED_AFTER),
        (Phase.SCALED_DOWN_RUNNING, Trouble.KILLED_BEFORE),
        (Phase.SCALED_DOWN_RUNNING, Trouble.KILLED_AFTER),
    ],
)
async def test_a_committed_scale_down_is_published_by_the_next_controller(phase: Phase, trouble: Trouble) -> None:
    async with World(*TWO_PODS) as world:
        await killed_in(world, phase, trouble)
        await world.restart()
        await world.until(lambda: world.status().phase is Phase.SCALED_DOWN_RUNNING and world.can_serve())
        assert world.coordinator.ranks() == {0, 2, 3}
        assert world.status().dead_committed == (1,)
        await asyncio.sleep(2 * SETTINGS.fault_collection_timeout)
        assert world.controller.started == []
        assert world.pod(1).rejected == []


@virtual
async def test_a_committed_scale_down_is_not_published_before_its_last_phase_is_written() -> None:
    """The first SET of a new Controller goes out before its instances have settled."""
    async with World(*TWO_PODS) as world:
        await killed_in(world, Phase.SCALED_DOWN_RUNNING, Trouble.KILLED_BEFORE)
        await world.restart(connect=False)
        assert (world.status().phase, world.coordinator.ranks()) == (Phase.POST_SCALE_CLEANUP, set())
        await world.until(lambda: world.status().phase is Phase.SCALED_DOWN_RUNNING)
        assert world.coordinator.ranks() == {0, 2, 3}


@virtual
async def test_the_next_round_after_a_restart_is_cumulative() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(1)
        await world.until(lambda: world.status().dead_committed == (1,) and world.can_serve())
        await world.kill()
        await world.restart()
        await world.until(world.can_serve)
        await world.lose(2, among=(0, 2, 3))
        await world.until(lambda: world.status().dead_committed == (1, 2))
        assert [removed for _, removed in world.engine(0).applies] == [(1,), (1, 2)]


@virtual
async def test_a_reconfiguration_goes_on_after_a_restart_with_a_generation_of_its_own() -> None:
    """One pod was stopped and is there again with its engines: the next Controller's Stop is no repeat for it."""
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        world.pod(2).silent = True
        await world.lose(0, 1, 2, 3)
        await world.until(lambda: len(world.stops) == 1)
        await world.kill()
        world.keeper = True
        world.pod(1).restart_node_manager()
        world.pod(2).silent = False
        await world.restart()
        await replaced(world)
        generations = [command.generation for address, command, _ in world.stops if address == "10.0.0.1:9000"]
        assert generations == [2, 3]


@virtual
async def test_a_stable_instance_serves_on_through_a_restart() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.kill()
        await world.restart(connect=False)
        assert world.coordinator.ranks() == {0, 1, 2, 3}
        await world.connect()
        await world.until(lambda: world.status().state is InstanceState.ACTIVE)
        assert world.controller.started == []
        assert world.status().generation == 1


@virtual
async def test_an_engine_that_was_restarted_while_no_controller_ran_has_lost_its_place() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.kill()
        world.engine(1).incarnation = "another"
        for rank in (0, 2, 3):
            world.engine(rank).status = U
        await world.restart()
        await world.until(lambda: world.status().dead_committed == (1,))


@virtual
async def test_a_new_controller_decides_when_all_pods_have_sent_their_snapshot() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.kill()
        world.engine(1).status = D
        for rank in (0, 2, 3):
            world.engine(rank).status = U
        await world.restart(connect=False)
        await world.pod(1).connect()
        await asyncio.sleep(SETTINGS.heartbeat_ttl / 2)
        assert world.controller.started == []
        await world.pod(2).connect()
        await world.until(lambda: world.status().dead_committed == (1,))
        assert world.clock.now() < SETTINGS.heartbeat_ttl


@virtual
async def test_a_new_controller_decides_after_one_ttl_without_the_others() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.kill()
        for engine in (world.engine(0), world.engine(1)):
            engine.status = D
        await world.restart(connect=False)
        begun = world.clock.now()
        await world.pod(1).connect()
        await asyncio.sleep(begun + SETTINGS.heartbeat_ttl - 0.01 - world.clock.now())
        assert world.status().last_decision == ""
        await asyncio.sleep(0.02)
        assert world.status().last_decision.startswith("wait: ranks [2, 3]")


@virtual
async def test_retired_ranks_that_were_never_committed_here_are_not_believed() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.kill()
        world.pod(1).state = replace(world.pod(1).state, retired=frozenset({1}))
        await world.restart()
        await replaced(world)
        assert all("ranks [1] are retired" in reason for _, _, reason in world.stops)


@virtual
async def test_nor_are_those_that_a_pod_names_while_something_else_is_done() -> None:
    """It says so once; what runs comes to its end first."""
    async with World(*map(with_cards, TWO_PODS)) as world:
        adapter = FakeAdapter(world)
        await adapter.connect()
        await world.serve()
        waited_for = card(1, 1, level=FaultLevel.L2, code="0x08520003")
        await adapter.tell(waited_for)
        await world.until(lambda: world.controller.started == ["token_reinference"])
        world.pod(2).state = replace(world.pod(2).state, retired=frozenset({3}))
        await world.pod(2).disconnect()
        await world.pod(2).connect()
        await asyncio.sleep(1)
        assert world.stops == []
        await adapter.clear(waited_for)
        await replaced(world)
        assert all("ranks [3] are retired" in reason for _, _, reason in world.stops)


@virtual
async def test_a_baseline_outlives_the_controller_and_only_other_faults_are_new() -> None:
    async with World(*TWO_PODS) as world:
        world.pod(1).ready = False
        await world.connect()
        await world.see(1, D)
        await world.pod(1).became_ready()
        await world.until(world.can_serve)
        await world.kill()
        await world.restart()
        await asyncio.sleep(2 * SETTINGS.fault_collection_timeout)
        assert world.controller.started == []
        await world.see(0, D)
        await asyncio.sleep(SETTINGS.fault_collection_timeout + 1)
        assert world.controller.started == ["instance_reconfiguration"]


@virtual
async def test_a_baseline_fault_that_cleared_is_new_after_a_restart_too() -> None:
    async with World(*TWO_PODS) as world:
        world.pod(1).ready = False
        await world.connect()
        await world.see(1, D)
        await world.pod(1).became_ready()
        await world.until(world.can_serve)
        await world.see(1, H)
        await asyncio.sleep(1)
        await world.see(1, D)
        await world.kill()
        await world.restart()
        for rank in (0, 2, 3):
            await world.see(rank, U)
        await world.until(lambda: world.status().dead_committed == (1,))


@virtual
async def test_an_instance_that_was_superseded_but_not_forgotten_is_forgotten_and_nothing_is_stopped() -> None:
    """The Controller ended between READY of the newer instance and the end of the older one."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.pod(1).refuses["guard"] = FtError(Reason.GUARD_HELD, "somebody else holds the guard")
        older = await world.store.load()
        await world.lose(1)
        await replaced(world)
        await world.kill()
        store = MemoryStore(world.shelf)
        await store.lead()
        gone = await store.load()
        await store.save_identity(older.identities[1].record, gone.identities[1].revision)
        await store.save_runtime(1, older.runtimes[1].record.at(Phase.RECONFIGURING), gone.runtimes[1].revision)
        stops = len(world.stops)
        await world.restart()
        await world.until(lambda: world.can_serve(2) and world.status().state is InstanceState.DELETED)
        assert len(world.stops) == stops
        assert world.coordinator.held.keys() == {2}
        assert await world.living() == {2}


@virtual
async def test_a_runtime_record_without_identity_is_removed() -> None:
    async with World(*TWO_PODS) as world:
        await world.store.save_runtime(41, RuntimeRecord(Phase.NORMAL, 1, (0, 1)), 0)
        await world.kill()
        await world.restart()
        await world.until(world.can_serve)
        assert (await world.store.load()).runtimes.keys() == {1}


@virtual
async def test_an_instance_whose_runtime_cannot_be_read_is_reconfigured_and_the_others_serve() -> None:
    async with World(*TWO_PODS, registration(3, [0], job="other", dp_size=1)) as world:
        await world.serve()
        await world.until(lambda: world.can_serve(2))
        await world.kill()
        key = (Kind.RUNTIME, 1)
        world.shelf.rows[key] = replace(world.shelf.rows[key], body=b'{"version":99,"record":{}}')
        await world.restart(connect=False)
        status = world.status()
        assert status.phase is Phase.RECONFIGURING
        assert status.last_error.startswith("INTERRUPTED: cannot be read: runtime record is of version 99")
        assert not status.can_serve
        assert world.coordinator.held.keys() == {2}
        await world.connect()
        await world.until(lambda: world.can_serve(3))
        assert world.can_serve(2)
        assert {address for address, _, _ in world.stops} == {"10.0.0.1:9000", "10.0.0.2:9000"}


@virtual
@pytest.mark.parametrize("runtime", [True, False], ids=["only its identity", "nor its runtime"])
async def test_an_instance_whose_identity_cannot_be_read_is_shown_and_its_pods_make_a_new_one(runtime: bool) -> None:
    """Whom it was made of is not known: each pod that was in it is stopped once, when it comes."""
    async with World(*TWO_PODS, registration(3, [0], job="other", dp_size=1)) as world:
        await world.serve()
        await world.until(lambda: world.can_serve(2))
        await world.kill()
        for kind in (Kind.IDENTITY,) if runtime else Kind:
            world.shelf.rows[kind, 1] = replace(world.shelf.rows[kind, 1], body=b'{"version":3,"record":{}}')
        await world.restart(connect=False)
        assert world.coordinator.held.keys() == {2}
        status = world.status()
        assert (status.phase, status.state, status.can_serve) == (Phase.RECONFIGURING, InstanceState.INACTIVE, False)
        assert status.last_error.startswith("INTERRUPTED: cannot be read: identity record is of version 3")
        (alert,) = world.controller.histories.page(1, (EventKind.ALERT,), after=None, newest_first=False, size=9)
        assert (alert.kind, alert.text) == (EventKind.ALERT, "identity record is of version 3, this Controller knows 2")
        assert world.observed.unread == 1
        for pod in world.pods.values():
            with suppress(FtError):
                await pod.connect()
        await world.until(lambda: world.can_serve(3))
        assert {address for address, _, _ in world.stops} == {pod.node_manager_address for pod in TWO_PODS}
        assert len(world.stops) == 2
        assert world.can_serve(2)
        assert (Kind.IDENTITY, 1) in world.shelf.rows, "whoever can read it may still do so"


@virtual
async def test_an_instance_whose_runtime_is_of_other_ranks_is_reconfigured() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.kill()
        store = MemoryStore(world.shelf)
        await store.lead()
        revision = world.shelf.rows[Kind.RUNTIME, 1].revision
        await store.save_runtime(1, RuntimeRecord(Phase.NORMAL, 1, (0, 1, 2)), revision)
        await world.restart(connect=False)
        assert world.status().phase is Phase.RECONFIGURING
        assert "cannot be read: runtime record is of ranks (0, 1, 2)" in world.status().last_error
        assert world.coordinator.held == {}
        await world.connect()
        await replaced(world)


@virtual
async def test_a_controller_that_fails_while_it_replaces_a_record_loses_no_instance() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.kill()
        key = (Kind.RUNTIME, 1)
        world.shelf.rows[key] = replace(world.shelf.rows[key], body=b"?")
        world.controller = Controller(world, MemoryStore(world.shelf))
        world.store.script[Phase.RECONFIGURING] = Trouble.NEVER_WRITTEN
        with pytest.raises(FtError):
            await world.manager.start()
        await world.kill()
        await world.restart()
        await replaced(world)


@virtual
async def test_a_term_is_above_every_term_before() -> None:
    async with World(*TWO_PODS) as world:
        first = world.manager.epoch
        await world.serve()
        await world.kill()
        await world.restart()
        assert world.manager.epoch > first
        assert {pod.state.fence.epoch for pod in world.pods.values()} == {world.manager.epoch}


@asynccontextmanager
async def sqlite_world(path: Path) -> AsyncIterator[World]:
    store = await SqliteStore.open(path)
    try:
        async with World(*TWO_PODS, store=store) as world:
            yield world
    finally:
        await store.close()


@pytest.mark.parametrize("phase", [Phase.SCALING_DOWN, Phase.SCALED_DOWN_RUNNING])
async def test_the_embedded_store_restores_the_same(tmp_path: Path, phase: Phase) -> None:
    """In real time: the store has a thread of its own."""
    path = tmp_path / "controller.db"
    async with sqlite_world(path) as world:
        await killed_in(world, phase, Trouble.KILLED_AFTER)
        await world.store.close()
        await world.restart(await SqliteStore.open(path))
        if phase is Phase.SCALING_DOWN:
            await world.until(lambda: world.can_serve(2))
            assert world.status(2).dead_committed == ()
            assert world.controller.started == ["instance_reconfiguration"]
        else:
            await world.until(world.can_serve)
            assert world.status().phase is Phase.SCALED_DOWN_RUNNING
            assert world.coordinator.ranks() == {0, 2, 3}


@virtual
async def test_a_started_controller_shows_every_stored_instance_at_once() -> None:
    """Nobody may take an instance for gone because its actor has not had its turn yet."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.kill()
        world.controller = Controller(world, MemoryStore(world.shelf))
        await world.manager.start()
        assert [status.instance_id for status in world.controller.board.all()] == [1]
