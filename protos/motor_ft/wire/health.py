"""``grpc.health.v1.Health``, per service; written anew because the library's ``Watch`` is no async generator."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

Context = grpc.aio.ServicerContext[Any, Any]


class Health(health_pb2_grpc.HealthServicer):
    """What each service says of itself; ``""`` is the process as a whole."""

    def __init__(self) -> None:
        self._serving: dict[str, bool] = {"": True}
        self._changed = asyncio.Event()

    def set(self, service: str, serving: bool) -> None:
        """Tell it to everybody who watches."""
        self._serving[service] = serving
        self._changed.set()
        self._changed = asyncio.Event()

    def set_all(self, serving: bool) -> None:
        """Every service, and the process as a whole."""
        for service in self._serving:
            self.set(service, serving)

    async def Check(self, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:
        """Answer for one service; NOT_FOUND for an unknown one, as the health protocol says."""
        if request.service not in self._serving:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here")
        return self._response(request.service)

    async def List(self, request: Message, context: Context) -> Message:
        """Answer for every service."""
        statuses = {service: self._response(service) for service in self._serving}
        response: Message = health_pb2.HealthListResponse(statuses=statuses)  # type: ignore[attr-defined]
        return response

    async def Watch(self, request: HealthCheckRequest, context: Context) -> AsyncIterator[HealthCheckResponse]:
        """Stream the status now, SERVICE_UNKNOWN too, and every one after."""
        last = None
        while True:
            changed = self._changed
            if (now := self._response(request.service)) != last:
                yield now
            last = now
            await changed.wait()

    def _response(self, service: str) -> HealthCheckResponse:
        if service not in self._serving:
            return HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        status = HealthCheckResponse.SERVING if self._serving[service] else HealthCheckResponse.NOT_SERVING
        return HealthCheckResponse(status=status)
