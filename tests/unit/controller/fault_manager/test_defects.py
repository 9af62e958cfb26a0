"""A defect of ours is loud, ends nothing quietly, and is not acted upon (architecture.md section 5)."""

import asyncio
from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller.core.phases import Phase
from controller.core.status import InstanceState
from controller.fault_manager import recovery
from tests.support.world.adapters import Trouble
from tests.support.world.pods import TWO_PODS, U
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime


@pytest.fixture(name="logs")
def _logs() -> Iterator[list[MutableMapping[str, Any]]]:
    with capture_logs() as logs:
        yield logs


def crashes(logs: list[MutableMapping[str, Any]]) -> list[str]:
    """Events that were logged with an exception."""
    return [str(line["event"]) for line in logs if line.get("exc_info") and line["log_level"] == "error"]


async def test_an_effect_that_crashes_fails_its_transaction_and_leads_to_reconfiguration(
    logs: list[MutableMapping[str, Any]],
) -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.store.script[Phase.SCALING_DOWN] = Trouble.BROKEN
        await world.lose(1)
        await world.until(lambda: world.can_serve(2))
        assert world.observed.strategies[0] == ("dp_scale_down", "failed")
        reasons = {reason for _, _, reason in world.stops}
        assert reasons == {"INTERRUPTED: the strategy ended with an unexpected RuntimeError, see the log"}
        assert "task crashed" in crashes(logs)


async def test_a_reconfiguration_that_crashes_stops_automation(logs: list[MutableMapping[str, Any]]) -> None:
    async with World(*TWO_PODS) as world:
        await world.serve()
        world.store.script[Phase.RECONFIGURING] = Trouble.BROKEN
        await world.lose(0, 1, 2, 3)
        await world.until(lambda: world.status().automation_stopped)
        assert world.observed.stopped == [1]
        assert "RuntimeError" in world.status().last_error
        assert "a defect" not in world.status().last_error
        assert "task crashed" in crashes(logs)


async def test_a_step_that_crashes_is_loud_and_the_actor_goes_on_without_deciding(
    monkeypatch: pytest.MonkeyPatch, logs: list[MutableMapping[str, Any]]
) -> None:
    def defective(*_: object) -> None:
        raise ZeroDivisionError("a defect of the core")

    async with World(*TWO_PODS) as world:
        await world.serve()
        with monkeypatch.context() as broken:
            broken.setattr(recovery, "decide", defective)
            await world.see(1, U)
            await world.until(lambda: world.status().automation_stopped)
            await asyncio.sleep(3 * SETTINGS.strategy_center_check_interval)
        assert set(crashes(logs)) == {"step crashed"}
        assert world.observed.stopped == [1]
        assert [line["event"] for line in logs].count("automation stopped, a person has to act") == 1
        assert world.status().last_error.endswith("an unexpected ZeroDivisionError, see the log")
        await world.lose(1)
        pod = world.pod(1)
        pod.state = replace(pod.state, retired=frozenset({1}))
        await pod.tell(pod.snapshot())
        await world.pod(2).disconnect()
        await asyncio.sleep(SETTINGS.fault_collection_timeout + 2 * SETTINGS.heartbeat_ttl)
        assert world.controller.started == []
        assert world.status().last_decision == "none: automation is stopped"
        assert world.status().state is InstanceState.INACTIVE, "the actor still sees what happens"
