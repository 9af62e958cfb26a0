"""Pods with their NodeManager, kept alive as a kubelet would."""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from motor_ft.model.errors import FtError
from motor_ft.model.topology import Role
from motor_ft.wire.config import ConfigError
from nodemanager.app import run_node_manager
from nodemanager.config import CapabilityConfig, DeviceConfig, Dialect, EngineConfig, GatewayConfig, NodeManagerConfig
from nodemanager.rpc.local import LocalNode
from tests.simulation.loop import Process
from tests.simulation.machine import Engine, Machine

if TYPE_CHECKING:
    from tests.simulation.world import World

FIRST_ENGINE_PORT = 8000
NODE_MANAGER_PORT = 9000


class SimPod:
    """One pod of a job: its machine, its engines where they are not the NodeManager's children, and the NodeManager."""

    def __init__(self, world: "World", job: int, number: int) -> None:
        self.world = world
        self.job = job
        self.number = number
        self.shape = world.scenario.jobs[job]
        self.ranks: tuple[int, ...] = self.shape.pods[number].ranks
        self.headless = self.shape.pods[number].headless
        self.machine = Machine(f"10.0.{job}.{number + 1}", clock_sec=1_000.0 + 17 * number)
        self.node = f"node-{job}-{number // 2}"
        self.process: Process | None = None
        self.task: asyncio.Task[None] | None = None
        self.local: LocalNode | None = None
        self.uid = ""
        self.starts = 0
        self.created_at = 0.0
        self.pids: dict[int, int] = {}
        self._stop = asyncio.Event()
        self.seconds: dict[int, Engine] = {}
        """Headless ones."""
        self._uids = 0
        self._closed = False

    @property
    def name(self) -> str:
        """As in a scenario."""
        return f"{self.job}/{self.number}"

    @property
    def address(self) -> str:
        """Of the NodeManager."""
        return f"{self.machine.name}:{NODE_MANAGER_PORT}"

    def port(self, rank: int) -> int:
        """Of the engine of a rank."""
        return FIRST_ENGINE_PORT + (0 if self.shape.one_server else rank)

    def holds(self, request_id: str) -> bool:
        """Its disk says that it is, or was, guarded by this transaction."""
        line = self.machine.disk.get(f"/state/{self.uid}", b"")
        return f'"request_id":"{request_id}"'.encode() in line or f'"ended":"{request_id}"'.encode() in line

    def create(self) -> None:
        """A new pod: nothing is left of an earlier one, its engines start where the NodeManager does not do it."""
        self._uids += 1
        self.created_at = self.world.loop.time()
        self.uid = f"pod-{self.job}-{self.number}-{self._uids}"
        self.machine.disk.clear()
        self.boot_engines()
        self.start()

    def boot_engines(self) -> None:
        """Those that are no children of the NodeManager."""
        if self.shape.mode != "launched":
            fleet = self.world.fleets[self.job]
            for rank in self.ranks:
                self.pids[rank] = fleet.start(rank, self.machine, self.port(rank)).root.pid

    def start(self) -> None:
        """A process of the NodeManager."""
        self.starts += 1
        self.process = self.world.process(f"node {self.name}", self.machine)
        self._stop = asyncio.Event()
        work = run_node_manager(self._config(), self._stop)
        self.task = self.world.loop.create_task(
            self._main(work), name=f"node {self.name}", context=self.process.context.copy()
        )
        self.world.trace("pod", f"node {self.name}", f"starts as {self.uid}")

    async def _main(self, work: Coroutine[Any, Any, None]) -> None:
        """The process to its end: by itself, which ends the pod, by a defect, or killed."""
        why = "ended"
        try:
            await work
            self.world.oracle.ended()
        except (FtError, ConfigError) as error:
            why = f"gave up: {error}"
        except Exception as error:  # noqa: BLE001  # a process that ends by a defect
            if self.process is not None and self.process.alive:
                self.world.oracle.defect({"event": f"node {self.name} has crashed", "exc_info": error})
        finally:
            process = self.process
            if process is not None and process.alive:
                self.world.trace("pod", f"node {self.name}", why)
                self.world.loop.call_soon(self._exited, process, context=self.world.outside)

    def _exited(self, process: Process) -> None:
        """All of the pod ends with its NodeManager."""
        if process.alive:
            process.kill()
            self.end_engines()
            self._again(self._replace if self.shape.new_pod else self._restart)

    def terminate(self) -> None:
        """SIGTERM."""
        self._stop.set()

    def kill(self) -> None:
        """SIGKILL of the NodeManager alone; its children die with it."""
        if self.process is not None and self.process.alive:
            self.world.trace("pod", f"node {self.name}", "killed")
            self.process.kill()
            if self.shape.mode == "launched":
                self.end_engines()
            self._again(self.start)

    def reboot(self) -> None:
        """The machine loses power; what is on disk is there afterwards."""
        if self.process is not None:
            self.process.kill()
        self.end_engines()
        self.machine.boots += 1
        self.machine.slept_sec = 0.0
        self._again(self._restart)

    def end_engines(self) -> None:
        """No process of an engine of this pod is left."""
        fleet = self.world.fleets[self.job]
        for rank in self.ranks:
            if rank in fleet.seats:
                fleet.end(fleet.seats[rank].engine)
        for second in self.seconds.values():
            fleet.end(second)

    def _replace(self) -> None:
        self.create()

    def _restart(self) -> None:
        self.boot_engines()
        self.start()

    def _again(self, how: Callable[[], None]) -> None:
        self.world.loop.call_later(self.shape.restart, self._unless_closed, how, context=self.world.outside)

    def _unless_closed(self, how: Callable[[], None]) -> None:
        if not self._closed and (self.process is None or not self.process.alive):
            how()

    def close(self) -> None:
        """For good."""
        self._closed = True
        if self.process is not None:
            self.process.kill()
        self.end_engines()

    def _config(self) -> NodeManagerConfig:
        job = self.shape
        return NodeManagerConfig(
            job_name=f"job-{self.job}",
            model_name="model",
            role=Role(job.role),
            node_name=self.node,
            pod_name=f"pod-{self.job}-{self.number}",
            pod_uid=self.uid,
            pod_ip=self.machine.name,
            listen=self.address,
            controllers=tuple(self.world.controller_addresses),
            state_dir=f"/state/{self.uid}",
            log_dir=tempfile.gettempdir(),
            dp_size=job.dp_size,
            engines=(*(self._engine(rank) for rank in self.ranks), *(self._second(rank) for rank in self.headless)),
            capability=None
            if job.unstated
            else CapabilityConfig(
                dialect=cast(Dialect, job.dialect),
                engine_ft=True,
                scale_down_supported=job.dialect != "vllm_0_33",
                external_lb=True,
                auto_recovery=False,
                eplb=not job.gate_closed,
                num_redundant_experts=8 + (self.number if job.mixed else 0),
                engine_recovery_timeout_sec=job.window,
            ),
            gateway=GatewayConfig(dialect=cast(Dialect, job.dialect) if job.one_server or job.unstated else "auto"),
            suicide=job.suicide,
            stop_grace_sec=0.5,
        )

    def _engine(self, rank: int) -> EngineConfig:
        port, mode = self.port(rank), self.shape.mode
        if rank and self.shape.one_server:
            mode = "endpoint"
        command = ("engine", str(self.job), str(self.number), str(rank)) if mode == "launched" else ()
        pid = self.pids[rank] if mode == "adopted" else 0
        devices = (DeviceConfig(device_id=str(rank)),)
        return EngineConfig(rank=rank, port=port, command=command, pid=pid, devices=devices)

    def _second(self, rank: int) -> EngineConfig:
        launched = self.shape.mode == "launched" and not self.shape.one_server
        command = ("headless", str(self.job), str(self.number), str(rank)) if launched else ()
        return EngineConfig(rank=rank, port=FIRST_ENGINE_PORT + 500 + rank, headless=True, command=command)
