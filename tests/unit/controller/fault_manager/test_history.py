"""What happens to an instance can be read afterwards (protocol.md section 1, ListEvents)."""

import pytest

from controller.core.history import KEPT_EVENTS, Event, EventKind
from controller.core.reports import EngineHealthy, Heartbeat
from controller.core.status import InstanceState
from controller.fault_manager.board import KEPT_DELETED
from controller.fault_manager.history import MAX_TEXT, Histories
from motor_ft.model.engine import EngineObservation, EngineStatus
from motor_ft.model.errors import FtError, Reason
from tests.support.world.hardware import FakeAdapter, card, with_cards
from tests.support.world.pods import TWO_PODS, D, H, U
from tests.support.world.world import LoopClock, World

pytestmark = pytest.mark.looptime


def events(world: World, *kinds: EventKind, instance_id: int | None = 1) -> list[Event]:
    """Of an instance, or of all, the oldest first."""
    histories = world.controller.histories
    asked = kinds or tuple(EventKind)
    return histories.page(instance_id, asked, after=None, newest_first=False, size=10 * KEPT_EVENTS)


def texts(world: World, *kinds: EventKind, instance_id: int = 1) -> list[str]:
    return [event.text for event in events(world, *kinds, instance_id=instance_id)]


async def test_a_scale_down_can_be_told_from_its_events() -> None:
    """Evidence, decisions, the strategy, phases and what was published, in the order in which they happened."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(1)
        await world.until(lambda: world.status().dead_committed == (1,) and world.can_serve())
        assert texts(world, EventKind.EVIDENCE) == [
            "rank 0 is UNHEALTHY",
            "rank 1 is DEAD (ENGINE_REPORTED)",
            "rank 2 is UNHEALTHY",
            "rank 3 is UNHEALTHY",
            "rank 0 is HEALTHY",
            "rank 2 is HEALTHY",
            "rank 3 is HEALTHY",
        ]
        assert texts(world, EventKind.PHASE) == [
            "phase NORMAL, generation 1",
            "phase DECIDING, generation 2",
            "phase SCALING_DOWN, generation 2",
            "phase POST_SCALE_CLEANUP, generation 2",
            "phase SCALED_DOWN_RUNNING, generation 2",
        ]
        complete = "DEAD [1], UNHEALTHY [0, 2, 3]: complete"
        assert texts(world, EventKind.STRATEGY) == [f"dp_scale_down starts: {complete}", "dp_scale_down succeeded"]
        (decision,) = (event for event in events(world, EventKind.DECISION) if complete in event.text)
        assert decision.attributes == {
            "action": "dp_scale_down",
            "row": "6",
            "phase": "NORMAL",
            "unhealthy": "[0, 2, 3]",
            "dead": "[1]",
            "active": "[0, 1, 2, 3]",
        }
        assert texts(world, EventKind.SERVING) == [
            "the Coordinators route to ranks [0, 1, 2, 3]",
            "no new requests any more",
            "the Coordinators route to ranks [0, 2, 3]",
        ]
        stages = [event.attributes["stage"] for event in events(world, EventKind.STAGE)]
        assert stages == world.observed.stages
        (started,) = {event.attributes["request_id"] for event in events(world, EventKind.STAGE)}
        assert started == world.status().request_id
        told = [event.sequence for event in events(world)]
        assert told == sorted(set(told))


async def test_a_rebuilt_instance_keeps_its_history_and_the_new_one_has_its_own() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(0, 1, 2, 3)
        await world.until(lambda: world.can_serve(2) and world.status().state is InstanceState.DELETED)
        assert texts(world, EventKind.LIFE) == ["the instance is ACTIVE", "the instance is DELETED"]
        assert texts(world, EventKind.STRATEGY)[-1] == "instance_reconfiguration succeeded"
        assert texts(world, EventKind.LIFE, instance_id=2)[-1] == "the instance is ACTIVE"
        everything = events(world, instance_id=None)
        assert {event.instance_id for event in everything} == {1, 2}


async def test_automation_that_stops_is_an_alert() -> None:
    """Nobody restarts the pods."""
    async with World(*TWO_PODS, keeper=False) as world:
        await world.serve()
        await world.lose(0, 1, 2, 3)
        await world.until(lambda: world.status().automation_stopped)
        (alert,) = texts(world, EventKind.ALERT)
        assert alert.startswith("automation stopped, a person has to act: RECONFIGURATION_FAILED")


async def test_hardware_that_comes_and_goes_is_told() -> None:
    async with World(*map(with_cards, TWO_PODS)) as world:
        adapter = FakeAdapter(world)
        await adapter.connect()
        await world.serve()
        fault = card(1, 1)
        for report in (fault, fault):
            await adapter.tell(report)
        await adapter.clear(fault)
        named = "L6 80E18402 on Ascend910-1 of node-1 (ranks [1])"
        assert texts(world, EventKind.HARDWARE) == [f"new: {named}", f"over: {named}"]


async def test_a_removed_rank_that_answers_is_one_alert_for_each_engine_and_nothing_else() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.lose(1)
        await world.until(lambda: world.status().dead_committed == (1,) and world.can_serve())
        before = world.status()
        for incarnation in ("zombie", "zombie", "another"):
            reading = EngineObservation(1, EngineStatus.HEALTHY, incarnation, 1)
            await world.pod(1).tell(EngineHealthy(reading))
        assert [event.attributes for event in events(world, EventKind.ALERT)] == [
            {"rank": "1", "engine_incarnation": "zombie"},
            {"rank": "1", "engine_incarnation": "another"},
        ]
        assert world.status() == before


async def test_a_heartbeat_of_other_ranks_is_refused_and_one_alert() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        for _ in range(3):
            with pytest.raises(FtError, match="TOPOLOGY_MISMATCH"):
                await world.pod(1).tell(Heartbeat(()))
        assert texts(world, EventKind.ALERT) == ["heartbeat of pod pod-1 names ranks [], expected [0, 1] or [0, 1]"]


async def test_a_storm_of_evidence_is_bounded_and_pushes_out_nothing_else() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        before = [event for event in events(world) if event.kind is not EventKind.EVIDENCE]
        for _ in range(KEPT_EVENTS // 2 + 1):
            for status in (U, H):
                await world.see(1, status)
        everything = events(world)
        assert len(everything) == KEPT_EVENTS
        assert [event for event in everything if event.kind is not EventKind.EVIDENCE][: len(before)] == before


async def test_reports_that_change_nothing_are_no_events() -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        await world.see(1, D)
        told = len(events(world, EventKind.EVIDENCE))
        for _ in range(100):
            await world.see(1, D)
        assert len(events(world, EventKind.EVIDENCE)) == told


async def test_histories_of_the_last_deleted_instances_are_kept_and_no_more() -> None:
    histories = Histories(LoopClock(), "life")
    for instance_id in range(1, KEPT_DELETED + 3):
        histories.open(instance_id)
        histories.record(instance_id, EventKind.LIFE, "came")
        histories.bury(instance_id)
    with pytest.raises(FtError) as refused:
        histories.page(2, [EventKind.LIFE], after=None, newest_first=False, size=1)
    assert refused.value.reason is Reason.UNKNOWN_INSTANCE
    kept = histories.page(None, [EventKind.LIFE], after=None, newest_first=False, size=1_000)
    assert [event.instance_id for event in kept] == list(range(3, KEPT_DELETED + 3))
    histories.record(1, EventKind.COMMAND, "late answer of a pod of an instance that is forgotten")
    assert histories.page(None, [EventKind.COMMAND], after=None, newest_first=False, size=1) == []


async def test_long_texts_are_cut_and_empty_attributes_left_out() -> None:
    histories = Histories(LoopClock(), "life")
    histories.open(1)
    for _ in range(2):
        histories.record_once(1, EventKind.ALERT, "x" * 5_000, empty="", absent=None, zero=0, long="y" * 5_000)
    (event,) = histories.page(1, [EventKind.ALERT], after=None, newest_first=False, size=10)
    assert event.text == "x" * MAX_TEXT
    assert event.attributes == {"zero": "0", "long": "y" * MAX_TEXT}
