"""What the Controller's metrics show."""

from prometheus_client import CollectorRegistry

from controller.core.phases import Phase
from controller.core.serving import ServingEvent
from controller.metrics import ControllerMetrics


def phases(registry: CollectorRegistry, instance: str) -> dict[str, float | None]:
    """Value of every phase series of an instance."""
    return {
        phase: registry.get_sample_value("motor_ft_phase", {"instance_id": instance, "phase": phase}) for phase in Phase
    }


def test_exactly_one_phase_is_set() -> None:
    registry = CollectorRegistry()
    metrics = ControllerMetrics(registry)
    metrics.phase(1, Phase.NORMAL)
    metrics.phase(1, Phase.DECIDING)
    assert [phase for phase, value in phases(registry, "1").items() if value] == [Phase.DECIDING]
    assert None not in phases(registry, "1").values()


def test_a_gone_instance_leaves_no_series_and_takes_no_other_with_it() -> None:
    registry = CollectorRegistry()
    metrics = ControllerMetrics(registry)
    for instance_id in (1, 11):
        metrics.phase(instance_id, Phase.NORMAL)
        metrics.serving(instance_id, published=True)
        metrics.automation_stopped(instance_id, stopped=True)
    metrics.forget(1)
    metrics.forget(2)
    assert set(phases(registry, "1").values()) == {None}
    assert registry.get_sample_value("motor_ft_serving_published", {"instance_id": "1"}) is None
    assert registry.get_sample_value("motor_ft_serving_published", {"instance_id": "11"}) == 1
    assert phases(registry, "11")[Phase.NORMAL] == 1


def test_hardware_evidence_is_shown_with_its_gaps() -> None:
    registry = CollectorRegistry()
    ControllerMetrics(registry).hardware(adapters=1, problems=2, faults=3)
    names = ("adapters", "problems", "faults")
    assert [registry.get_sample_value(f"motor_ft_hardware_{name}") for name in names] == [1, 2, 3]


def test_counters_and_stages() -> None:
    registry = CollectorRegistry()
    metrics = ControllerMetrics(registry)
    metrics.decision("scale_down")
    metrics.strategy("dp_scale_down", "succeeded")
    metrics.stage("guard", 0.02)
    metrics.refresh("http://c:1", ServingEvent.DEL, confirmed=False)
    value = registry.get_sample_value
    assert value("motor_ft_decisions_total", {"action": "scale_down"}) == 1
    assert value("motor_ft_transactions_total", {"strategy": "dp_scale_down", "outcome": "succeeded"}) == 1
    assert value("motor_ft_stage_seconds_sum", {"stage": "guard"}) == 0.02
    assert value("motor_ft_coordinator_refreshes_total", {"event": "del", "confirmed": "false"}) == 1
    assert value("motor_ft_coordinator_refreshes_total", {"event": "del", "confirmed": "true"}) == 0
    assert value("motor_ft_coordinator_confirms", {"coordinator": "http://c:1"}) == 0
    metrics.refresh("http://c:1", ServingEvent.SET, confirmed=True)
    assert value("motor_ft_coordinator_confirms", {"coordinator": "http://c:1"}) == 1
