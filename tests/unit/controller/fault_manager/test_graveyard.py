"""An instance that is gone stays so, and what is left of it comes into no other one (recovery.md section 10)."""

import asyncio
from dataclasses import replace

import pytest

from controller.core.assembly import identity
from controller.core.phases import Phase
from controller.core.reports import Hello
from controller.core.status import InstanceState
from controller.fault_manager.graveyard import KEPT, KEPT_SEC, Grave, Graveyard
from controller.fault_manager.identity import StoredIdentity
from controller.store.memory import MemoryStore
from motor_ft.model.errors import FtError, Reason
from tests.support.world.adapters import Cord, ScriptedStore, Trouble
from tests.support.world.pods import TWO_PODS, FakePod, H, U, registration
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

GONE = SETTINGS.heartbeat_ttl_other


async def refusal(pod: FakePod) -> Reason:
    with pytest.raises(FtError) as refused:
        await pod.connect()
    return refused.value.reason


async def forgotten(world: World) -> None:
    """All pods were cut off for so long that instance 1 is forgotten; then they can come again."""
    await world.serve()
    for pod in world.pods.values():
        await pod.disconnect()
    await world.until(lambda: world.status().state is InstanceState.DELETED, timeout=2 * GONE)


async def failed_over(world: World) -> None:
    await world.kill()
    await world.restart(connect=False)


@pytest.mark.parametrize("failover", [False, True])
async def test_engines_of_a_forgotten_instance_start_anew_before_they_make_another_one(failover: bool) -> None:
    async with World(*TWO_PODS) as world:
        await forgotten(world)
        engines = {world.engine(rank).incarnation for rank in range(4)}
        if failover:
            await failed_over(world)
        for pod in world.pods.values():
            assert await refusal(pod) is Reason.STALE_INCARNATION
        await world.until(lambda: world.can_serve(2))
        assert {world.engine(rank).incarnation for rank in range(4)}.isdisjoint(engines)
        assert len(world.stops) == 2
        assert await world.living() == {2}


async def test_a_node_manager_that_starts_again_makes_no_new_engines() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await forgotten(world)
        await failed_over(world)
        world.pod(1).restart_node_manager()
        assert await refusal(world.pod(1)) is Reason.STALE_INCARNATION
        assert await world.living() == set()


async def test_pods_that_have_started_anew_meanwhile_are_welcome() -> None:
    """One with the UID that it had, and one in the place of the other."""
    async with World(*TWO_PODS) as world:
        await forgotten(world)
        await failed_over(world)
        world.pod(1).boot()
        await world.pod(1).connect()
        await world.add(registration(3, [2, 3])).connect()
        await world.until(lambda: world.can_serve(2))
        assert world.stops == []


async def test_engines_of_a_replaced_instance_are_refused_after_a_failover_and_left_alone() -> None:
    """Started anew they would only replace the one that serves."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        old = [world.pod(1), world.pod(2)]
        for number, ranks in ((3, [0, 1]), (4, [2, 3])):
            await world.add(registration(number, ranks)).connect()
        await world.until(lambda: world.status().state is InstanceState.DELETED)
        await failed_over(world)
        for pod in old:
            assert await refusal(pod) is Reason.STALE_INCARNATION
        assert world.stops == []
        assert await world.living() == {2}
        assert world.coordinator.held.keys() == {2}


@pytest.mark.parametrize("failover", [False, True])
async def test_engines_that_were_started_again_in_the_instance_are_of_it_too(failover: bool) -> None:
    """Behind our back, or by a relaunch that failed: the pod could not be stopped, and comes back with them."""
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        old = world.pod(1)
        old.relaunches += 1
        old.start_engines(H)
        old.silent = True
        await old.tell(old.snapshot())
        await old.disconnect()
        await world.until(lambda: world.status().phase is Phase.RECONFIGURING, timeout=GONE)
        for number, ranks in ((3, [0, 1]), (4, [2, 3])):
            await world.add(registration(number, ranks)).connect()
        await world.until(lambda: world.status().state is InstanceState.DELETED)
        if failover:
            await failed_over(world)
        assert await refusal(old) is Reason.STALE_INCARNATION


async def test_a_pod_of_a_rebuilt_instance_that_has_started_anew_is_not_stopped_again_after_a_failover() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        world.pod(2).silent = True
        await world.lose(0, 1, 2, 3)
        await world.until(lambda: len(world.stops) == 1)
        await world.kill()
        world.keeper = True
        world.pod(1).boot()
        world.pod(2).silent = False
        await world.restart()
        await world.until(lambda: world.can_serve(2))
        assert [address for address, _, _ in world.stops] == [world.pod(1).address, world.pod(2).address]


async def test_an_emptied_pod_that_has_started_anew_stays_retired() -> None:
    """Only a new instance ends that, and the pod may only have lost its NodeManager, and the engines with it."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(2, 3)
        await world.until(lambda: world.status().dead_committed == (2, 3) and world.can_serve())
        await world.pod(2).disconnect()
        world.pod(2).boot()
        await world.pod(2).connect()
        assert world.pod(2).state.instance_id == 1
        assert world.pod(2).state.retired == {2, 3}
        assert world.coordinator.ranks() == {0, 1}
        assert world.can_serve()


async def test_engines_that_started_anew_behind_our_back_are_dead_in_the_instance_that_goes_on() -> None:
    """Also for a Controller that has not met the pod before: it comes back to its instance, which removes its ranks."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.kill()
        world.pod(2).boot()
        for rank in (0, 1):
            world.engine(rank).status = U
        await world.restart()
        await world.until(lambda: world.status().dead_committed == (2, 3) and world.can_serve())
        assert world.stops == []


async def test_an_instance_that_could_not_be_buried_at_once_is_buried_later() -> None:
    async with World(*TWO_PODS) as world:
        world.store.script["bury"] = Trouble.NOT_WRITTEN
        await forgotten(world)
        assert await world.living() == {1}
        await asyncio.sleep(10)
        assert await world.living() == set()
        await failed_over(world)
        assert world.controller.board.all() == []


async def test_gone_instances_are_forgotten_after_a_day() -> None:
    async with World(*TWO_PODS) as world:
        await forgotten(world)
        await world.kill()
        await asyncio.sleep(KEPT_SEC)
        await world.restart(connect=False)
        loaded = await world.store.load()
        assert (loaded.identities, loaded.runtimes) == ({}, {})


def hello(instance_id: int, engine: str) -> Hello:
    pod = registration(1, [0], dp_size=1)
    endpoints = tuple(replace(endpoint, incarnation=engine) for endpoint in pod.endpoints)
    return Hello("uid-1", "start-1", 1, 1, instance_id, replace(pod, endpoints=endpoints))


def test_no_more_than_the_newest_are_remembered() -> None:
    graves = Graveyard()
    for instance_id in range(1, KEPT + 3):
        graves.dig(Grave(instance_id, 1, {"engine"}, gone_at=float(instance_id)))
    assert list(graves.overdue(now=300.0)) == [1, 2]
    graves.fill(1)
    assert graves.haunted(hello(1, "engine")) is None
    assert graves.haunted(hello(2, "engine")) is not None
    assert graves.haunted(hello(2, "another")) is None


def test_what_cannot_be_read_is_remembered_for_ever_and_each_pod_of_it_haunts_until_it_starts_anew() -> None:
    graves = Graveyard()
    graves.dig(Grave(1, 1, set()))
    assert list(graves.overdue(now=1e12)) == []
    assert graves.haunted(hello(1, "engine")) is not None
    assert graves.haunted(hello(1, "engine")) is not None
    assert graves.haunted(hello(1, "another")) is None
    assert graves.haunted(hello(2, "engine")) is None


async def test_what_is_still_to_be_written_of_an_instance_does_not_bring_it_back() -> None:
    """A write of which nothing is known, the end of the instance, and a write that waited for its turn."""
    store = ScriptedStore(MemoryStore(), Cord())
    await store.lead()
    stored = StoredIdentity(store)
    stored.record = identity(1, TWO_PODS)
    await stored.change(lambda record: record)
    store.script["identity"] = Trouble.ANSWER_LOST
    with pytest.raises(FtError):
        await stored.change(lambda record: record)
    await asyncio.gather(stored.bury(TWO_PODS, 7.0), stored.change(lambda record: record))
    assert (await store.load()).identities[1].record.gone_at == 7.0
