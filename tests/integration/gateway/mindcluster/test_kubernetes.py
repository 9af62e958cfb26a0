"""Lists and watches of a Kubernetes API: whatever happens to them, the board ends up with what the cluster says."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.config import ConditionConfig, KubernetesConfig
from gateway.mindcluster.kubernetes import open_api
from motor_ft.model.hardware import FaultLevel
from motor_ft.wire.config import ConfigError
from tests.integration.gateway.mindcluster.adapter import CIM, VOLCANO, Adapter, watching
from tests.support.kubernetes import FakeKubernetes
from tests.support.mindcluster import (
    LINK_DOWN,
    MIXED,
    alarm,
    device_data,
    device_list,
    entry,
    switch_data,
)
from tests.support.ports import free_port
from tests.support.waiting import until

NODE_CARDS = [("Ascend910-0", "81078603")]


@pytest.fixture
async def cluster() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes() as serving:
        yield serving


def devices(*faults: object, later: int = 0, **data: str) -> dict[str, str]:
    """A payload that was written now, or some seconds later."""
    return device_data(device_list(*faults), written=int(time.time()) + later, **data)


def publish(cluster: FakeKubernetes, *faults: object, node: str = "node-a", later: int = 0, **data: str) -> None:
    payload = devices(*faults, later=later, **data)
    cluster.configmap("kube-system", f"mindx-dl-deviceinfo-{node}", payload, **CIM)


def ready(cluster: FakeKubernetes, status: str, node: str = "node-a", **more: str) -> None:
    conditions = [
        {"type": kind, "status": value, "lastTransitionTime": "2025-04-09T07:02:24Z"}
        for kind, value in ({"Ready": status} | more).items()
    ]
    cluster.put("nodes", {"metadata": {"name": node}, "status": {"conditions": conditions}})


def config(cluster: FakeKubernetes, **change: object) -> KubernetesConfig:
    fields: dict[str, object] = {"server": cluster.url, "nodes": False, "watch_sec": 60.0}
    return KubernetesConfig(**(fields | change))  # type: ignore[arg-type]


def lists(cluster: FakeKubernetes) -> int:
    """How often the whole was asked for."""
    return sum("watch" not in query for _, query in cluster.requests)


async def settled(adapter: Adapter, cluster: FakeKubernetes) -> None:
    """Listed, believed and watched."""
    await until(lambda: not adapter.problems and cluster.watches)


@asynccontextmanager
async def unseen(adapter: Adapter, cluster: FakeKubernetes) -> AsyncIterator[None]:
    """What changes inside is told to no watch, and the versions before are forgotten."""
    cluster.refusal = (503, "ServiceUnavailable")
    cluster.cut()
    await until(lambda: not cluster.watches and adapter.problems)
    yield
    cluster.forget()
    cluster.refusal = None
    await until(lambda: cluster.watches)


async def test_what_is_there_and_what_changes_reaches_the_board(cluster: FakeKubernetes) -> None:
    publish(cluster, LINK_DOWN)
    async with watching(config(cluster)) as adapter:
        await until(lambda: adapter.codes == NODE_CARDS)
        await settled(adapter, cluster)
        publish(cluster, LINK_DOWN, MIXED, later=1)
        await until(lambda: len(adapter.faults) == 5)
        publish(cluster, later=2)
        await until(lambda: not adapter.faults)
        assert lists(cluster) == 1


async def test_only_configmaps_with_label_and_prefix_are_read(cluster: FakeKubernetes) -> None:
    cluster.configmap("kube-system", "mindx-dl-deviceinfo-unlabelled", devices(MIXED))
    cluster.configmap("kube-system", "mindx-dl-fault-config", devices(MIXED), **CIM)
    publish(cluster, LINK_DOWN)
    async with watching(config(cluster)) as adapter:
        await settled(adapter, cluster)
        assert adapter.codes == NODE_CARDS
        assert {fault.node for fault in adapter.faults} == {"node-a"}


async def test_a_list_of_many_pages_is_whole(cluster: FakeKubernetes) -> None:
    cluster.page_limit = 2
    for number in range(5):
        publish(cluster, LINK_DOWN, node=f"node-{number}")
    async with watching(config(cluster)) as adapter:
        await settled(adapter, cluster)
        assert len(adapter.faults) == 5
        assert lists(cluster) == 3


async def test_a_watch_that_ends_goes_on_from_the_last_version(cluster: FakeKubernetes) -> None:
    publish(cluster)
    async with watching(config(cluster)) as adapter:
        await settled(adapter, cluster)
        cluster.cut()
        publish(cluster, LINK_DOWN, later=1)
        await until(lambda: adapter.codes == NODE_CARDS)
        await until(lambda: cluster.watches)
        assert lists(cluster) == 1


async def test_a_bookmark_moves_the_version_on(cluster: FakeKubernetes) -> None:
    """So that what others change does not make ours too old."""
    publish(cluster)
    async with watching(config(cluster)) as adapter:
        await settled(adapter, cluster)
        cluster.forget()
        cluster.bookmark()
        cluster.cut()
        publish(cluster, LINK_DOWN, later=1)
        await until(lambda: adapter.codes == NODE_CARDS)
        assert lists(cluster) == 1


async def test_a_version_that_is_forgotten_leads_to_a_new_list(cluster: FakeKubernetes) -> None:
    """What was deleted meanwhile is not known to be healthy."""
    publish(cluster, LINK_DOWN)
    publish(cluster, MIXED, node="node-b")
    async with watching(config(cluster)) as adapter:
        await settled(adapter, cluster)
        async with unseen(adapter, cluster):
            cluster.delete("kube-system/configmaps", "mindx-dl-deviceinfo-node-a")
            publish(cluster, node="node-b", later=1)
        (fault,) = adapter.faults
        assert (fault.node, fault.stale) == ("node-a", True)
        assert "was deleted" in adapter.problems["cm-device", "node-a"]


async def test_a_watch_that_expires_is_listed_again_and_is_no_problem(cluster: FakeKubernetes) -> None:
    publish(cluster, LINK_DOWN)
    async with watching(config(cluster)) as adapter:
        await settled(adapter, cluster)
        cluster.expire()
        await until(lambda: lists(cluster) == 2 and cluster.watches)
        cluster.forget()
        cluster.cut()
        await until(lambda: lists(cluster) == 3)
        assert adapter.board.history == []


@pytest.mark.parametrize("noise", [b"{\n", b'{"type":"WHAT","object":{}}\n', b'{"type":"ADDED"}\n', b'"x"\n'])
async def test_a_stream_that_makes_no_sense_is_read_anew(cluster: FakeKubernetes, noise: bytes) -> None:
    publish(cluster, LINK_DOWN)
    async with watching(config(cluster)) as adapter:
        await settled(adapter, cluster)
        cluster.say(noise)
        await until(lambda: lists(cluster) == 2)
        await settled(adapter, cluster)
        assert not adapter.faults[0].stale


@pytest.mark.parametrize(("refusal", "text"), [((403, "Forbidden"), "403 Forbidden"), ((502, ""), "502")])
async def test_a_refusal_is_a_problem_that_names_its_reason_and_ends_when_it_is_over(
    cluster: FakeKubernetes, refusal: tuple[int, str], text: str
) -> None:
    publish(cluster, LINK_DOWN)
    async with watching(config(cluster)) as adapter:
        await settled(adapter, cluster)
        cluster.refusal = refusal
        cluster.cut()
        await until(lambda: text in adapter.problems.get(("cm-device", ""), ""))
        assert adapter.faults[0].stale
        cluster.refusal = None
        await settled(adapter, cluster)
        assert not adapter.faults[0].stale


async def test_a_server_that_is_not_there_is_a_problem_until_it_is() -> None:
    port = free_port()
    async with watching(KubernetesConfig(server=f"http://127.0.0.1:{port}")) as adapter:
        await until(lambda: all(str(port) in adapter.problems[source, ""] for source in ("cm-device", "node-ready")))
        cluster = FakeKubernetes()
        publish(cluster, LINK_DOWN)
        ready(cluster, "True")
        await cluster.start(port)
        await until(lambda: adapter.codes == NODE_CARDS and not adapter.problems)
        await cluster.stop()


async def test_nodes_that_are_not_ready_or_gone_are_faults_of_the_node(cluster: FakeKubernetes) -> None:
    ready(cluster, "True")
    ready(cluster, "False", "node-b")
    conditions = (ConditionConfig("NT_NPU_DEVICE", FaultLevel.L5),)
    async with watching(config(cluster, configmaps=(), nodes=True, conditions=conditions)) as adapter:
        await settled(adapter, cluster)
        assert [(fault.node, fault.raw_level) for fault in adapter.faults] == [("node-b", "NotReady")]
        ready(cluster, "Unknown")
        ready(cluster, "True", "node-b", NT_NPU_DEVICE="True")
        await until(lambda: adapter.codes == [("", "0x0000001"), ("", "NT_NPU_DEVICE")])
        ready(cluster, "True")
        ready(cluster, "True", "node-b")
        await until(lambda: not adapter.faults)
        cluster.delete("nodes", "node-a")
        await until(lambda: adapter.codes == [("", "0x0000001")])
        async with unseen(adapter, cluster):
            cluster.delete("nodes", "node-b")
        assert adapter.codes == [("", "0x0000001")] * 2


async def test_the_switch_of_a_node_is_read_from_the_same_configmap(cluster: FakeKubernetes) -> None:
    switch = switch_data(alarm("[0x08520003,na,L2,na]"), level="RestartRequest", written=int(time.time()))
    publish(cluster, LINK_DOWN, SwitchInfoCfg=switch)
    async with watching(config(cluster)) as adapter:
        await settled(adapter, cluster)
        assert adapter.codes == [("", "[0x08520003,na,L2,na]"), *NODE_CARDS]
        cluster.delete("kube-system/configmaps", "mindx-dl-deviceinfo-node-a")
        await until(lambda: all(fault.stale for fault in adapter.faults))


async def test_nodeinfo_is_there_only_while_there_is_a_fault(cluster: FakeKubernetes) -> None:
    cpu = {"DeviceType": "CPU", "DeviceId": 1, "FaultCode": ["00000011"], "FaultLevel": "SeparateFault"}
    info = {"NodeInfo": {"FaultDevList": [cpu], "NodeStatus": "UnHealthy"}}
    for node in ("node-a", "node-b"):
        cluster.configmap("mindx-dl", f"mindx-dl-nodeinfo-{node}", {"NodeInfo": json.dumps(info)}, **CIM)
    cluster.configmap("mindx-dl", "something-else", {}, **CIM)
    async with watching(config(cluster, configmaps=("node",))) as adapter:
        await settled(adapter, cluster)
        assert adapter.codes == [("", "00000011")] * 2
        cluster.delete("mindx-dl/configmaps", "mindx-dl-nodeinfo-node-a")
        await until(lambda: len(adapter.faults) == 1)
        async with unseen(adapter, cluster):
            cluster.delete("mindx-dl/configmaps", "mindx-dl-nodeinfo-node-b")
        assert not adapter.faults


async def test_a_node_may_move_between_shards(cluster: FakeKubernetes) -> None:
    """No shard clears a node by lacking it."""

    def shard(number: int, **nodes: object) -> None:
        name = f"cluster-info-device-{number}"
        cluster.configmap("mindx-dl", name, {name: json.dumps(nodes) if nodes else ""}, **VOLCANO)

    def of(node: str, *faults: object, later: int = 0) -> dict[str, object]:
        written = int(time.time()) + later
        return {"DeviceList": device_list(*faults), "UpdateTime": written, "CmName": f"mindx-dl-deviceinfo-{node}"}

    shard(0, a=of("node-a", LINK_DOWN))
    async with watching(config(cluster, configmaps=("cluster",))) as adapter:
        await settled(adapter, cluster)
        shard(0)
        shard(1, b=of("node-b", MIXED), a=of("node-a", LINK_DOWN, later=1))
        cluster.delete("mindx-dl/configmaps", "cluster-info-device-0")
        await until(lambda: len(adapter.faults) == 5)
        shard(1, b=of("node-b", later=1), a=of("node-a", entry("npu-1", "RestartNPU", "80E18005"), later=2))
        await until(lambda: adapter.codes == [("npu-1", "80E18005")])


async def test_cards_that_clusterd_isolates_are_read_by_name_of_their_configmap(cluster: FakeKubernetes) -> None:
    def isolated(*nodes: str) -> None:
        data = {node: json.dumps({"Total": ["Ascend910-3"], "Detail": {}}) for node in nodes}
        cluster.configmap("cluster-system", "clusterd-manual-info-cm", data)

    cluster.configmap("cluster-system", "statistic-fault-info", {"PublicFaults": "{"})
    isolated("node-a", "node-b")
    async with watching(config(cluster, configmaps=("manual",))) as adapter:
        await settled(adapter, cluster)
        assert adapter.codes == [("Ascend910-3", "ManuallySeparateNPU")] * 2
        isolated("node-b")
        await until(lambda: [fault.node for fault in adapter.faults] == ["node-b"])
        cluster.delete("cluster-system/configmaps", "clusterd-manual-info-cm")
        await until(lambda: adapter.faults[0].stale)
        cluster.expire()
        await until(lambda: lists(cluster) == 2)
        assert adapter.faults[0].stale


async def test_credentials_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not in a pod .*kubeconfig"):
        await open_api("", "")
    with pytest.raises(ConfigError, match="nowhere"):
        await open_api("", str(tmp_path / "nowhere"))


async def test_a_kubeconfig_names_server_and_credentials(tmp_path: Path, cluster: FakeKubernetes) -> None:
    publish(cluster, LINK_DOWN)
    path = tmp_path / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": {"server": cluster.url}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    async with watching(KubernetesConfig(kubeconfig=str(path), nodes=False)) as adapter:
        await until(lambda: adapter.codes == NODE_CARDS)
