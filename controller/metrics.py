"""Metrics of the Controller beyond those of its RPCs."""

from collections.abc import Callable
from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from controller.core.phases import Phase
from controller.core.serving import ServingEvent

_STAGE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class ControllerMetrics:
    """What the FaultManager, the strategies and the pusher count; series of an instance go with ``forget``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._leading = Gauge("motor_ft_leading", "1 while this Controller leads and decides.", registry=registry)
        self._behind = Gauge(
            "motor_ft_epoch_behind_fleet",
            "1 when it refuses to lead until an operator raises the epoch.",
            registry=registry,
        )
        self._store = Gauge("motor_ft_store_available", "1 while the store can be written.", registry=registry)
        self._store_seconds = Histogram(
            "motor_ft_store_probe_seconds",
            "Duration of the write that is tried every few seconds.",
            registry=registry,
            buckets=_STAGE_BUCKETS,
        )
        self._unreadable = Gauge(
            "motor_ft_unreadable_instances",
            "Stored instances that cannot be read; they are not served, and their pods are stopped.",
            registry=registry,
        )
        self._clock_steps = Counter("motor_ft_clock_steps", "How often the wall clock was set.", registry=registry)
        self._coordinators = Gauge(
            "motor_ft_coordinator_confirms",
            "1 when a Coordinator has confirmed the last request.",
            ["coordinator"],
            registry=registry,
        )
        self._phase = Gauge(
            "motor_ft_phase", "1 for the phase that is reported.", ["instance_id", "phase"], registry=registry
        )
        self._serving = Gauge(
            "motor_ft_serving_published", "1 when every Coordinator holds the view.", ["instance_id"], registry=registry
        )
        self._stopped = Gauge(
            "motor_ft_automation_stopped", "1 when a person has to look.", ["instance_id"], registry=registry
        )
        self._degraded = Gauge(
            "motor_ft_degraded",
            "How much of what a recovery of the instance needs does not work; its status names it.",
            ["instance_id"],
            registry=registry,
        )
        self._decisions = Counter("motor_ft_decisions", "Decisions taken.", ["action"], registry=registry)
        self._transactions = Counter(
            "motor_ft_transactions", "Strategies that ended.", ["strategy", "outcome"], registry=registry
        )
        self._adapters = Gauge("motor_ft_hardware_adapters", "Hardware adapters that are connected.", registry=registry)
        self._problems = Gauge(
            "motor_ft_hardware_problems",
            "Hardware adapters that are gone, and sources of them that do not work.",
            registry=registry,
        )
        self._hardware = Gauge(
            "motor_ft_hardware_faults", "Hardware faults that hold, of any level.", registry=registry
        )
        self._refreshes = Counter(
            "motor_ft_coordinator_refreshes",
            "Requests to Coordinators, confirmed or not.",
            ["event", "confirmed"],
            registry=registry,
        )
        self._stages = Histogram(
            "motor_ft_stage_seconds",
            "Duration of one stage of a scale-down.",
            ["stage"],
            registry=registry,
            buckets=_STAGE_BUCKETS,
        )
        for event in ServingEvent:
            for confirmed in (True, False):
                self._refreshes.labels(event, _flag(confirmed))  # a rate needs the zero before the first one

    def unreadable(self, count: int) -> None:
        """Stored instances that cannot be read."""
        self._unreadable.set(count)

    def standing(self, leads: Callable[[], bool]) -> None:
        """Ask ``leads`` at every scrape."""
        self._leading.set_function(lambda: float(leads()))

    def epoch_behind_fleet(self, behind: bool) -> None:
        """An operator has to raise the epoch."""
        self._behind.set(behind)

    def store(self, available: bool) -> None:
        """The store can be written, or not."""
        self._store.set(available)

    def store_probe(self, seconds: float) -> None:
        """A write was tried."""
        self._store_seconds.observe(seconds)

    def clock_step(self) -> None:
        """The wall clock was set."""
        self._clock_steps.inc()

    def phase(self, instance_id: int, phase: Phase) -> None:
        """The phase that is reported of an instance."""
        for other in Phase:
            self._phase.labels(instance_id, other).set(other is phase)

    def serving(self, instance_id: int, published: bool) -> None:
        """Whether the Coordinators hold the projection."""
        self._serving.labels(instance_id).set(published)

    def automation_stopped(self, instance_id: int, stopped: bool) -> None:
        """A person has to look at the instance."""
        self._stopped.labels(instance_id).set(stopped)

    def degraded(self, instance_id: int, count: int) -> None:
        """So much does not work that a recovery of the instance needs."""
        self._degraded.labels(instance_id).set(count)

    def hardware(self, adapters: int, problems: int, faults: int) -> None:
        """What is known of the hardware, and how well."""
        self._adapters.set(adapters)
        self._problems.set(problems)
        self._hardware.set(faults)

    def decision(self, action: str) -> None:
        """A decision that changed something."""
        self._decisions.labels(action).inc()

    def strategy(self, name: str, outcome: str) -> None:
        """A strategy has ended."""
        self._transactions.labels(name, outcome).inc()

    def stage(self, name: str, seconds: float) -> None:
        """One stage of a scale-down took this long."""
        self._stages.labels(name).observe(seconds)

    def refresh(self, coordinator: str, event: ServingEvent, confirmed: bool) -> None:
        """One request to a Coordinator was answered, or not."""
        self._coordinators.labels(coordinator).set(confirmed)
        self._refreshes.labels(event, _flag(confirmed)).inc()

    def forget(self, instance_id: int) -> None:
        """The instance is gone."""
        for phase in Phase:
            _remove(self._phase, instance_id, phase)
        for gauge in (self._serving, self._stopped, self._degraded):
            _remove(gauge, instance_id)


def _remove(gauge: Gauge, *labels: object) -> None:
    with suppress(KeyError):  # an instance that was never shown has none
        gauge.remove(*labels)


def _flag(value: bool) -> str:
    return str(value).lower()
