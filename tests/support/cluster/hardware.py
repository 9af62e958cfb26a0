"""The hardware of a cluster: doubles of the Kubernetes API and of ClusterD, and the adapter that reads them."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from tests.support import mindcluster
from tests.support.cluster.cluster import Cluster
from tests.support.clusterd import FakeClusterD, npu_fault
from tests.support.kubernetes import FakeKubernetes
from tests.support.ports import free_port
from tests.support.processes import Running
from tests.support.waiting import until

CODE, LEVEL = "80E18402", "SeparateNPU"
"""Of every fault; L6."""
_READY_TIMEOUT_SEC = 30.0


class Hardware:
    """``async with Hardware(cluster) as hardware:`` has been reported as all well.

    Node N is the one that pod N of every deployment is on. What is done to it is told to the doubles only.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.kubernetes = FakeKubernetes()
        self.clusterd = FakeClusterD()
        self.adapter: Running | None = None
        self._cluster = cluster
        self._broken: dict[int, list[str]] = {
            node: [] for deployment in cluster.deployments for node in range(len(deployment.shape.pods))
        }
        self.metrics_port = free_port()

    async def __aenter__(self) -> Self:
        await self.kubernetes.start()
        await self.clusterd.start()
        for node in self._broken:
            self._write(node)
            self.ready(node, is_ready=True)
        await self.start_adapter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.adapter is not None:
            await self.adapter.stop()
        await self.clusterd.stop()
        await self.kubernetes.stop()

    async def start_adapter(self) -> None:
        """Start the adapter, for the first time or again; returns when it has reported."""
        site = self._cluster.site
        config = {
            "controllers": [f"127.0.0.1:{site.controller_port}"],
            "state_dir": site.folder / "mindcluster",
            "reporter_id": "adapter",
            "metrics_listen": f"127.0.0.1:{self.metrics_port}",
            "kubernetes": {"server": self.kubernetes.url},
            "clusterd": {"address": self.clusterd.address, "query_interval_sec": 1.0},
        }
        path = site.write("mindcluster.toml", config)
        self.adapter = await site.run("adapter", "gateway", "mindcluster", "--config", str(path))
        await self.working()

    async def working(self) -> None:
        """Wait until every source works and the Controller listens."""
        await until(self._works, timeout=_READY_TIMEOUT_SEC)

    async def _works(self) -> bool:
        try:
            async with self._cluster.http.get(f"http://127.0.0.1:{self.metrics_port}/readyz") as response:
                return response.status == 200
        except OSError:
            return False

    def breaks(self, *cards: str, node: int) -> None:
        """The device plugin writes that these cards are broken, beside those that were before."""
        self._cluster.note(f"hardware fault of {', '.join(cards)}", None, node=node)
        self._broken[node] += cards
        self._write(node)

    def heals(self, card: str, node: int) -> None:
        """The device plugin no longer writes that the card is broken."""
        self._broken[node].remove(card)
        self._write(node)

    def ready(self, node: int, *, is_ready: bool) -> None:
        """Kubernetes finds the node ready, or not."""
        if not is_ready:
            self._cluster.note("node not ready", None, node=node)
        condition = {"type": "Ready", "status": str(is_ready), "lastTransitionTime": "2025-04-09T07:02:24Z"}
        item = {"metadata": {"name": f"node-{node}"}, "status": {"conditions": [condition]}}
        self.kubernetes.put("nodes", item)

    def told_by_clusterd(self, card: int, node: int) -> None:
        """ClusterD says, to subscribers and who asks, that one card is broken and nothing else is."""
        self._cluster.note(f"hardware fault of card {card}, from ClusterD", None, node=node)
        fault = npu_fault(f"node-{node}", str(card), CODE, LEVEL)
        self.clusterd.cluster([fault])
        self.clusterd.job("job-of-clusterd", [fault])

    def _write(self, node: int) -> None:
        entries = [mindcluster.entry(card, LEVEL, CODE) for card in self._broken[node]]
        data = mindcluster.device_data(mindcluster.device_list(*entries), written=int(time.time()))
        self.kubernetes.configmap("kube-system", f"mindx-dl-deviceinfo-node-{node}", data, mx_consumer_cim="true")
