"""Controllers and Coordinators, started again when they end."""

import asyncio
from typing import TYPE_CHECKING

from controller.app import serve
from controller.config import ControllerConfig, DpScaleDownConfig, EtcdConfig, FaultToleranceConfig, StoreConfig
from controller.core.hardware import LinkDown
from controller.core.probe import CompletionProbe
from motor_ft.model.errors import FtError
from tests.simulation.coordinator import SimCoordinator
from tests.simulation.loop import Process
from tests.simulation.machine import Machine

if TYPE_CHECKING:
    from tests.simulation.world import World

RESTART_SEC = 1.0


class SimController:
    """One Controller, and those that are started in its place."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.machine = Machine(f"10.9.0.{number + 1}", clock_sec=5_000.0 + 100 * number)
        self.process: Process | None = None
        self._stop = asyncio.Event()
        self._closed = False

    @property
    def name(self) -> str:
        return f"controller {self.number}"

    @property
    def address(self) -> str:
        return f"{self.machine.name}:50051"

    def start(self) -> None:
        """A process."""
        self.process = self.world.process(self.name, self.machine)
        self._stop = asyncio.Event()
        self.world.loop.create_task(self._main(self.process), name=self.name, context=self.process.context.copy())
        self.world.trace("process", self.name, "starts")

    async def _main(self, process: Process) -> None:
        why = "ended"
        try:
            await serve(self._config(), self._stop)
            self.world.oracle.ended()
        except FtError as error:
            why = str(error.reason)
        except Exception as error:  # noqa: BLE001  # a process that ends by a defect
            if process.alive:
                self.world.oracle.defect({"event": f"{self.name} has crashed", "exc_info": error})
        finally:
            if process.alive:
                self.world.trace("process", self.name, why)
                self.world.loop.call_soon(self.kill, context=self.world.outside)

    def terminate(self) -> None:
        """SIGTERM."""
        self._stop.set()

    def kill(self) -> None:
        """SIGKILL, and a new one after a moment."""
        if self.process is not None and self.process.alive:
            self.world.trace("process", self.name, "gone")
            self.process.kill()
            self.world.loop.call_later(RESTART_SEC, self._again, context=self.world.outside)

    def _again(self) -> None:
        if not self._closed:
            self.start()

    def close(self) -> None:
        """For good."""
        self._closed = True
        if self.process is not None:
            self.process.kill()

    def _config(self) -> ControllerConfig:
        config = self.world.scenario.config
        return ControllerConfig(
            listen=self.address,
            store=StoreConfig(kind="etcd", etcd=EtcdConfig(endpoints=["http://store:2379"])),
            coordinators=[f"grpc://{each.address}" for each in self.world.coordinators],
            fault_tolerance_config=FaultToleranceConfig(
                enable_dp_scale_down=config.scale_down,
                enable_dp_scale_up=config.scale_up,
                fast_recovery=config.fast_recovery,
                enable_engine_relaunch=config.relaunch,
                enable_token_reinference=config.reinference,
                token_reinference_timeout_sec=10.0,
                scale_p2d_wait_sec=5.0,
                hardware_type=config.hardware_type,
                hardware_link_down=LinkDown(config.link_down),
                completion_probe=CompletionProbe(config.probe),
                idle_probe=config.idle_probe,
                dp_scale_down_config=DpScaleDownConfig(
                    request_timeout_sec=config.request_timeout,
                    poll_interval_sec=config.poll,
                    execution_deadline_sec=config.execution,
                ),
                fault_collection_timeout_sec=config.collection,
                hardware_ft_correlation_window_sec=config.correlation,
                heartbeat_interval_sec=config.heartbeat,
                heartbeat_ttl_sec=config.ttl,
                assemble_timeout_sec=config.assemble,
                status_unreachable_threshold=config.threshold,
                engine_poll_interval_sec=2 * config.poll,
            ),
        )


class CoordinatorHost:
    """One Coordinator, and those that are started in its place."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.machine = Machine(f"10.8.0.{number + 1}")
        self.name = f"coordinator {number}"
        self.servicer = SimCoordinator(self.address, world.viewed)
        self.process: Process | None = None

    @property
    def address(self) -> str:
        return f"{self.machine.name}:50060"

    def start(self) -> None:
        """A process that knows nothing."""
        if self.process is None or not self.process.alive:
            self.process = self.world.process(self.name, self.machine)
            self.world.loop.create_task(self.servicer.run(), name=self.name, context=self.process.context.copy())

    def restart(self, after: float) -> None:
        """It ends, and comes back."""
        self.kill()
        self.world.loop.call_later(after, self.start, context=self.world.outside)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
        self.servicer.view, self.servicer.paused, self.servicer.stamp = {}, set(), (0, 0)
