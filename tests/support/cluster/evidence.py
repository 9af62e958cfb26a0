"""The evidence bundle of one run (acceptance.md section 2): what was injected, what everybody saw, what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from aiohttp import ClientError
from google.protobuf.json_format import MessageToDict

from motor_ft.v1 import controller_pb2 as pb
from tests.support.cluster.cluster import Cluster
from tests.support.waiting import until

COMPLETION_INTERVAL_SEC = 0.1
MILESTONES = ("strategy starts", "strategy ended", "instance ready", "instance gone")


class Evidence:
    """Records while it is entered, and writes the bundle into the cluster's folder when it is left.

    async with Cluster(folder) as cluster, Evidence(cluster): …
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._states: list[dict[str, Any]] = []
        self._completions: list[dict[str, Any]] = []

    @property
    def folder(self) -> Path:
        return self._cluster.folder / "evidence"

    @property
    def completions(self) -> list[dict[str, Any]]:
        return self._completions

    @property
    def states(self) -> list[dict[str, Any]]:
        """Every state of an instance that the Controller has shown, ``at`` a wall clock."""
        return self._states

    async def stop_asking(self) -> None:
        """Send no completions from now on: engines without requests do not step, so they notice nothing."""
        self._asking.cancel()
        await asyncio.gather(self._asking, return_exceptions=True)

    async def __aenter__(self) -> Self:
        self._watching = asyncio.create_task(self._watch(), name="evidence watch")
        self._asking = asyncio.create_task(self._complete(), name="evidence completions")
        await until(lambda: self._completions, timeout=30)  # one from before whatever a test does
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop_asking()
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        await self._write()

    async def _watch(self) -> None:
        while True:
            async with self._cluster.stub() as stub:
                with contextlib.suppress(grpc.aio.AioRpcError):  # down: that is part of what a test does
                    async for update in stub.WatchInstances(pb.WatchInstancesRequest(), wait_for_ready=True):
                        if update.HasField("instance"):
                            self._states.append({"at": time.time(), **_plain(update.instance)})
            await asyncio.sleep(0.05)

    async def _complete(self) -> None:
        while True:
            at = time.time()
            try:
                status: int | str = await self._cluster.complete()
            except (ClientError, TimeoutError) as error:
                status = type(error).__name__
            self._completions.append({"at": at, "status": status})
            await asyncio.sleep(COMPLETION_INTERVAL_SEC)

    async def _write(self) -> None:
        cluster = self._cluster
        self.folder.mkdir(exist_ok=True)
        logs = [(each.prefix, await each.engine_log()) for each in cluster.deployments]
        engine = [{"source": f"{prefix}engine", **change} for prefix, log in logs for change in log["changes"]]
        controller = [{"source": "controller", **state} for state in self._states]
        pods = [{"source": pod, **record} for pod, record in self._pod_records()]
        self._lines("timeline.jsonl", sorted([*engine, *controller, *pods], key=lambda item: item["at"]))
        self._lines("coordinator.jsonl", await cluster.views())
        self._lines("completions.jsonl", self._completions)
        self._json("fault.json", cluster.faults)
        self._json("apply.json", [apply for _, log in logs for apply in log["applies"]])
        self._json("instance.json", [_plain(instance) for instance in await self._final()])
        self._json("pods.json", [record for _, record in self._pod_records() if record["kind"] == "stop"])
        self._json("latency.json", self.latencies())
        with contextlib.suppress(ClientError):
            async with cluster.http.get(f"http://127.0.0.1:{cluster.metrics_port}/metrics") as response:
                (self.folder / "metrics.prom").write_text(await response.text())

    async def _final(self) -> list[pb.Instance]:
        try:
            async with asyncio.timeout(3):
                each = [await deployment.instances(deleted=True) for deployment in self._cluster.deployments]
                return [instance for instances in each for instance in instances]
        except (TimeoutError, grpc.aio.AioRpcError):
            return []

    def latencies(self) -> dict[str, float]:
        """Milliseconds from the last fault to each step that the Controller logged after it."""
        if not self._cluster.faults or self._cluster.controller is None:
            return {}
        start = float(str(self._cluster.faults[-1]["at"]))
        found: dict[str, float] = {}
        for line in self._cluster.controller.output:
            with contextlib.suppress(ValueError, KeyError):
                entry = json.loads(line)
                name = str(entry.get("step") or entry["event"])
                after = _seconds(entry["timestamp"]) - start
                if after >= 0 and ("step" in entry or name in MILESTONES):
                    found[name] = round(after * 1000, 1)
        return found

    def _pod_records(self) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for deployment in self._cluster.deployments:
            for number in range(len(deployment.pods)):
                pod = f"{deployment.prefix}pod-{number}"
                lines = (self._cluster.folder / f"{pod}.jsonl").read_text().splitlines()
                found += [(pod, json.loads(line)) for line in lines]
        return found

    def _lines(self, name: str, items: list[dict[str, Any]]) -> None:
        (self.folder / name).write_text("".join(json.dumps(item) + "\n" for item in items))

    def _json(self, name: str, content: object) -> None:
        (self.folder / name).write_text(json.dumps(content, indent=2) + "\n")


def _plain(instance: pb.Instance) -> dict[str, Any]:
    return MessageToDict(instance, preserving_proto_field_name=True)


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
