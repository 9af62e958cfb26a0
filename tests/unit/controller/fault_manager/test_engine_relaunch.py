"""Engine relaunch: all or nothing, in the pods that are there, and nothing of the old engines counts any more."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from controller.core.phases import Phase
from controller.core.reports import ProcessDeath
from controller.fault_manager.intake import judged
from motor_ft.model.engine import EngineStatus
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import Registration
from tests.support.world.adapters import Trouble
from tests.support.world.pods import TWO_PODS, D, FakePod, H, U, registration
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

OFF = replace(SETTINGS, enable_dp_scale_down=False)
POLL_SEC = OFF.engine_relaunch_poll_interval


def lost() -> FtError:
    """A new one: an exception keeps the world alive in which it was raised."""
    return FtError(Reason.OUTCOME_UNKNOWN, "no answer")


@asynccontextmanager
async def serving(*pods: Registration) -> AsyncIterator[World]:
    async with World(*(pods or TWO_PODS), settings=OFF) as world:
        await world.serve()
        yield world


def phases(world: World) -> list[Phase]:
    """What was stored, without repeats."""
    stored = [record.phase for record in world.store.written]
    return [phase for phase, before in zip(stored, [None, *stored], strict=False) if phase is not before]


def incarnations(world: World) -> set[str]:
    return {engine.incarnation for pod in world.pods.values() for engine in pod.engines.values()}


async def relaunched(world: World) -> None:
    """Instance 1 has come back by a relaunch."""
    await world.until(lambda: ("engine_relaunch", "succeeded") in world.observed.strategies)
    await world.until(world.can_serve)


async def rebuilt(world: World) -> None:
    """The relaunch has failed, and the instance was rebuilt."""
    await world.until(lambda: world.can_serve(2) and len(world.observed.strategies) == 2, timeout=1000)
    assert world.observed.strategies == [("engine_relaunch", "failed"), ("instance_reconfiguration", "succeeded")]


@pytest.mark.parametrize("status", [U, D])
async def test_the_instance_serves_again_with_new_engines(status: EngineStatus) -> None:
    async with serving() as world:
        before = incarnations(world)
        await world.see(1, status)
        await relaunched(world)
        assert not before & incarnations(world)
        assert world.coordinator.ranks() == {0, 1, 2, 3}
        assert phases(world) == [Phase.NORMAL, Phase.RECONFIGURING, Phase.NORMAL]
        assert sorted(world.calls("restart", "stop")) == [("restart", f"10.0.0.{pod}:9000") for pod in (1, 2)]
        assert set(world.status().engine_statuses.values()) == {H}
        assert world.controller.started == ["engine_relaunch"]


async def test_it_is_withdrawn_and_durable_before_any_engine_ends() -> None:
    """All commands carry the id and the generation of the relaunch."""
    async with serving() as world:
        seen: list[tuple[set[int], Phase]] = []

        async def look() -> None:
            seen.append((world.coordinator.ranks(), world.store.written[-1].phase))

        world.pod(1).hold["restart"] = look
        await world.see(1, D)
        await relaunched(world)
        assert seen == [(set(), Phase.RECONFIGURING)]
        commands = {command for pod in world.pods.values() for _, command in pod.calls}
        assert {(command.request_id, command.generation) for command in commands} == {("request-1", 2)}


async def test_when_one_pod_cannot_nothing_is_restarted() -> None:
    async with serving() as world:
        world.pod(2).refuses["ask"] = FtError(Reason.RELAUNCH_UNSUPPORTED, "engines were not launched here")
        await world.see(1, D)
        await rebuilt(world)
        assert world.calls("restart") == []
        assert world.stops[0][2].startswith("RELAUNCH_FAILED: 10.0.0.2:9000 says RELAUNCH_UNSUPPORTED")


@pytest.mark.parametrize("method", ["ask", "restart"])
@pytest.mark.parametrize("misses", [2, 3])
async def test_an_order_that_is_not_answered_is_sent_again_to_that_pod_a_few_times(method: str, misses: int) -> None:
    """It is the same order, by id and generation, and a pod carries it out once, whether the answer was lost or not."""
    async with serving() as world:
        pod, missed = world.pod(2), 0

        async def lose() -> None:
            nonlocal missed
            missed += 1
            if missed == 1 and method == "restart":
                pod.restart_engines(pod.calls[-1][1], validate_only=False)  # and its answer is lost
            if missed <= misses:
                raise lost()

        pod.hold[method] = lose
        await world.see(1, D)
        if misses < OFF.engine_relaunch_misses:
            await relaunched(world)
            assert len({command for name, command in pod.calls if name == "restart"}) == 1
            assert [each.relaunches for each in world.pods.values()] == [1, 1]
            assert world.calls("restart").count(("restart", world.pod(1).address)) == 1
        else:
            await rebuilt(world)
            assert "10.0.0.2:9000 says OUTCOME_UNKNOWN" in world.stops[0][2]


async def test_a_rank_without_an_engine_fails_it_before_anything_is_restarted() -> None:
    """Its pod has retired it, and we have not: the window between a commit and its write."""
    async with serving() as world:
        world.pod(2).state = replace(world.pod(2).state, retired=frozenset({3}))
        await world.see(1, D)
        await rebuilt(world)
        assert world.calls("restart") == []
        assert "no pod has an engine of ranks [3]" in world.stops[0][2]


@pytest.mark.parametrize("misses", [2, 3])
async def test_polls_in_a_row_that_a_pod_does_not_answer(misses: int) -> None:
    async with serving() as world:
        pod = world.pod(2)
        await world.see(1, D)
        await world.until(lambda: len(world.calls("restart")) == 2)
        pod.refuses["ask"] = lost()
        asked = len(pod.calls)
        await world.until(lambda: len(pod.calls) - asked >= misses)
        pod.refuses.clear()
        if misses < OFF.engine_relaunch_misses:
            await relaunched(world)
        else:
            await rebuilt(world)
            assert "3 polls in a row were not answered: 10.0.0.2:9000" in world.stops[0][2]


async def test_engines_that_never_become_healthy_have_their_time() -> None:
    async with serving() as world:
        world.pod(2).hold["load"] = asyncio.Event().wait
        start = world.clock.now()
        await world.see(1, D)
        await world.until(lambda: world.stops, timeout=1000)
        assert world.clock.now() - start == pytest.approx(OFF.engine_relaunch_timeout, abs=2.0)
        await rebuilt(world)
        assert "600 s after the relaunch began ranks [2, 3] are not healthy" in world.stops[0][2]


async def test_a_pod_that_is_silent_at_the_very_end_is_named() -> None:
    async with serving() as world:
        loaded = asyncio.Event()
        world.pod(2).hold["load"] = loaded.wait
        await world.see(1, D)
        await world.until(lambda: len(world.calls("restart")) == 2)
        await asyncio.sleep(OFF.engine_relaunch_timeout - 2 * POLL_SEC)
        world.pod(2).refuses["ask"] = lost()
        loaded.set()
        await world.until(lambda: world.stops)
        assert "ranks [2, 3] are not healthy; 10.0.0.2:9000 says OUTCOME_UNKNOWN" in world.stops[0][2]


async def test_a_new_engine_that_ends_is_the_end_of_it_at_once() -> None:
    async with serving() as world:
        world.pod(2).hold["load"] = asyncio.Event().wait
        await world.see(1, D)
        await world.until(lambda: world.pod(2).relaunches)
        await world.pod(2).exit(3)
        await world.until(lambda: world.stops, timeout=2 * POLL_SEC)
        assert "new engines of ranks [3] have ended" in world.stops[0][2]


async def test_a_headless_engine_only_has_to_be_new_and_alive() -> None:
    async with serving(registration(1, [0, 1], dp_size=2), registration(2, [], headless=[0], dp_size=2)) as world:
        await world.see(1, D)
        await relaunched(world)
        assert len(world.calls("restart")) == 2


async def test_engines_that_are_gone_for_good_start_too_and_their_ranks_stay_gone() -> None:
    """Scaled down, then the feature was switched off: the next fault of an engine relaunches all of them."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(1)
        await world.until(lambda: world.can_serve() and world.status().dead_committed == (1,))
        await world.kill()
        world.settings = OFF
        await world.restart()
        await world.until(world.can_serve)
        before = incarnations(world)
        await world.see(2, D)
        await relaunched(world)
        assert not before & incarnations(world)
        assert (world.status().dead_committed, world.coordinator.ranks()) == ((1,), {0, 2, 3})
        assert phases(world)[-2:] == [Phase.RECONFIGURING, Phase.SCALED_DOWN_RUNNING]
        assert world.pod(1).state.retired == {1}


async def test_a_controller_that_ends_in_the_middle_rebuilds_and_restarts_nothing_again() -> None:
    async with serving() as world:
        await world.see(1, D)
        await world.until(lambda: len(world.calls("restart")) == 2)
        await world.kill()
        await world.restart()
        await world.until(lambda: world.can_serve(2))
        assert len(world.calls("restart")) == 2
        assert world.controller.started == ["instance_reconfiguration"]


async def test_a_controller_that_comes_after_it_takes_the_new_engines_for_the_instances_own() -> None:
    async with serving() as world:
        await world.see(1, D)
        await relaunched(world)
        await world.kill()
        await world.restart()
        await world.until(world.can_serve)
        await asyncio.sleep(OFF.fault_collection_timeout)
        assert world.controller.started == []
        assert world.can_serve()


async def start_again(pod: FakePod) -> None:
    """The NodeManager ends, its engines with it, and starts them anew."""
    await pod.disconnect()
    pod.boot()
    await pod.connect()


async def test_a_node_manager_that_ends_in_the_middle_starts_its_engines_once_more() -> None:
    async with serving() as world:
        await world.see(1, D)
        await world.until(lambda: world.pod(2).relaunches)
        await start_again(world.pod(2))
        await relaunched(world)
        assert world.pod(2).state.instance_id == 1
        assert world.stops == []


async def test_after_it_an_engine_restarted_behind_our_back_is_a_fault_again() -> None:
    async with serving() as world:
        await world.see(1, D)
        await relaunched(world)
        await start_again(world.pod(2))
        await world.until(lambda: world.controller.started == ["engine_relaunch"] * 2)
        await relaunched(world)


async def test_after_a_second_one_what_is_said_of_the_first_engines_still_means_nothing() -> None:
    async with serving() as world:
        first = world.engine(1).incarnation
        for _ in range(2):
            world.observed.strategies.clear()
            await world.pod(1).exit(0)
            await relaunched(world)
        await world.owner(1).tell(ProcessDeath(1, first, 4711, "reported late"))
        await asyncio.sleep(30)
        assert world.observed.strategies == [("engine_relaunch", "succeeded")]
        assert world.can_serve()


@pytest.mark.parametrize("late", [None, D, H])
async def test_the_next_controller_too_gives_nothing_on_what_is_said_of_the_first_engines(
    late: EngineStatus | None,
) -> None:
    """What was sent and not acknowledged is sent again before the snapshot; it has seen none of those engines."""
    async with serving() as world:
        pod, first = world.owner(1), world.engine(1)
        await world.see(1, D)
        await relaunched(world)
        await world.kill()
        await world.restart(connect=False)
        first.status = late or D
        death = ProcessDeath(1, first.incarnation, 4711, "sent, and not acknowledged")
        await pod.connect(death if late is None else judged(first.read()))
        await world.pod(2).connect()
        await world.until(world.can_serve)
        await asyncio.sleep(OFF.fault_collection_timeout)
        assert world.controller.started == []


@pytest.mark.parametrize("write", ["identity", Phase.NORMAL])
async def test_what_cannot_be_written_has_failed(write: Phase | str) -> None:
    async with serving() as world:
        await world.see(1, D)
        await world.until(lambda: len(world.calls("restart")) == 2)
        world.store.script[write] = Trouble.NEVER_WRITTEN
        await world.until(lambda: world.stops, timeout=300)
        del world.store.script[write]
        await rebuilt(world)


async def test_a_coordinator_that_is_away_hears_of_it_when_it_is_back() -> None:
    async with serving() as world:
        await world.see(1, D)
        await world.until(lambda: len(world.calls("restart")) == 2)
        world.coordinator.up.clear()
        await world.until(lambda: world.observed.strategies == [("engine_relaunch", "succeeded")])
        assert world.status().last_error.startswith("PUBLISH_PENDING")
        world.coordinator.up.set()
        world.controller.publisher.kick()
        assert world.coordinator.ranks() == {0, 1, 2, 3}
        await world.until(world.can_serve)


async def test_an_engine_that_fails_between_the_last_poll_and_the_end_fails_it() -> None:
    """The pod has said so on its stream; the answer to the poll is older."""
    async with serving() as world:
        pod = world.pod(2)
        await world.see(1, D)
        await world.until(lambda: len(world.calls("restart")) == 2)

        async def die() -> None:
            if pod.ready:
                await pod.exit(3)
                pod.engines[3].status = H

        pod.hold["ask"] = die
        await rebuilt(world)
        assert "the new engine of rank 3" in world.stops[0][2]
