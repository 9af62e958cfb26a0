"""The hardware faults of one instance: told by the desk, mapped to its ranks, correlated with what its engines say."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from controller.core.changes import Change, of_concern
from controller.core.correlation import (
    Concern,
    Correlation,
    at_ready,
    carried_out,
    cleared,
    concern_of,
    correlate,
    seen,
)
from controller.core.records import IdentityRecord
from controller.fault_manager.environment import Settings
from controller.fault_manager.hardware import HardwareDesk
from motor_ft.model.hardware import FaultKey, FaultLevel, HardwareFault
from motor_ft.model.topology import Registration


class Concerns:
    """``hardware.Watcher`` of one instance; ``on_change`` is told every change of a fault that touches it."""

    def __init__(self, desk: HardwareDesk, settings: Settings, on_change: Callable[[Iterator[Change]], None]) -> None:
        self._desk = desk
        self._settings = settings
        self._on_change = on_change
        self._pods: tuple[Registration, ...] = ()
        self.correlation = Correlation()

    @property
    def _nodes(self) -> frozenset[str]:
        return frozenset(pod.node_name for pod in self._pods if pod.node_name)

    @property
    def heard(self) -> bool:
        """What is known of the instance's nodes is all that there is."""
        return self._desk.heard(self._nodes)

    @property
    def problems(self) -> str:
        """Why what is known of the instance's nodes may be incomplete; empty when there is no reason."""
        return self._desk.problems(self._nodes)

    @property
    def baseline(self) -> tuple[FaultKey, ...]:
        """Faults that start nothing until they clear and return, as they are stored."""
        return tuple(sorted(self.correlation.baseline))

    @property
    def spent(self) -> tuple[tuple[FaultKey, FaultLevel], ...]:
        """Faults for which everything was done, as they are stored."""
        return tuple(sorted(self.correlation.spent.items()))

    def restore(self, identity: IdentityRecord) -> None:
        """What an earlier Controller has stored."""
        baseline, spent = frozenset(identity.hardware_baseline), dict(identity.hardware_spent)
        self.correlation = replace(self.correlation, baseline=baseline, spent=spent)

    def carried_out(self, concerns: Iterable[Concern]) -> None:
        """What these faults ask for was done."""
        self.correlation = carried_out(self.correlation, concerns)

    def follow(self, pods: tuple[Registration, ...]) -> None:
        """These are the instance's pods, now that they are all there, or again after one has registered anew."""
        self._pods = pods
        faults = self._desk.watch(self, self._nodes)
        concerns = {fault.key: concern for fault in faults if (concern := self._concern(fault)) is not None}
        self.correlation = replace(self.correlation, concerns=concerns)

    def settle(self) -> None:
        """READY: what is there by now is the baseline."""
        self.correlation = at_ready(self.correlation)

    def stood_still(self, now: float) -> None:
        """This Controller has not run: engines that have noticed may not have been heard yet, so a window begins."""
        if self.correlation.hardware_first is not None and not self.correlation.noticed:
            self.correlation = replace(self.correlation, hardware_first=now)

    def leave(self) -> None:
        """The instance is gone."""
        self._desk.unwatch(self)

    def hardware_changed(self, key: FaultKey, fault: HardwareFault | None, *, new: bool) -> None:
        """A fault on one of the instance's nodes is there, has changed, or is over."""
        before = self.correlation
        if fault is None:
            self.correlation = cleared(before, key)
        else:
            self.correlation = seen(before, key, self._concern(fault), new=new)
        if self.correlation != before:
            self._on_change(of_concern(before.concerns.get(key), self.correlation.concerns.get(key)))

    def correlate(self, *, active: frozenset[int], unhealthy: frozenset[int], dead: frozenset[int], now: float) -> None:
        """The hardware, or what the engines say, may have changed."""
        window = self._settings.correlation_window
        self.correlation = correlate(
            self.correlation, active=active, unhealthy=unhealthy, dead=dead, window_sec=window, now=now
        )

    def _concern(self, fault: HardwareFault) -> Concern | None:
        return concern_of(fault, self._pods, self._settings.hardware_policy)
