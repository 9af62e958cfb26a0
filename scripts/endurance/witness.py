"""Watches a cluster from outside: what the Controller shows, what others were told, and what is wrong with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import Any

import grpc
from aiohttp import ClientError

from motor_ft.v1 import controller_pb2 as pb
from scripts.endurance.rules import Orders, Views, wrong_change
from tests.support.cluster import Cluster, Deployment

AGAIN_SEC = 0.2


class Witness:
    """``run`` until it is cancelled. ``broken`` has every rule that was broken, in words."""

    def __init__(self, cluster: Cluster) -> None:
        self.broken: list[str] = []
        self._cluster = cluster
        self._watches = False
        self._instances: dict[str, dict[int, pb.Instance]] = defaultdict(dict)
        self._rules = {each.shape.job: (Orders(), Views(each.shape.job)) for each in cluster.deployments}
        self._applies_seen: dict[str, int] = defaultdict(int)
        self._views_seen = 0.0
        self._looking = asyncio.Lock()

    async def run(self) -> None:
        """Watch all instances, across restarts of the Controller."""
        while True:
            async with self._cluster.stub() as stub:
                with contextlib.suppress(grpc.aio.AioRpcError):  # it was killed: that is part of what is done here
                    async for update in stub.WatchInstances(pb.WatchInstancesRequest()):
                        if update.HasField("instance"):
                            self._saw(update.instance)
                        self._watches = self._watches or update.snapshot_complete
            self._watches = False
            await asyncio.sleep(AGAIN_SEC)

    def _saw(self, instance: pb.Instance) -> None:
        known = self._instances[instance.job_name]
        self.broken += wrong_change(known.get(instance.instance_id), instance)
        known[instance.instance_id] = instance

    def newest(self, job: str) -> pb.Instance:
        """The instance that the job has now; before the first one an empty message."""
        return max(self._instances[job].values(), key=lambda each: each.instance_id, default=pb.Instance())

    async def wrong(self, deployment: Deployment) -> str:
        """Why the job is not well, by what Controller, engines and Coordinator say; empty when it is.

        It may be well with fewer ranks than at its start.
        """
        if not self._watches:
            return "the Controller shows nothing"
        instance = self.newest(deployment.shape.job)
        name = f"instance {instance.instance_id}"
        if not instance.can_serve:
            phase = pb.Phase.Name(instance.phase).removeprefix("PHASE_")
            return f"{name} does not serve: {phase}, {instance.last_error or instance.last_decision}"
        try:
            ranks = (await self._get(f"{deployment.group_url}/_fake/state"))["ranks"]
            view = await self._get(f"{self._cluster.coordinator_admin}/_fake/view")
        except (ClientError, OSError, TimeoutError, KeyError) as error:
            return f"cannot be told: {error!r}"
        alive = sorted(instance.alive_dp_ranks)
        if sick := [each for each in alive if not _steps(ranks[str(each)])]:
            return f"{name} shows ranks {alive} alive, but {sick} do not work"
        if (routed := view.get(str(instance.instance_id))) != alive:
            return f"{name} has ranks {alive}, the Coordinator routes to {routed}"
        return ""

    async def look(self) -> None:
        """Judge what Coordinator and engines were told since the last time; call it before the Coordinator forgets."""
        async with self._looking:
            try:
                views = await self._cluster.views(self._views_seen)
                logs = {each.shape.job: await each.engine_log() for each in self._cluster.deployments}
            except (ClientError, OSError, TimeoutError):
                return  # the Coordinator was killed: next time
            self._views_seen = max([self._views_seen, *(view["at"] for view in views)])
            for job, log in logs.items():
                new = log["applies"][self._applies_seen[job] :]
                self._applies_seen[job] += len(new)
                orders, shown = self._rules[job]
                wrong = [*orders.wrong(new, log["changes"]), *shown.wrong(views, new)]
                self.broken += [f"{job}: {text}" for text in wrong]

    async def _get(self, url: str) -> Any:
        async with self._cluster.http.get(url) as response:
            return await response.json()


def _steps(rank: dict[str, Any]) -> bool:
    return bool(rank["status"] == "healthy" and rank["process"] == "running")
