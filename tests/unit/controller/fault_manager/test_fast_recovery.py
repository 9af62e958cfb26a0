"""All ranks UNHEALTHY, none dead: retry, and what becomes of it (recovery.md section 4 row 5, RFC section 4.3)."""

import asyncio
from dataclasses import replace

import pytest

from controller.core.phases import Phase
from motor_ft.model.engine import FtState
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import FtCapability
from tests.support.world.adapters import Trouble
from tests.support.world.pods import CAPABILITY, TWO_PODS, D, FakePod, H, U
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

FAST = replace(SETTINGS, fast_recovery=True)
RELEASED = replace(CAPABILITY, dialect="vllm_0_33", scale_down_supported=False, eplb=False, num_redundant_experts=0)
RECOVERED = ("fast_recovery", "succeeded")
FAILED = [("fast_recovery", "failed"), ("instance_reconfiguration", "succeeded")]
RETRY: tuple[int, ...] = ()
"""What an engine was told to remove by a retry."""


async def replaced(world: World) -> None:
    await world.until(lambda: world.can_serve(2))
    assert world.applies() == {}, "an engine of the new instance was told something"


@pytest.mark.parametrize("capability", [CAPABILITY, RELEASED], ids=["scale_down", "released"])
async def test_every_engine_is_told_once_and_the_same_ranks_serve_again(capability: FtCapability) -> None:
    pods = [replace(pod, capability=capability) for pod in TWO_PODS]
    async with World(*pods, settings=FAST) as world:
        await world.serve()
        await world.lose()
        await world.until(lambda: world.observed.strategies)
        await world.until(world.can_serve)
        status = world.status()
        assert world.observed.strategies == [RECOVERED]
        assert world.applies() == {rank: [(status.request_id, RETRY)] for rank in range(4)}
        assert world.observed.phases[1] == [Phase.NORMAL, Phase.DECIDING, Phase.SCALING_DOWN, Phase.NORMAL]
        assert (status.phase, status.generation, status.last_error) == (Phase.NORMAL, 2, "")
        assert (status.dead_committed, status.pending_removed_ranks) == ((), ())
        assert [ranks for event, _, ranks in world.coordinator.sent if event in {"del", "add"}][-1] == {0, 1, 2, 3}
        assert all(pod.state.guard is None and not pod.state.retired for pod in world.pods.values())
        assert world.stops == []
        await asyncio.sleep(2 * FAST.fault_collection_timeout)
        assert world.controller.started == ["fast_recovery"]


async def test_the_ranks_that_are_left_after_a_scale_down_recover_too() -> None:
    """What the scale-down has read of its survivors is known, so nobody is told to retry because of it."""
    async with World(*TWO_PODS, settings=FAST) as world:
        await world.serve()
        await world.lose(1)
        await world.until(lambda: world.status().dead_committed == (1,) and world.can_serve())
        await asyncio.sleep(2 * FAST.fault_collection_timeout)
        assert world.controller.started == ["dp_scale_down"]
        await world.lose(among=(0, 2, 3))
        await world.until(lambda: world.observed.strategies[1:] == [RECOVERED] and world.can_serve())
        assert world.status().phase is Phase.SCALED_DOWN_RUNNING
        assert world.status().dead_committed == (1,)
        assert [removed for _, removed in world.engine(0).applies] == [(1,), RETRY]
        assert world.coordinator.ranks() == {0, 2, 3}


async def test_success_does_not_wait_for_the_reports_of_the_engines_health() -> None:
    """Until they come, all would still be UNHEALTHY: the strategy has read them itself."""
    async with World(*TWO_PODS, settings=FAST) as world:
        await world.serve()

        async def deaf(self: FakePod, report: object) -> None:
            """The stream is slow."""

        with pytest.MonkeyPatch.context() as patch:
            await world.lose()
            patch.setattr(FakePod, "_say", deaf)
            await world.until(lambda: world.observed.strategies == [RECOVERED] and world.can_serve())
            await asyncio.sleep(2 * FAST.fault_collection_timeout)
        assert world.controller.started == ["fast_recovery"]


async def test_a_fault_that_is_reported_while_it_ends_is_not_taken_back_by_what_it_has_read() -> None:
    async with World(*TWO_PODS, settings=FAST) as world:
        await world.serve()
        world.pod(1).hold["abort"] = lambda: world.see(2, U)
        await world.lose()
        await world.until(lambda: world.observed.strategies == [RECOVERED])
        assert world.status().engine_statuses[2] is U
        await replaced(world)
        assert world.controller.started == ["fast_recovery", "instance_reconfiguration"]


async def test_a_failure_leads_to_reconfiguration_and_to_no_scale_down() -> None:
    """Also when a rank dies of it, which would be a case for a scale-down otherwise."""
    async with World(*TWO_PODS, settings=FAST) as world:
        await world.serve()
        told = [world.engine(rank) for rank in range(4)]
        told[3].recovers = False
        await world.lose()
        await world.until(lambda: told[3].applies)
        await world.see(3, D)
        await replaced(world)
        assert world.observed.strategies == FAILED
        assert [len(engine.applies) for engine in told] == [1, 1, 1, 1]
        assert len(world.calls("abort")) == 2


@pytest.mark.parametrize("method", ["guard", "status", "apply"])
async def test_a_pod_that_refuses_ends_it_before_the_next_step(method: str) -> None:
    async with World(*TWO_PODS, settings=FAST) as world:
        await world.serve()
        told = [world.engine(rank) for rank in range(4)]
        world.pod(2).refuses[method] = FtError(Reason.GUARD_HELD, "somebody else holds the guard")
        await world.lose()
        await replaced(world)
        assert world.observed.strategies == FAILED
        assert [len(engine.applies) for engine in told] == ([1, 1, 0, 0] if method == "apply" else [0] * 4)


async def test_a_rank_that_dies_before_anything_is_sent_is_removed() -> None:
    """Fast recovery gives up what is not its case; nothing has happened, so the table decides anew."""
    async with World(*TWO_PODS, settings=FAST) as world:
        await world.serve()

        async def die() -> None:
            world.pod(1).hold.clear()
            world.engine(2).status = D

        world.pod(1).hold["status"] = die
        await world.lose()
        await world.until(lambda: world.status().dead_committed == (2,) and world.can_serve())
        assert world.observed.strategies == [("fast_recovery", "cancelled"), ("dp_scale_down", "succeeded")]
        assert {removed for told in world.applies().values() for _, removed in told} == {(2,)}


async def test_a_fault_that_clears_before_anything_is_sent_ends_it_in_peace() -> None:
    async with World(*TWO_PODS, settings=FAST) as world:
        await world.serve()

        async def clear() -> None:
            for rank in range(4):
                world.engine(rank).status = H

        world.pod(1).hold["guard"] = clear
        await world.lose()
        await world.until(lambda: world.observed.strategies == [("fast_recovery", "cancelled")])
        await asyncio.sleep(2 * FAST.fault_collection_timeout)
        assert world.controller.started == ["fast_recovery"]
        assert world.can_serve()
        assert (world.status().phase, world.applies()) == (Phase.NORMAL, {})


@pytest.mark.parametrize(
    "changes",
    [{"fast_recovery": False}, {"engine_ft": False}, {"auto_recovery": True}],
    ids=["switched off", "no fault tolerance", "another authority"],
)
async def test_where_it_is_not_applicable_a_death_is_waited_for(changes: dict[str, bool]) -> None:
    """Nothing is guessed; at the end of the collection the instance is rebuilt."""
    settings = replace(FAST, fast_recovery=changes.pop("fast_recovery", True))
    pods = [replace(pod, capability=replace(CAPABILITY, **changes)) for pod in TWO_PODS]  # type: ignore[arg-type]
    async with World(*pods, settings=settings) as world:
        await world.serve()
        await world.lose()
        began = world.clock.now()
        await replaced(world)
        assert world.clock.now() - began >= FAST.fault_collection_timeout
        assert world.controller.started == ["instance_reconfiguration"]


@pytest.mark.parametrize(
    ("phase", "trouble", "told"),
    [
        (Phase.DECIDING, Trouble.KILLED_AFTER, 0),
        (Phase.WAITING_ENGINE_FAULT, Trouble.KILLED_AFTER, 0),
        (Phase.SCALING_DOWN, Trouble.KILLED_AFTER, 0),
        (Phase.NORMAL, Trouble.KILLED_BEFORE, 1),
    ],
)
async def test_a_controller_that_is_killed_in_it_never_retries(phase: Phase, trouble: Trouble, told: int) -> None:
    """Not even when the engines had recovered: what is not written down did not happen."""
    async with World(*TWO_PODS, settings=FAST) as world:
        await world.serve()
        engines = [world.engine(rank) for rank in range(4)]
        world.store.script[phase] = trouble
        await world.lose()
        if phase is Phase.WAITING_ENGINE_FAULT:
            engines[3].status, engines[3].ft_state = U, FtState.RECOVERING
        await world.store.killed.wait()
        await world.kill()
        await world.restart()
        await replaced(world)
        assert world.controller.started == ["instance_reconfiguration"]
        assert [len(engine.applies) for engine in engines] == [told] * 4


async def test_a_controller_that_is_killed_after_the_phase_was_written_publishes_what_serves() -> None:
    async with World(*TWO_PODS, settings=FAST) as world:
        await world.serve()
        world.store.script[Phase.NORMAL] = Trouble.KILLED_AFTER
        await world.lose()
        await world.store.killed.wait()
        await world.kill()
        await world.restart()
        await world.until(world.can_serve)
        assert world.controller.started == []
        assert world.coordinator.ranks() == {0, 1, 2, 3}
