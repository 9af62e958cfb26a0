"""What the daemons find in place of the real machine. The only file that reaches into their modules."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import structlog

import controller.app
import controller.metrics
import gateway.app
import gateway.metrics
import motor_ft.wire.metrics
import nodemanager.app
import nodemanager.metrics
import nodemanager.process
import nodemanager.store_port
import nodemanager.supervisor
import nodemanager.watcher
from controller.core.ports import Store
from controller.fault_manager.board import Board
from gateway.mindcluster import metrics as mindcluster
from nodemanager.rpc.local import LocalNode
from tests.simulation.engines import SimHttp
from tests.simulation.loop import PROCESS, Process
from tests.simulation.machine import Machine, SimClock, SimJournal, SimSocket, SimUuid, WatchedProcess
from tests.simulation.store import SimStore

if TYPE_CHECKING:
    from tests.simulation.world import World

FAST_POLL_SEC = 1.0
"""Instead of ten times a second: the order of events is the same, and there are far fewer of them."""


class _NoServer:
    """In place of the metrics server."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    async def start(self) -> int:
        return 1

    async def stop(self) -> None:
        pass


class _NoMetric:
    """In place of every metric: nobody reads them here."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def labels(self, *_: object) -> "_NoMetric":
        return self

    def inc(self, *_: object) -> None:
        pass

    set = observe = set_function = remove = inc

    def time(self) -> AbstractContextManager[None]:
        return nullcontext()


def _me() -> Process:
    process = PROCESS.get()
    assert process is not None
    return process


@contextmanager
def patched(world: "World") -> Iterator[None]:
    """The daemons' modules see the world; afterwards they see the machine again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpc.aio, "insecure_channel", world.fabric.channel)
        patch.setattr(grpc.aio, "server", world.fabric.server)
        for module in (controller.metrics, nodemanager.metrics, gateway.metrics, mindcluster, motor_ft.wire.metrics):
            for kind in {"Counter", "Gauge", "Histogram"} & vars(module).keys():
                patch.setattr(module, kind, _NoMetric)
        _controller(world, patch)
        _node_manager(world, patch)
        _gateway(world, patch)
        before = structlog.get_config()
        structlog.configure(
            processors=[world.log],
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=_Silent,
            cache_logger_on_first_use=False,
        )
        try:
            yield
        finally:
            structlog.configure(**before)


class _Silent:
    """Where the last processor's output goes; there is none."""

    def __init__(self, *_: object) -> None:
        self.name = ""

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None


def _controller(world: "World", patch: pytest.MonkeyPatch) -> None:
    def store(told: Any, *, on_lost: Any, **_: object) -> Store:
        clock = SimClock(world.loop, world.machines[_me().host])
        return SimStore(world.vault, _me(), clock.now, told, on_lost)

    patch.setattr(controller.app, "EtcdClient", lambda *_, told, **__: told)
    patch.setattr(controller.app, "EtcdStore", store)
    patch.setattr(controller.app, "MetricsServer", _NoServer)
    patch.setattr(controller.app, "SystemClock", lambda: SimClock(world.loop, world.machines[_me().host]))
    patch.setattr(controller.app, "uuid", SimUuid(world.chance))

    def board() -> Board:
        world.boards[_me()] = made = Board()
        return made

    patch.setattr(controller.app, "Board", board)


def _node_manager(world: "World", patch: pytest.MonkeyPatch) -> None:
    def machine() -> Machine:
        return world.machines[_me().host]

    patch.setattr(nodemanager.app, "SystemClock", lambda: SimClock(world.loop, machine()))
    patch.setattr(
        nodemanager.app,
        "Journal",
        lambda directory, told: SimJournal(machine(), directory, told, world.oracle.journalled),
    )
    patch.setattr(nodemanager.app, "configure_logging", lambda **_: None)
    patch.setattr(nodemanager.app, "uuid", SimUuid(world.chance))
    patch.setattr(nodemanager.app, "random", SimpleNamespace(random=world.chance.random))
    patch.setattr(nodemanager.app, "_private_directory", lambda path, stack: str(path))
    patch.setattr(
        nodemanager.store_port,
        "socket",
        SimpleNamespace(AF_INET=0, SOCK_STREAM=0, socket=lambda *_: SimSocket(machine())),
    )

    def local(*args: Any) -> LocalNode:
        node = LocalNode(*args)
        if (pod := world.pod_of(_me())) is not None:
            pod.local = node
        return node

    patch.setattr(nodemanager.app, "LocalNode", local)

    class Adopted(WatchedProcess):
        def __init__(self, *args: Any) -> None:
            super().__init__(world.table, *args)

    class Launched(WatchedProcess):
        def __init__(self, command: Sequence[str], _: object, on_exit: Any) -> None:
            super().__init__(world.table, world.launch(command), " ".join(command), on_exit)

    patch.setattr(nodemanager.supervisor, "Process", Adopted)
    patch.setattr(nodemanager.supervisor, "Launched", Launched)
    patch.setattr(nodemanager.supervisor, "shutil", SimpleNamespace(which=lambda command: command))
    patch.setattr(
        nodemanager.supervisor, "procfs", SimpleNamespace(descendants=lambda pid, _: world.table.descendants(pid))
    )
    patch.setattr(nodemanager.watcher, "FAST_INTERVAL_SEC", FAST_POLL_SEC)


def _gateway(world: "World", patch: pytest.MonkeyPatch) -> None:
    build = gateway.app.build_engine_service
    patch.setattr(nodemanager.app, "build_engine_service", partial(build, clock=world.loop.time))
    patch.setattr(gateway.app, "EngineHttp", lambda _token: SimHttp(world.seat_at, world.posted, _me()))
    nanoseconds = SimpleNamespace(monotonic=time.monotonic, monotonic_ns=lambda: int(world.loop.time() * 1e9))
    patch.setattr(gateway.app, "time", nanoseconds)
