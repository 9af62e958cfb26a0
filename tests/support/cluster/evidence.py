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
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def folder(self) -> Path:
        return self._cluster.folder / "evidence"

    @property
    def completions(self) -> list[dict[str, Any]]:
        return self._completions

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._watch(), name="evidence watch"),
            asyncio.create_task(self._complete(), name="evidence completions"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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
        log = await cluster.engine_log() if cluster.group_url else {"applies": [], "changes": []}
        engine = [{"source": "engine", **change} for change in log["changes"]]
        controller = [{"source": "controller", **state} for state in self._states]
        pods = [{"source": f"pod-{n}", **record} for n, record in self._pod_records()]
        self._lines("timeline.jsonl", sorted([*engine, *controller, *pods], key=lambda item: item["at"]))
        self._lines("coordinator.jsonl", await cluster.views())
        self._lines("completions.jsonl", self._completions)
        self._json("fault.json", cluster.faults)
        self._json("apply.json", log["applies"])
        self._json("instance.json", [_plain(instance) for instance in await self._final()])
        self._json("pods.json", [record for _, record in self._pod_records() if record["kind"] == "stop"])
        self._json("latency.json", self.latencies())
        with contextlib.suppress(ClientError):
            async with cluster.http.get(f"http://127.0.0.1:{cluster.metrics_port}/metrics") as response:
                (self.folder / "metrics.prom").write_text(await response.text())

    async def _final(self) -> list[pb.Instance]:
        try:
            async with asyncio.timeout(3):
                return await self._cluster.instances(deleted=True)
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

    def _pod_records(self) -> list[tuple[int, dict[str, Any]]]:
        found = []
        for number in range(len(self._cluster.pods)):
            path = self._cluster.folder / f"pod-{number}.jsonl"
            found += [(number, json.loads(line)) for line in path.read_text().splitlines()]
        return found

    def _lines(self, name: str, items: list[dict[str, Any]]) -> None:
        (self.folder / name).write_text("".join(json.dumps(item) + "\n" for item in items))

    def _json(self, name: str, content: object) -> None:
        (self.folder / name).write_text(json.dumps(content, indent=2) + "\n")


def _plain(instance: pb.Instance) -> dict[str, Any]:
    return MessageToDict(instance, preserving_proto_field_name=True)


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
