"""What every Coordinator adapter MUST do (controller.core.ports.Coordinator), over real servers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import pytest
from aiohttp import web
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2

from controller.coordinator.grpc import GrpcCoordinator
from controller.coordinator.http import HttpCoordinator, to_json
from controller.core.ports import Coordinator
from controller.core.serving import ServingEvent, ServingInstance, ServingPod
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import Device, Endpoint, Role
from motor_ft.v1 import coordinator_pb2, coordinator_pb2_grpc
from motor_ft.wire.errors import abort
from motor_ft.wire.tls import TlsConfig
from tests.support.certificates import Authority
from tests.support.coordinator import FakeCoordinator

ADD, DEL, SET = ServingEvent.ADD, ServingEvent.DEL, ServingEvent.SET
PAUSE, RESUME = ServingEvent.PAUSE, ServingEvent.RESUME
TIMEOUT_SEC = 1.0
PLAIN = TlsConfig()


def instance(instance_id: int = 1, ranks: tuple[int, ...] = (0, 1)) -> ServingInstance:
    """An instance over one pod per rank."""
    pods = tuple(
        ServingPod(
            f"10.0.0.{rank}",
            9000 + rank,
            (Endpoint(rank, f"10.0.0.{rank}", 8000 + rank, devices=(Device("2", "10.1.0.2"), Device("3"))),),
        )
        for rank in ranks
    )
    return ServingInstance(instance_id, "job", "model", "vllm", Role.DECODE, 4, 2, pods)


class Rig:
    """One server with the adapter under test."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator

    def serving(self) -> Mapping[int, list[int]]:
        """Ranks per instance to which the server routes."""
        raise NotImplementedError

    async def inject(self, name: str) -> None:
        """`down`, `slow` (answers after the timeout), `error` (refuses)."""
        raise NotImplementedError


class HttpRig(Rig):
    """The fake Motor Coordinator."""

    def __init__(self, server: FakeCoordinator) -> None:
        super().__init__(HttpCoordinator(server.url + "/", timeout_sec=TIMEOUT_SEC))
        self._server = server

    def serving(self) -> Mapping[int, list[int]]:
        found: dict[int, list[int]] = {}
        for held, endpoint in self._server.view.routable():
            found.setdefault(held.number, []).append(endpoint.number)
        return found

    async def inject(self, name: str) -> None:
        for route in ("refresh", "readiness"):
            await self._server.inject(name, **({} if name == "down" else {"route": route, "seconds": 60}))


class GrpcRig(Rig, coordinator_pb2_grpc.CoordinatorServiceServicer):
    """A Coordinator that speaks gRPC; its health follows its view."""

    def __init__(self, server: grpc.aio.Server, tls: TlsConfig) -> None:
        coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(self, server)
        check = grpc.unary_unary_rpc_method_handler(
            self._check, health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
        )
        health = grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check})
        server.add_generic_rpc_handlers((health,))
        credentials = tls.server()
        listen = "127.0.0.1:0"
        port = server.add_secure_port(listen, credentials) if credentials else server.add_insecure_port(listen)
        super().__init__(GrpcCoordinator(f"127.0.0.1:{port}", timeout_sec=TIMEOUT_SEC, tls=tls.client()))
        self.requests: list[coordinator_pb2.RefreshRequest] = []
        self._server = server
        self._held: dict[int, coordinator_pb2.ServingInstance] = {}
        self._fault = ""

    def serving(self) -> Mapping[int, list[int]]:
        return {
            key: sorted(endpoint.dp_rank for pod in held.pods for endpoint in pod.endpoints)
            for key, held in self._held.items()
            if not held.paused
        }

    async def inject(self, name: str) -> None:
        self._fault = name
        if name == "down":
            await self._server.stop(None)

    async def Refresh(
        self,
        request: coordinator_pb2.RefreshRequest,
        context: grpc.aio.ServicerContext[coordinator_pb2.RefreshRequest, coordinator_pb2.RefreshResponse],
    ) -> coordinator_pb2.RefreshResponse:
        await self._disturb(context)
        self.requests.append(request)
        named = {each.instance_id: each for each in request.instances}
        unknown = named.keys() - self._held.keys() if request.event == coordinator_pb2.REFRESH_EVENT_DEL else set()
        if request.event == coordinator_pb2.REFRESH_EVENT_SET:
            self._held = named
        elif request.event == coordinator_pb2.REFRESH_EVENT_DEL:
            self._held = {key: held for key, held in self._held.items() if key not in named}
        else:
            self._held |= named
        return coordinator_pb2.RefreshResponse(unknown_instance_ids=unknown)

    async def _check(
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse],
    ) -> health_pb2.HealthCheckResponse:
        assert request.service == "motor_ft.v1.CoordinatorService"
        await self._disturb(context)
        serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        return health_pb2.HealthCheckResponse(status=serving if self.serving() else not_serving)

    async def _disturb(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if self._fault == "slow":
            await asyncio.sleep(60)
        if self._fault == "error":
            await abort(context, FtError(Reason.STALE_REVISION, "an older revision"))


@asynccontextmanager
async def http_rig() -> AsyncIterator[Rig]:
    """A running HTTP rig."""
    async with FakeCoordinator() as server:
        rig = HttpRig(server)
        yield rig
        await rig.coordinator.close()


@asynccontextmanager
async def grpc_rig(tls: TlsConfig = PLAIN) -> AsyncIterator[Rig]:
    """A running gRPC rig."""
    server = grpc.aio.server()
    rig = GrpcRig(server, tls)
    await server.start()
    yield rig
    await rig.coordinator.close()
    await server.stop(None)


@asynccontextmanager
async def grpcs_rig() -> AsyncIterator[Rig]:
    """The same with certificates on both sides."""
    with TemporaryDirectory() as folder:
        async with grpc_rig(Authority(Path(folder)).tls("both")) as rig:
            yield rig


RIGS: list[Callable[[], AbstractAsyncContextManager[Rig]]] = [http_rig, grpc_rig, grpcs_rig]


@pytest.fixture(params=RIGS, ids=lambda make: make.__name__)
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """Each kind of Coordinator in turn, with an empty view."""
    make: Callable[[], AbstractAsyncContextManager[Rig]] = request.param
    async with make() as running:
        yield running


async def test_add_del_and_set_change_the_view(rig: Rig) -> None:
    """A confirmed change MUST have happened; an empty SET MUST empty the view."""
    coordinator = rig.coordinator
    assert "127.0.0.1" in coordinator.name
    await coordinator.refresh(ADD, [instance()], 1, 1)
    assert rig.serving() == {1: [0, 1]}
    await coordinator.refresh(DEL, [instance()], 1, 2)
    assert rig.serving() == {}
    await coordinator.refresh(SET, [instance(2), instance(3, (1,))], 1, 3)
    assert rig.serving() == {2: [0, 1], 3: [1]}
    await coordinator.refresh(SET, [], 1, 4)
    assert rig.serving() == {}


async def test_what_is_paused_gets_no_requests_until_it_is_resumed(rig: Rig) -> None:
    """Neither ADD nor SET of a paused view MUST let requests in; RESUME MUST, also after a SET and with other ranks."""
    coordinator, paused = rig.coordinator, replace(instance(), paused=True)
    await coordinator.refresh(ADD, [instance()], 1, 1)
    await coordinator.refresh(PAUSE, [paused], 1, 2)
    assert rig.serving() == {}
    await coordinator.refresh(RESUME, [instance()], 1, 3)
    assert rig.serving() == {1: [0, 1]}
    await coordinator.refresh(PAUSE, [paused], 1, 4)
    await coordinator.refresh(SET, [paused, instance(2)], 1, 5)
    assert rig.serving() == {2: [0, 1]}
    await coordinator.refresh(RESUME, [instance(ranks=(1,))], 1, 6)
    assert rig.serving() == {1: [1], 2: [0, 1]}
    await coordinator.refresh(SET, [], 1, 7)
    await coordinator.refresh(ADD, [paused], 1, 8)
    assert rig.serving() == {}
    await coordinator.refresh(RESUME, [instance()], 1, 9)
    assert rig.serving() == {1: [0, 1]}


@pytest.mark.parametrize("event", [DEL, PAUSE])
async def test_taking_requests_from_an_unknown_instance_is_confirmed(rig: Rig, event: ServingEvent) -> None:
    """What the Coordinator does not know MUST count as withdrawn (recovery.md section 5, step 7)."""
    await rig.coordinator.refresh(event, [replace(instance(), paused=True)], 1, 1)
    assert rig.serving() == {}


async def test_ready_is_what_the_coordinator_says(rig: Rig) -> None:
    """Without a view a Coordinator serves nothing."""
    assert not await rig.coordinator.ready()
    await rig.coordinator.refresh(SET, [instance()], 1, 1)
    assert await rig.coordinator.ready()


@pytest.mark.parametrize("fault", ["down", "slow", "error"])
async def test_what_is_not_confirmed_is_an_error(rig: Rig, fault: str) -> None:
    """A refusal, a broken connection and silence MUST raise FtError in time, and MUST read as not ready."""
    await rig.coordinator.refresh(SET, [instance()], 1, 1)
    await rig.inject(fault)
    async with asyncio.timeout(10 * TIMEOUT_SEC):
        for event in (SET, DEL, RESUME):
            with pytest.raises(FtError):
                await rig.coordinator.refresh(event, [instance()], 1, 2)
        assert not await rig.coordinator.ready()


async def test_http_instance_is_motors() -> None:
    """Field names and types of Motor's own models: ports and device numbers are strings, endpoints by pod address."""
    assert to_json(instance(7, (1,))) == {
        "job_name": "job",
        "model_name": "model",
        "engine_type": "vllm",
        "id": 7,
        "role": "decode",
        "status": "active",
        "parallel_config": {"dp_size": 4, "tp_size": 2},
        "node_managers": [{"pod_ip": "10.0.0.1", "port": "9001"}],
        "endpoints": {
            "10.0.0.1": {
                "0": {
                    "id": 1,
                    "ip": "10.0.0.1",
                    "business_port": "8001",
                    "mgmt_port": "8001",
                    "status": "normal",
                    "device_infos": [
                        {"device_id": "2", "device_ip": "10.1.0.2", "rank_id": "2"},
                        {"device_id": "3", "device_ip": None, "rank_id": "3"},
                    ],
                    "headless": False,
                }
            }
        },
    }


def test_http_status_of_a_paused_instance_is_inactive() -> None:
    assert to_json(replace(instance(), paused=True))["status"] == "inactive"


def test_pods_that_share_an_address_do_not_hide_each_other() -> None:
    """Pods on the host network share their node's address."""
    pods = tuple(ServingPod("10.0.0.1", 9000 + rank, (Endpoint(rank, "10.0.0.1", 8000 + rank),)) for rank in (0, 1))
    endpoints = to_json(ServingInstance(1, "job", "model", "vllm", Role.UNION, 2, 1, pods))["endpoints"]
    assert isinstance(endpoints, dict)
    assert {index: each["id"] for index, each in endpoints["10.0.0.1"].items()} == {"0": 0, "1": 1}


async def test_http_follows_no_redirect() -> None:
    """A view that went elsewhere is not confirmed."""

    async def elsewhere(_: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("/confirmed")

    async def confirmed(_: web.Request) -> web.Response:
        return web.json_response({"ready": True})

    app = web.Application()
    app.add_routes([web.route("*", "/confirmed", confirmed), web.route("*", "/{path:.*}", elsewhere)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    coordinator = HttpCoordinator(f"http://127.0.0.1:{runner.addresses[0][1]}", timeout_sec=TIMEOUT_SEC)
    with pytest.raises(FtError, match="answered with HTTP 307"):
        await coordinator.refresh(SET, [], 1, 1)
    assert not await coordinator.ready()
    await coordinator.close()
    await runner.cleanup()


async def test_grpc_carries_epoch_revision_and_the_whole_view() -> None:
    """A Coordinator can refuse what a former leader still sends."""
    async with grpc_rig() as rig:
        assert isinstance(rig, GrpcRig)
        await rig.coordinator.refresh(SET, [instance(7, (1,))], 5, 9)
        (request,) = rig.requests
        assert (request.controller_epoch, request.revision) == (5, 9)
        assert MessageToDict(request.instances[0], preserving_proto_field_name=True) == {
            "instance_id": "7",
            "job_name": "job",
            "model_name": "model",
            "engine_type": "vllm",
            "role": "ROLE_DECODE",
            "dp_size": 4,
            "tp_size": 2,
            "pods": [
                {
                    "ip": "10.0.0.1",
                    "node_manager_port": 9001,
                    "endpoints": [
                        {
                            "dp_rank": 1,
                            "ip": "10.0.0.1",
                            "business_port": 8001,
                            "devices": [{"device_id": "2", "device_ip": "10.1.0.2"}, {"device_id": "3"}],
                        }
                    ],
                }
            ],
        }
        await rig.inject("error")
        with pytest.raises(FtError) as refusal:
            await rig.coordinator.refresh(ADD, [], 4, 1)
        assert refusal.value.reason is Reason.STALE_REVISION
