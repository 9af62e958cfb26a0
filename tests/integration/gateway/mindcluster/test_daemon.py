"""``motor-gateway mindcluster`` as a process, between a Kubernetes API, ClusterD and a Controller."""

import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from motor_ft.v1 import fault_report_pb2
from tests.integration.gateway.mindcluster.adapter import CIM
from tests.integration.gateway.mindcluster.test_link import welcomed
from tests.integration.gateway.test_daemons import ended, gateway, port_of
from tests.integration.nodemanager.controller import ScriptedController
from tests.support.clusterd import FakeClusterD, npu_fault
from tests.support.kubernetes import FakeKubernetes
from tests.support.mindcluster import MIXED, device_data, device_list
from tests.support.ports import free_port


@pytest.fixture
async def controller() -> AsyncIterator[ScriptedController]:
    serving = ScriptedController()
    await serving.start()
    yield serving
    await serving.stop()


def config(tmp_path: Path, **change: object) -> str:
    values: dict[str, object] = {
        "metrics_listen": "127.0.0.1:0",
        "controllers": [f"127.0.0.1:{free_port()}"],
        "state_dir": str(tmp_path / "state"),
        "reporter_id": "adapter-1",
        "kubernetes": {"server": "http://127.0.0.1:1"},
    }
    path = tmp_path / "mindcluster.json"
    path.write_text(json.dumps(values | change))
    return str(path)


async def text_of(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_it_reports_what_it_sees_and_that_a_source_is_missing_until_it_is_there(
    tmp_path: Path, controller: ScriptedController
) -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2025-04-09T07:02:24Z"}
    fatal = npu_fault("node-a", "4", "80E18402", "SeparateNPU")
    address = f"127.0.0.1:{free_port()}"
    async with FakeKubernetes() as cluster:
        payload = device_data(device_list(MIXED), written=int(time.time()))
        cluster.configmap("kube-system", "mindx-dl-deviceinfo-node-a", payload, **CIM)
        cluster.put("nodes", {"metadata": {"name": "node-a"}, "status": {"conditions": [ready]}})
        sources = {"kubernetes": {"server": cluster.url}, "clusterd": {"address": address}}
        arguments = config(tmp_path, controllers=[controller.address], **sources)
        async with gateway("mindcluster", "--config", arguments) as daemon:
            port = await port_of(daemon, "serving metrics")
            conversation, snapshot = await welcomed(controller)
            while not missing(snapshot, "clusterd-query", "clusterd-stream"):
                snapshot = (await conversation.report()).snapshot
            assert (await text_of(port, "/readyz"))[0] == 503
            assert 'source_working{source="clusterd-stream"} 0.0' in (await text_of(port, "/metrics"))[1]
            async with FakeClusterD(address) as clusterd:
                clusterd.job("job-1", [fatal])
                clusterd.cluster([fatal])
                while not missing(snapshot):
                    snapshot = (await conversation.report()).snapshot
                faults = {fault.key.fault_code: fault for fault in snapshot.hardware_faults}
                assert set(faults) == {"A8028801", "A4028801", "80E18402", "80E18401"}
                assert (await text_of(port, "/readyz"))[0] == 200
                assert 'motor_ft_hardware_faults{level="L6"} 2.0' in (await text_of(port, "/metrics"))[1]
                assert set(clusterd.roles) == {"motor-ft-adapter-1"}
                daemon.process.send_signal(signal.SIGTERM)
                assert (await ended(daemon))[0] == 0


def missing(snapshot: fault_report_pb2.Snapshot, *names: str) -> bool:
    """The sources with a problem are exactly these."""
    problems = {source.source for source in snapshot.hardware_sources if source.problem}
    return bool(snapshot.hardware_sources) and problems == set(names)


@pytest.mark.parametrize(
    ("change", "text"),
    [({"colour": "red"}, "colour: unknown key"), ({"kubernetes": None}, "kubernetes: must be given")],
    ids=["unknown key", "no source"],
)
async def test_what_cannot_be_ends_it_with_one_line_that_names_it(
    tmp_path: Path, change: dict[str, object], text: str
) -> None:
    async with gateway("mindcluster", "--config", config(tmp_path, **change)) as daemon:
        code, output = await ended(daemon)
    assert code == 2
    assert text in output
    assert len(output.splitlines()) == 1
