"""The executor of a scale-down: each effect goes out once, each answer comes back, nothing runs on (RFC section 5)."""

import asyncio
from collections.abc import Sequence

import pytest

from controller.core.decision import Action
from controller.core.outcome import Outcome
from controller.core.ports import Strategy
from controller.core.records import IdentityRecord
from controller.core.serving import ServingInstance, project
from controller.core.transaction import Spec
from controller.fault_manager.runtime import FtRuntime
from motor_ft.model.engine import EvidenceSource, FtState
from motor_ft.model.errors import FtError, Reason
from tests.support.world.case import bare_case
from tests.support.world.pods import TWO_PODS, D, H, U
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

DOWN = FtError(Reason.OUTCOME_UNKNOWN, "no answer")


class Views:
    """ports.ServingViews of the one instance, as the runtime of the test's own transaction projects it."""

    def __init__(self, identity: IdentityRecord, runtime: FtRuntime) -> None:
        self._identity = identity
        self._runtime = runtime

    def view(self, instance_id: int) -> ServingInstance | None:
        record, withdrawn = self._runtime.record, self._runtime.volatile.withdrawn
        return project(self._identity, record.phase, record.dead_committed, withdrawn=withdrawn)

    def views(self) -> Sequence[ServingInstance]:
        return []

    def confirmed(self, instance_id: int, view: ServingInstance | None) -> None:
        self._runtime.published(held=view is not None, paused=False)

    def may_publish(self) -> bool:
        return True


async def strategy_for(world: World, *dead: int) -> Strategy:
    """A transaction that the test runs itself; the engines are in the state that it is meant for."""
    await world.serve()
    for rank in range(4):
        world.engine(rank).status = D if rank in dead else U
    stored = await world.store.runtime(1)
    assert stored is not None
    runtime = FtRuntime(1, stored, world.store, lambda: None, patience_sec=5)
    identity = (await world.store.load()).identities[1].record
    world.controller.publisher.views = Views(identity, runtime)
    spec = Spec(
        instance_id=1,
        request_id="one-id",
        generation=stored.record.generation + 1,
        previous_phase=stored.record.phase,
        pods=TWO_PODS,
        original=frozenset(range(4)),
        dead_committed=frozenset(),
        candidates=dict.fromkeys(dead, EvidenceSource.ENGINE_REPORTED),
        unhealthy_since={},
        scale_down_enabled=True,
        recovery_timeout=120.0,
        limits=SETTINGS.limits,
    )
    return world.controller.strategies[Action.DP_SCALE_DOWN](bare_case(spec, runtime))


async def test_every_command_of_a_transaction_carries_one_id_epoch_and_generation() -> None:
    async with World(*TWO_PODS) as world:
        result = await (await strategy_for(world, 1)).execute()
        assert result.outcome is Outcome.SUCCEEDED
        assert result.removed == {1}
        commands = {command for pod in world.pods.values() for _, command in pod.calls}
        assert [(c.request_id, c.epoch, c.generation) for c in commands] == [("one-id", 1, 2)]


async def test_the_order_of_the_commands_is_the_order_of_the_transaction() -> None:
    async with World(*TWO_PODS) as world:
        await (await strategy_for(world, 1)).execute()
        methods = [method for method, _ in world.pod(2).calls]
        unique = list(dict.fromkeys(methods))
        assert unique == ["guard", "watch", "status", "apply", "commit"]
        assert methods.count("apply") == methods.count("commit") == 1


async def test_nothing_runs_on_after_the_end() -> None:
    async with World(*TWO_PODS) as world:
        strategy = await strategy_for(world, 1)
        before = asyncio.all_tasks()
        await strategy.execute()
        await asyncio.sleep(0)
        left = {task.get_name() for task in asyncio.all_tasks() - before}
        assert not any(name.startswith("scale-down") for name in left)


async def test_a_watch_that_breaks_only_costs_time() -> None:
    """A survivor that becomes ready is then seen by the next poll, not at once."""
    async with World(*TWO_PODS) as world:
        strategy = await strategy_for(world, 1)
        for pod in world.pods.values():
            pod.refuses["watch"] = DOWN
        assert (await strategy.execute()).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("watched", [True, False])
async def test_a_pushed_reading_advances_it_at_once(watched: bool) -> None:
    async with World(*TWO_PODS) as world:
        strategy = await strategy_for(world, 1)
        if not watched:
            world.pod(2).refuses["watch"] = DOWN
        world.engine(3).status = H
        task = asyncio.ensure_future(strategy.execute())
        await asyncio.sleep(1.5)  # between two polls
        world.engine(3).status = U
        world.pod(2).push(world.engine(3))
        await asyncio.sleep(0.1)
        assert bool(world.applies()) is watched
        assert (await task).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("method", ["guard", "status", "apply", "commit"])
async def test_a_pod_that_does_not_answer_ends_it_in_bounded_time(method: str) -> None:
    async with World(*TWO_PODS) as world:
        strategy = await strategy_for(world, 1)
        world.pod(2).refuses[method] = DOWN
        result = await strategy.execute()
        assert result.outcome is Outcome.FAILED
        assert world.clock.now() < 2 * SETTINGS.limits.lease
        assert len(world.calls("abort")) == (1 if method == "commit" else 2)
        assert all(len(told) == 1 for told in world.applies().values())


async def test_an_effect_that_somebody_cancels_ends_it_and_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the channel to a pod is closed under a command."""
    async with World(*TWO_PODS) as world:
        strategy = await strategy_for(world, 1)

        async def cancelled(*_: object, **__: object) -> None:
            raise asyncio.CancelledError

        monkeypatch.setattr(type(world.controller.nodes), "status", cancelled)
        with pytest.raises(RuntimeError, match=r"Query .* was cancelled"):
            await strategy.execute()


async def test_a_commit_that_is_refused_is_not_asked_again() -> None:
    async with World(*TWO_PODS) as world:
        strategy = await strategy_for(world, 1)
        world.pod(2).refuses["commit"] = FtError(Reason.STALE_REQUEST_ID, "another id holds the guard")
        result = await strategy.execute()
        assert str(result.failure).startswith("COMMIT_FAILED")
        assert world.calls("commit").count(("commit", "10.0.0.2:9000")) == 1
        assert world.calls("abort") == [("abort", "10.0.0.2:9000")]


async def test_a_commit_without_an_answer_is_asked_again_with_the_same_id() -> None:
    async with World(*TWO_PODS) as world:
        strategy = await strategy_for(world, 1)
        pod = world.pod(2)
        pod.refuses["commit"] = DOWN

        async def heal() -> None:
            if [method for method, _ in pod.calls].count("commit") == 3:
                del pod.refuses["commit"]

        pod.hold["commit"] = heal
        assert (await strategy.execute()).outcome is Outcome.SUCCEEDED
        assert world.calls("commit").count(("commit", "10.0.0.1:9000")) == 1


async def test_a_death_that_is_told_joins_the_removal_before_the_plan_is_frozen() -> None:
    async with World(*TWO_PODS) as world:
        strategy = await strategy_for(world, 1)
        world.engine(3).status = H
        task = asyncio.ensure_future(strategy.execute())
        await asyncio.sleep(1.5)
        strategy.died(3, EvidenceSource.PROCESS_EXIT)
        result = await task
        assert result.removed == {1, 3}
        assert {removed for told in world.applies().values() for _, removed in told} == {(1, 3)}


async def test_a_stop_is_honoured_before_apply_and_ignored_after() -> None:
    async with World(*TWO_PODS) as world:
        strategy = await strategy_for(world, 1)
        strategy.stop("superseded")
        assert (await strategy.execute()).outcome is Outcome.CANCELLED
        assert world.applies() == {}
    async with World(*TWO_PODS) as world:
        strategy = await strategy_for(world, 1)

        async def stop() -> None:
            strategy.stop("too late")

        world.pod(1).hold["apply"] = stop
        assert (await strategy.execute()).outcome is Outcome.SUCCEEDED


async def test_a_failed_command_of_the_engine_is_the_end_and_is_not_repeated() -> None:
    async with World(*TWO_PODS) as world:
        strategy = await strategy_for(world, 1)
        world.engine(2).recovers = False
        task = asyncio.ensure_future(strategy.execute())
        await world.until(world.applies)
        world.engine(2).ft_state = FtState.FAILED
        result = await task
        assert result.outcome is Outcome.FAILED
        assert len(world.engine(2).applies) == 1


async def test_every_stage_is_measured_once() -> None:
    async with World(*TWO_PODS) as world:
        await (await strategy_for(world, 1)).execute()
        stages = world.observed.stages
        assert len(stages) == len(set(stages))
        assert {"apply_ready", "withdrawn", "applied", "healthy", "committed", "published"} <= set(stages)
