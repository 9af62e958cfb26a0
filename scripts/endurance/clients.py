"""Whoever else uses the system meanwhile: requests to the model, and people and tools that look at the instances."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

import grpc
from aiohttp import ClientError

from motor_ft.v1 import controller_pb2 as pb
from tests.support.cluster import Cluster

REQUEST_EVERY_SEC = 0.2
LOOK_EVERY_SEC = 1.0


async def request(cluster: Cluster, answers: Counter[str]) -> None:
    """Completions until cancelled; engines without any notice nothing. ``answers`` counts HTTP statuses."""
    while True:
        try:
            status = str(await cluster.complete())
        except (ClientError, OSError, TimeoutError):
            status = "no answer"
        answers[status] += 1
        await asyncio.sleep(REQUEST_EVERY_SEC)


async def look(cluster: Cluster) -> None:
    """REST status, events, explanations, and watches that are left again, until cancelled."""
    while True:
        with suppress(ClientError, OSError, TimeoutError, ValueError):  # the gateway is away
            await cluster.rest("/controller/fault_tolerance/status")
        with suppress(grpc.aio.AioRpcError):  # the Controller is away, or the instance gone
            async with cluster.stub() as stub:
                await stub.ListEvents(pb.ListEventsRequest(newest_first=True, page_size=50), timeout=5)
                instances = (await stub.ListInstances(pb.ListInstancesRequest(), timeout=5)).instances
                for instance in instances:
                    await stub.Explain(pb.ExplainRequest(instance_id=instance.instance_id), timeout=5)
                async for update in stub.WatchInstances(pb.WatchInstancesRequest(), timeout=5):
                    if update.snapshot_complete:
                        break
        await asyncio.sleep(LOOK_EVERY_SEC)
