"""Waiting for a Controller that begins to lead, without asking it again and again."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from motor_ft.wire.channel import open_channel
from motor_ft.wire.tls import ClientTls

SERVICE = "motor_ft.v1.FaultReportService"
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_SERVING = health_pb2.HealthCheckResponse.SERVING


async def begins_to_lead(controllers: Sequence[str], timeout_sec: float, tls: ClientTls | None = None) -> str:
    """The address of the first Controller whose health turns from NOT_SERVING to SERVING; empty when none does in time.

    One that serves all the time is none: it had its reason to end the last stream.
    """
    watches = [asyncio.create_task(_turns(address, tls), name=f"health of {address}") for address in controllers]
    try:
        done, _ = await asyncio.wait(watches, timeout=timeout_sec, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result() if done else ""
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


async def _turns(address: str, tls: ClientTls | None) -> str:
    """Wait for it, for ever where there is nothing to watch."""
    channel = open_channel(address, peer="controller", tls=tls)
    try:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # typed as synchronous
        before = None
        async for response in stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE), wait_for_ready=True):
            if (before, response.status) == (_NOT_SERVING, _SERVING):
                return address
            before = response.status
    except grpc.aio.AioRpcError:
        pass  # it does not watch its health, or is gone again: the next attempt finds out
    finally:
        await channel.close()
    never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    return await never
