"""A Coordinator that speaks gRPC: refuses what is older than it has seen, and forgets everything when it restarts."""

import asyncio
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry

from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import coordinator_pb2, coordinator_pb2_grpc
from motor_ft.wire.metrics import RpcMetrics
from motor_ft.wire.policy import POLICIES
from motor_ft.wire.server import RpcServer

View = dict[int, frozenset[int]]


class SimCoordinator(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """``view``: ranks that requests reach, by instance. ``on_view`` is told of every change that was accepted."""

    def __init__(
        self, address: str, on_view: Callable[["SimCoordinator", coordinator_pb2.RefreshRequest], None]
    ) -> None:
        self.address = address
        self.view: View = {}
        self.paused: set[int] = set()
        self.stamp = (0, 0)
        self._on_view = on_view

    async def run(self) -> None:
        """Serve until killed."""
        self.view, self.paused, self.stamp = {}, set(), (0, 0)
        server = RpcServer(
            name="coordinator",
            listen=self.address,
            metrics=RpcMetrics(CollectorRegistry()),
            policies=POLICIES,
            reflection=False,
        )
        server.add(
            "motor_ft.v1.CoordinatorService", coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server, self
        )
        await server.start()
        await asyncio.Event().wait()

    def routed(self) -> View:
        """What requests reach: not what is paused."""
        return {key: ranks for key, ranks in self.view.items() if key not in self.paused}

    async def Refresh(self, request: coordinator_pb2.RefreshRequest, context: Any) -> coordinator_pb2.RefreshResponse:
        """Apply one change, whole or not at all."""
        stamp = (request.controller_epoch, request.revision)
        if stamp <= self.stamp:
            raise FtError(Reason.STALE_REVISION, f"{stamp} is not above {self.stamp}")
        named = {each.instance_id: _ranks(each) for each in request.instances}
        paused = {each.instance_id for each in request.instances if each.paused}
        match request.event:
            case coordinator_pb2.REFRESH_EVENT_PAUSE:
                view, paused = self.view, self.paused | named.keys()
            case coordinator_pb2.REFRESH_EVENT_RESUME:
                view, paused = self.view | named, self.paused - named.keys()
            case coordinator_pb2.REFRESH_EVENT_ADD:
                view, paused = self.view | named, self.paused - named.keys() | paused
            case coordinator_pb2.REFRESH_EVENT_DEL:
                view = {key: ranks for key, ranks in self.view.items() if key not in named}
                paused = self.paused - named.keys()
            case _:
                view = named
        self.stamp, self.view, self.paused = stamp, view, paused
        self._on_view(self, request)
        return coordinator_pb2.RefreshResponse()


def _ranks(instance: coordinator_pb2.ServingInstance) -> frozenset[int]:
    return frozenset(each.dp_rank for pod in instance.pods for each in pod.endpoints if not each.headless)
