"""What every instance actor needs from the world; built once by the composition root."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from controller.core.case import Builder
from controller.core.decision import Action
from controller.core.hardware import HardwarePolicy
from controller.core.phases import Phase
from controller.core.ports import Clock, ServingPublisher, Store
from controller.core.probe import CompletionProbe
from controller.core.reports import Welcome
from controller.core.transaction import Limits
from controller.fault_manager import hardware
from controller.fault_manager.board import Board
from controller.fault_manager.history import Histories
from motor_ft.model.command import Command
from motor_ft.model.engine import RankProbe


@dataclass(frozen=True, slots=True)
class Settings:
    """Switches and times (seconds) of recovery.md section 9."""

    enable_fault_tolerance: bool = True
    enable_dp_scale_down: bool = False
    enable_dp_scale_up: bool = False
    fast_recovery: bool = False
    enable_engine_relaunch: bool = True
    enable_scale_p2d: bool = True
    enable_token_reinference: bool = True
    completion_probe: CompletionProbe = CompletionProbe.AUTO
    idle_probe: bool = False
    limits: Limits = field(default_factory=Limits)
    fault_collection_timeout: float = 60.0
    engine_recovery_timeout: float = 120.0
    strategy_center_check_interval: float = 10.0
    heartbeat_interval: float = 3.0
    heartbeat_ttl: float = 10.0
    heartbeat_ttl_other: float = 300.0
    assemble_timeout: float = 600.0
    poll_interval: float = 1.0
    engine_request_timeout: float = 4.0
    status_unreachable_threshold: int = 1
    correlation_window: float = 5.0
    hardware_policy: HardwarePolicy = field(default_factory=HardwarePolicy)
    engine_relaunch_timeout: float = 600.0
    engine_relaunch_poll_interval: float = 5.0
    engine_relaunch_misses: int = 3
    scale_p2d_wait: float = 60.0
    token_reinference_timeout: float = 60.0

    @property
    def scale_down_enabled(self) -> bool:
        """``enable_dp_scale_down_proxy`` of RFC section 6."""
        return self.enable_fault_tolerance and self.enable_dp_scale_down

    @property
    def quiet(self) -> float:
        """So long nothing is heard of any pod of an instance when it is this Controller that cannot hear."""
        return min(self.heartbeat_ttl, 2 * self.heartbeat_interval)

    def welcome(self, epoch: int, instance_id: int = 0, generation: int = 0) -> Welcome:
        """Answer to Hello; of an adapter, which belongs to no instance, unless one is named."""
        return Welcome(
            instance_id=instance_id,
            controller_epoch=epoch,
            generation=generation,
            heartbeat_interval_sec=self.heartbeat_interval,
            heartbeat_ttl_sec=self.heartbeat_ttl,
            enable_dp_scale_down_proxy=self.scale_down_enabled,
            poll_interval_sec=self.poll_interval,
            status_unreachable_threshold=self.status_unreachable_threshold,
            engine_request_timeout_sec=self.engine_request_timeout,
        )


class Observer(hardware.Observer, Protocol):
    """Metrics of the FaultManager."""

    def epoch_behind_fleet(self, behind: bool) -> None:
        """Whether this Controller waits for an operator to raise its epoch."""
        ...

    def phase(self, instance_id: int, phase: Phase) -> None:
        """The phase that is reported."""
        ...

    def serving(self, instance_id: int, published: bool) -> None:
        """Whether the Coordinators hold the projection."""
        ...

    def unreadable(self, count: int) -> None:
        """Stored instances that cannot be read."""
        ...

    def degraded(self, instance_id: int, count: int) -> None:
        """How much of what a recovery of the instance needs does not work."""
        ...

    def decision(self, action: str) -> None:
        """A decision that changed something."""
        ...

    def strategy(self, name: str, outcome: str) -> None:
        """A strategy has ended."""
        ...

    def automation_stopped(self, instance_id: int, stopped: bool) -> None:
        """A person has to look at the instance."""
        ...

    def forget(self, instance_id: int) -> None:
        """The instance is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything an actor may use."""

    settings: Settings
    clock: Clock
    new_id: Callable[[], str]
    store: Store
    publisher: ServingPublisher
    strategies: Mapping[Action, Builder]
    """Those that are switched on; an instance runs at most one."""
    board: Board
    histories: Histories
    observer: Observer
    probe: Callable[[str, Command, Sequence[int], float], Awaitable[tuple[RankProbe, ...]]]
    """``NodeManagers.probe``."""
    connect: Callable[[str], None]
    """Have a connection to a NodeManager's ``host:port`` ready before a fault needs it."""
    forget: Callable[[str], Awaitable[None]]
    """``NodeManagers.forget``."""
    recycle: Callable[[str, Command], None]
    """``NodeManagers.recycle``."""
    store_problem: Callable[[], str] = lambda: ""
    """Why the store cannot be written now; empty when it can. Recoveries wait for it."""
    degraded: Callable[[], Sequence[str]] = lambda: ()
    """What every instance needs and does not work now: the store, Coordinators."""
