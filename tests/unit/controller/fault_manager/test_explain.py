"""Explain says what the actor would do now, and does nothing."""

import asyncio
from dataclasses import replace

import pytest

from controller.core.decision import Action
from controller.core.explain import Explanation
from controller.core.gate import GateReason
from controller.core.history import EventKind
from controller.core.phases import Phase
from controller.store.memory import MemoryStore
from motor_ft.model.errors import FtError, Reason
from tests.support.world.hardware import FakeAdapter, card, with_cards
from tests.support.world.pods import TWO_PODS, D, U
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime


def explained(world: World) -> Explanation:
    """Of instance 1; nothing that can be seen has changed by it."""
    before = (world.status(), _events(world), list(world.observed.decisions), list(world.controller.started))
    said = world.manager.explain(1)
    assert world.manager.explain(1) == said
    assert (world.status(), _events(world), world.observed.decisions, world.controller.started) == before
    return said


def _events(world: World) -> int:
    page = world.controller.histories.page(None, tuple(EventKind), after=None, newest_first=True, size=1)
    return page[0].sequence if page else 0


async def test_an_instance_that_is_well_could_be_scaled_down() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        said = explained(world)
        assert (said.decision.action, said.decision.row, said.blockers) == (Action.NONE, "10", ())
        assert [each.address for each in said.participants] == ["10.0.0.1:9000", "10.0.0.2:9000"]


async def test_a_collection_is_shown_with_its_sources_ages_and_deadline() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.see(1, D)
        await asyncio.sleep(7)
        await world.see(0, U)
        said = explained(world)
        assert (said.decision.action, said.decision.row) == (Action.WAIT, "8")
        known, evidence = said.facts.snapshot, said.facts.evidence
        assert (set(known.unhealthy), set(known.dead)) == ({0}, {1})
        assert said.decision.look_again == known.deadline
        since = (known.collecting_since, evidence.slot(1).first_dead, evidence.slot(0).first_unhealthy)
        assert since == pytest.approx((said.now - 7, said.now - 7, said.now))


async def test_the_decision_that_is_explained_is_the_one_that_is_taken() -> None:
    """Paused, so that it can be looked at."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(1)
        actor = world.manager.explain(1)
        assert actor.decision.action is Action.DP_SCALE_DOWN
        assert [each.removed for each in actor.participants] == [(1,), ()]
        await world.until(lambda: world.controller.started)
        assert world.controller.started == [actor.decision.action]


async def test_hardware_first_is_shown_with_its_window() -> None:
    async with World(*map(with_cards, TWO_PODS)) as world:
        adapter = FakeAdapter(world)
        await adapter.connect()
        await world.serve()
        await adapter.tell(card(1, 1))
        await asyncio.sleep(2)
        said = explained(world)
        assert (said.decision.action, said.decision.row) == (Action.WAIT, "3")
        assert said.decision.look_again == said.now + SETTINGS.correlation_window - 2
        (concern,) = said.facts.snapshot.hardware.concerns.values()
        assert str(concern).startswith("L6 80E18402 on Ascend910-1 of node-1 (ranks [1]")


async def test_hardware_that_nobody_watches_is_in_the_way_of_a_good_decision() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        adapter = FakeAdapter(world)
        await adapter.connect()
        adapter.disconnect()
        (blocker,) = explained(world).blockers
        assert blocker.startswith("hardware evidence may be incomplete: ")


async def test_with_the_feature_off_the_gate_says_so() -> None:
    async with World(*TWO_PODS, settings=replace(SETTINGS, enable_dp_scale_down=False)) as world:
        await world.serve()
        said = explained(world)
        assert said.gate.reasons == (GateReason.FEATURE_DISABLED,)
        assert said.facts.snapshot.phase is Phase.NORMAL


async def test_an_instance_that_is_being_assembled_waits_for_its_pods() -> None:
    async with World(*TWO_PODS) as world:
        await world.pod(1).connect()
        said = world.manager.explain(1)
        assert said.blockers[:2] == (
            "not all pods of the instance are here and ready: ranks [0, 1] are here; pods not ready: none",
            "the instance was never ready",
        )


async def test_after_a_restart_the_pods_are_awaited_by_name_until_they_are_heard() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.kill()
        await world.restart(connect=False)
        await world.pod(2).connect()
        said = explained(world)
        assert (said.decision.action, said.decision.row) == (Action.WAIT, "start")
        assert said.decision.look_again == said.now + SETTINGS.heartbeat_ttl
        assert "snapshots of pod-1," in said.decision.reason
        await world.pod(1).connect()
        assert explained(world).decision.row == "10"


async def test_a_reconfiguration_that_was_interrupted_is_due() -> None:
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        world.pod(1).silent = True  # so that stopping the pods takes its time
        await world.lose(0, 1, 2, 3)
        await world.until(lambda: world.status().phase is Phase.RECONFIGURING)
        await world.kill()
        await world.restart()
        said = explained(world)
        assert (said.decision.action, said.decision.row) == (Action.INSTANCE_RECONFIGURATION, "due")
        assert said.decision.reason.startswith("INTERRUPTED")


async def test_what_is_not_there_cannot_be_explained() -> None:
    async with World(*TWO_PODS) as world:
        with pytest.raises(FtError) as refused:
            world.manager.explain(1)
        assert refused.value.reason is Reason.UNKNOWN_INSTANCE


async def test_a_controller_that_does_not_lead_says_so() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await MemoryStore(world.shelf).lead()
        assert "this Controller does not lead" in world.manager.explain(1).blockers
