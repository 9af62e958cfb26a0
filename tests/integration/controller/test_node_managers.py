"""Commands to NodeManagers over real connections."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from controller.core.history import EventKind
from controller.core.ports import ApplyOrder, GuardGrant
from controller.fault_manager.history import Histories
from controller.node_managers import GrpcNodeManagers
from motor_ft.model.command import Command, freeze_plan
from motor_ft.model.engine import (
    ApplyOutcome,
    EngineObservation,
    EngineStatus,
    Instruction,
    PodEngine,
    ProbeOutcome,
    RankOutcome,
    RankProbe,
)
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import (
    common_pb2,
    node_lifecycle_pb2,
    node_lifecycle_pb2_grpc,
    node_manager_pb2,
    node_manager_pb2_grpc,
)
from motor_ft.wire.convert import (
    command_from_header,
    duration_to_pb,
    observation_to_pb,
    outcome_to_pb,
    plan_from_pb,
    pod_engine_to_pb,
    probe_to_pb,
)
from motor_ft.wire.errors import abort
from tests.support.cut_proxy import CutProxy
from tests.support.waiting import until
from tests.support.world.world import LoopClock

COMMAND = Command(instance_id=1, request_id="r-1", epoch=2, generation=3)
PLAN = freeze_plan(1, 3, frozenset({1}), {0: "first"})
ORDER = ApplyOrder(Instruction.SCALE_DOWN, (0, 2), (1,), "10.0.0.1", 29500, PLAN.plan_hash)
TIMEOUT_SEC = 1.0
Context = grpc.aio.ServicerContext[Any, Any]


def reading(rank: int, status: EngineStatus = EngineStatus.HEALTHY, observation: int = 1) -> EngineObservation:
    """A reading of one engine."""
    return EngineObservation(rank, status, incarnation="first", observation=observation)


class NodeManager(
    node_manager_pb2_grpc.NodeManagerServiceServicer, node_lifecycle_pb2_grpc.NodeLifecycleServiceServicer
):
    """Answers what it is told to, and keeps what it was asked."""

    def __init__(self) -> None:
        self.address = ""
        self.requests: list[Any] = []
        self.peers: set[str] = set()
        self.answer: Callable[[], Message | FtError | None] = lambda: None
        """What to answer: a message, a refusal, or silence."""
        self.watched: asyncio.Queue[node_manager_pb2.WatchStatusResponse | None] = asyncio.Queue()
        self.watchers = 0

    async def _answer(self, request: Message, context: Context) -> Any:
        self.requests.append(request)
        self.peers.add(context.peer())
        answer = self.answer()
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, FtError):
            await abort(context, answer)
        return answer

    async def Guard(self, request: node_manager_pb2.GuardRequest, context: Context) -> Any:
        return await self._answer(request, context)

    async def Status(self, request: node_manager_pb2.StatusRequest, context: Context) -> Any:
        return await self._answer(request, context)

    async def Apply(self, request: node_manager_pb2.ApplyRequest, context: Context) -> Any:
        return await self._answer(request, context)

    async def Finalize(self, request: node_manager_pb2.FinalizeRequest, context: Context) -> Any:
        return await self._answer(request, context)

    async def Probe(self, request: node_manager_pb2.ProbeRequest, context: Context) -> Any:
        return await self._answer(request, context)

    async def Stop(self, request: node_lifecycle_pb2.StopRequest, context: Context) -> Any:
        return await self._answer(request, context)

    async def RestartEngines(self, request: node_lifecycle_pb2.RestartEnginesRequest, context: Context) -> Any:
        return await self._answer(request, context)

    async def WatchStatus(
        self, request: node_manager_pb2.WatchStatusRequest, context: Context
    ) -> AsyncIterator[node_manager_pb2.WatchStatusResponse]:
        self.requests.append(request)
        self.watchers += 1
        try:
            while (message := await self.watched.get()) is not None:
                yield message
        finally:
            self.watchers -= 1


@pytest.fixture
async def node() -> AsyncIterator[NodeManager]:
    """A running NodeManager."""
    server = grpc.aio.server()
    servicer = NodeManager()
    node_manager_pb2_grpc.add_NodeManagerServiceServicer_to_server(servicer, server)
    node_lifecycle_pb2_grpc.add_NodeLifecycleServiceServicer_to_server(servicer, server)
    servicer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield servicer
    await server.stop(None)


@pytest.fixture
def histories() -> Histories:
    """Where the history of the instance is kept."""
    histories = Histories(LoopClock(), "life")
    histories.open(COMMAND.instance_id)
    return histories


@pytest.fixture
async def nodes(histories: Histories) -> AsyncIterator[GrpcNodeManagers]:
    """The adapter under test."""
    managers = GrpcNodeManagers(
        request_timeout_sec=TIMEOUT_SEC, clock=LoopClock(), recorder=histories, watch_silence_sec=0.3
    )
    yield managers
    await managers.close()


async def test_guard_carries_fence_lease_and_plan(node: NodeManager, nodes: GrpcNodeManagers) -> None:
    node.answer = lambda: node_manager_pb2.GuardResponse(remaining=duration_to_pb(59.5), dp_store_port=29500)
    assert await nodes.guard(node.address, COMMAND, 60.0, PLAN) == GuardGrant(59.5, 29500)
    node.answer = lambda: node_manager_pb2.GuardResponse(remaining=duration_to_pb(60))
    assert await nodes.guard(node.address, COMMAND, 60.0, None) == GuardGrant(60.0, None)
    with_plan, without = node.requests
    assert command_from_header(with_plan.header) == COMMAND
    assert with_plan.lease == duration_to_pb(60.0)
    assert plan_from_pb(with_plan.plan) == PLAN
    assert not without.HasField("plan")


async def test_status_is_in_the_asked_order(node: NodeManager, nodes: GrpcNodeManagers) -> None:
    """An answer about other ranks, in another order or twice is an error, never a reading."""
    answer = node_manager_pb2.StatusResponse(observations=[observation_to_pb(reading(rank)) for rank in (2, 0)])
    node.answer = lambda: answer
    assert await nodes.status(node.address, COMMAND, (2, 0)) == (reading(2), reading(0))
    for ranks in ((0, 2), (2,), (2, 0, 1), (2, 2)):
        with pytest.raises(FtError, match=r"Status of NodeManager at .* was answered with observations: must be for"):
            await nodes.status(node.address, COMMAND, ranks)


async def test_apply_says_everything_and_returns_outcomes(node: NodeManager, nodes: GrpcNodeManagers) -> None:
    outcomes = (
        RankOutcome(0, ApplyOutcome.ACCEPTED, observation=9, engine_request_id="r-1"),
        RankOutcome(2, ApplyOutcome.REFUSED, "busy"),
    )
    node.answer = lambda: node_manager_pb2.ApplyResponse(outcomes=map(outcome_to_pb, outcomes))
    assert await nodes.apply(node.address, COMMAND, ORDER) == outcomes
    (request,) = node.requests
    assert request == node_manager_pb2.ApplyRequest(
        header=request.header,
        instruction=common_pb2.INSTRUCTION_SCALE_DOWN,
        dp_ranks=[0, 2],
        removed_dp_ranks=[1],
        dp_master_ip="10.0.0.1",
        dp_store_port=29500,
        plan_hash=PLAN.plan_hash,
    )


@pytest.mark.parametrize(
    "answer",
    [
        None,
        FtError(Reason.INTERNAL, "crashed"),
        node_manager_pb2.ApplyResponse(),
        node_manager_pb2.ApplyResponse(outcomes=[common_pb2.RankOutcome(dp_rank=0), common_pb2.RankOutcome(dp_rank=2)]),
    ],
    ids=["silence", "crash", "no outcomes", "unspecified outcomes"],
)
async def test_an_apply_that_perhaps_was_sent_is_unknown(
    node: NodeManager, nodes: GrpcNodeManagers, answer: Message | FtError | None
) -> None:
    """Silence, a crash and nonsense all leave open what the engines were told; it is sent once all the same."""
    node.answer = lambda: answer
    with pytest.raises(FtError) as failure:
        await nodes.apply(node.address, COMMAND, ORDER)
    assert failure.value.reason is Reason.OUTCOME_UNKNOWN
    assert len(node.requests) == 1


async def test_a_connection_that_breaks_leaves_an_apply_unknown(node: NodeManager, nodes: GrpcNodeManagers) -> None:
    host, _, port = node.address.partition(":")
    async with CutProxy(host, int(port)) as proxy:
        apply = asyncio.create_task(nodes.apply(proxy.address, COMMAND, ORDER))
        await until(lambda: node.requests)
        proxy.cut(mode="reset")
        with pytest.raises(FtError) as failure:
            await apply
    assert failure.value.reason is Reason.OUTCOME_UNKNOWN
    assert len(node.requests) == 1


async def test_a_refusal_keeps_its_reason(node: NodeManager, nodes: GrpcNodeManagers) -> None:
    node.answer = lambda: FtError(Reason.GUARD_HELD, "another one holds it", holder="r-0")
    with pytest.raises(FtError) as refusal:
        await nodes.guard(node.address, COMMAND, 60.0, None)
    assert (refusal.value.reason, refusal.value.metadata) == (Reason.GUARD_HELD, {"holder": "r-0"})


async def test_a_probe_is_in_the_asked_order_and_ends_in_time(node: NodeManager, nodes: GrpcNodeManagers) -> None:
    """The time that it gets is its own deadline: a completion may take longer than any other command."""
    probes = (RankProbe(0, ProbeOutcome.SERVED), RankProbe(2, ProbeOutcome.FAILED, "HTTP 500"))
    node.answer = lambda: node_manager_pb2.ProbeResponse(probes=map(probe_to_pb, probes))
    assert await nodes.probe(node.address, COMMAND, (0, 2), 20.0) == probes
    (request,) = node.requests
    assert (command_from_header(request.header), list(request.dp_ranks)) == (COMMAND, [0, 2])
    assert request.timeout == duration_to_pb(20.0)
    with pytest.raises(FtError, match=r"Probe of NodeManager at .* was answered with probes: must be for"):
        await nodes.probe(node.address, COMMAND, (2, 0), 20.0)
    node.answer = lambda: None
    with pytest.raises(FtError, match="DEADLINE_EXCEEDED"):
        await nodes.probe(node.address, COMMAND, (0,), 0.1)


async def test_finalize_and_stop(node: NodeManager, nodes: GrpcNodeManagers) -> None:
    node.answer = node_manager_pb2.FinalizeResponse
    await nodes.finalize(node.address, COMMAND, commit=True, retired=(1,))
    node.answer = node_lifecycle_pb2.StopResponse
    await nodes.stop(node.address, COMMAND, "rebuilt")
    finalize, stop = node.requests
    assert (finalize.commit, list(finalize.retired_dp_ranks)) == (True, [1])
    assert (command_from_header(stop.header), stop.reason) == (COMMAND, "rebuilt")


@pytest.mark.parametrize("answer", [None, FtError(Reason.STALE_EPOCH, "another one leads")])
async def test_recycle_tells_once_and_neither_waits_nor_raises(
    node: NodeManager, nodes: GrpcNodeManagers, answer: FtError | None
) -> None:
    node.answer = lambda: answer
    nodes.recycle(node.address, COMMAND)
    assert node.requests == []
    await until(lambda: node.requests)
    node.answer = node_manager_pb2.FinalizeResponse
    await nodes.finalize(node.address, COMMAND, commit=False, retired=())
    stop, _ = node.requests
    assert command_from_header(stop.header) == COMMAND


async def test_what_becomes_of_a_command_is_told_in_the_history(
    node: NodeManager, nodes: GrpcNodeManagers, histories: Histories
) -> None:
    """Answered, answered for each rank, refused, and given up by ourselves."""
    node.answer = node_manager_pb2.GuardResponse
    await nodes.guard(node.address, COMMAND, 60.0, PLAN)
    outcomes = (RankOutcome(0, ApplyOutcome.ACCEPTED), RankOutcome(2, ApplyOutcome.REFUSED, "busy"))
    node.answer = lambda: node_manager_pb2.ApplyResponse(outcomes=map(outcome_to_pb, outcomes))
    await nodes.apply(node.address, COMMAND, ORDER)
    probes = (RankProbe(0, ProbeOutcome.SERVED), RankProbe(2, ProbeOutcome.NOT_SERVED_HERE, "HTTP 404"))
    node.answer = lambda: node_manager_pb2.ProbeResponse(probes=map(probe_to_pb, probes))
    await nodes.probe(node.address, COMMAND, (0, 2), 20.0)
    node.answer = lambda: FtError(Reason.STALE_REQUEST_ID, "another id")
    with pytest.raises(FtError):
        await nodes.finalize(node.address, COMMAND, commit=True, retired=(1,))
    node.answer = lambda: None
    given_up = asyncio.create_task(nodes.stop(node.address, COMMAND, "rebuilt"))
    await until(lambda: len(node.requests) == 5)
    given_up.cancel()
    await asyncio.wait([given_up])
    told = histories.page(1, [EventKind.COMMAND], after=None, newest_first=False, size=10)
    assert [event.text for event in told] == [
        f"Guard at {node.address}: OK",
        f"Apply(scale_down) at {node.address}: rank 0 accepted, rank 2 refused busy",
        f"Probe at {node.address}: rank 0 served, rank 2 not_served_here HTTP 404",
        f"Finalize(commit) at {node.address}: STALE_REQUEST_ID: another id",
        f"Stop at {node.address}: cancelled, perhaps after it was sent",
    ]
    said = dict(told[0].attributes)
    assert float(said.pop("seconds")) >= 0
    assert said == {
        "method": "Guard",
        "address": node.address,
        "outcome": "OK",
        "request_id": COMMAND.request_id,
        "generation": "3",
    }


@pytest.mark.parametrize("validate_only", [True, False])
async def test_restart_engines_returns_what_is_there(
    node: NodeManager, nodes: GrpcNodeManagers, validate_only: bool
) -> None:
    engines = (PodEngine(0, "first", EngineStatus.DEAD), PodEngine(2, "second", EngineStatus.UNKNOWN, headless=True))
    node.answer = lambda: node_lifecycle_pb2.RestartEnginesResponse(engines=map(pod_engine_to_pb, engines))
    restart = nodes.restart_engines(node.address, COMMAND, "relaunched", 600.0, validate_only=validate_only)
    assert await restart == engines
    (request,) = node.requests
    assert (command_from_header(request.header), request.reason) == (COMMAND, "relaunched")
    assert (request.timeout, request.validate_only) == (duration_to_pb(600.0), validate_only)
    node.answer = lambda: node_lifecycle_pb2.RestartEnginesResponse(engines=[node_lifecycle_pb2.PodEngine(dp_rank=1)])
    with pytest.raises(FtError, match=r"was answered with engines\[0\]\.engine_incarnation: must be present"):
        await nodes.restart_engines(node.address, COMMAND, "relaunched", 600.0, validate_only=validate_only)


async def test_nobody_there_is_an_error_that_says_who(nodes: GrpcNodeManagers) -> None:
    with pytest.raises(FtError, match=r"Stop of NodeManager at 127\.0\.0\.1:1"):
        await nodes.stop("127.0.0.1:1", COMMAND, "rebuilt")


async def test_one_connection_serves_all_commands_until_it_is_forgotten(
    node: NodeManager, nodes: GrpcNodeManagers
) -> None:
    node.answer = node_manager_pb2.FinalizeResponse
    for _ in range(3):
        await nodes.finalize(node.address, COMMAND, commit=False, retired=())
    assert len(node.peers) == 1
    await nodes.forget(node.address)
    await nodes.forget(node.address)
    await nodes.finalize(node.address, COMMAND, commit=False, retired=())
    assert len(node.peers) == 2


async def test_connect_has_the_connection_ready_before_the_first_command(
    node: NodeManager, nodes: GrpcNodeManagers
) -> None:
    host, _, port = node.address.partition(":")
    async with CutProxy(host, int(port)) as proxy:
        nodes.connect(proxy.address)
        await until(lambda: proxy.accepted == 1)


async def test_a_lost_connection_comes_back_by_itself(node: NodeManager, nodes: GrpcNodeManagers) -> None:
    """The next command, perhaps the first of a recovery, does not wait for a connection."""
    node.answer = node_manager_pb2.FinalizeResponse
    host, _, port = node.address.partition(":")
    async with CutProxy(host, int(port)) as proxy:
        await nodes.finalize(proxy.address, COMMAND, commit=False, retired=())
        proxy.cut(mode="reset")
        proxy.heal()
        await until(lambda: proxy.accepted == 2)


async def test_a_node_manager_that_is_back_is_reached_at_once(node: NodeManager, nodes: GrpcNodeManagers) -> None:
    """It has said Hello: commands to it do not fail for the time until the old connection would be tried again."""
    node.answer = node_manager_pb2.FinalizeResponse
    host, _, port = node.address.partition(":")
    async with CutProxy(host, int(port)) as proxy:
        proxy.cut(mode="reset")
        for _ in range(5):
            with pytest.raises(FtError):
                await nodes.finalize(proxy.address, COMMAND, commit=False, retired=())
            await asyncio.sleep(0.2)  # for the pauses between attempts to grow
        proxy.heal()
        nodes.connect(proxy.address)
        await nodes.finalize(proxy.address, COMMAND, commit=False, retired=())


async def test_watch_yields_readings_and_swallows_signs_of_life(node: NodeManager, nodes: GrpcNodeManagers) -> None:
    """Progress keeps a watch alive that has nothing to tell; leaving it ends it at the NodeManager too."""
    node.watched.put_nowait(node_manager_pb2.WatchStatusResponse(observation=observation_to_pb(reading(0))))
    node.watched.put_nowait(node_manager_pb2.WatchStatusResponse(snapshot_complete=True))
    dead = reading(0, EngineStatus.DEAD, 2)
    node.watched.put_nowait(node_manager_pb2.WatchStatusResponse(observation=observation_to_pb(dead)))
    async with aclosing(nodes.watch(node.address, COMMAND, (0,))) as watch:
        assert await anext(watch) == reading(0)
        assert await anext(watch) == dead
        assert node.watchers == 1
    (request,) = node.requests
    assert (command_from_header(request.header), list(request.dp_ranks)) == (COMMAND, [0])
    await until(lambda: node.watchers == 0)


async def test_a_silent_watch_ends_with_an_error(node: NodeManager, nodes: GrpcNodeManagers) -> None:
    """A frozen NodeManager keeps its connection; only the missing progress shows it."""
    with pytest.raises(FtError, match=r"silent for 0.3 s"):
        await anext(nodes.watch(node.address, COMMAND, (0,)))
    await until(lambda: node.watchers == 0)


async def test_a_watch_that_ends_there_or_talks_nonsense_ends_with_an_error(
    node: NodeManager, nodes: GrpcNodeManagers
) -> None:
    node.watched.put_nowait(None)
    with pytest.raises(FtError, match="has ended"):
        await anext(nodes.watch(node.address, COMMAND, (0,)))
    node.watched.put_nowait(node_manager_pb2.WatchStatusResponse(observation=common_pb2.EngineObservation(dp_rank=-1)))
    with pytest.raises(FtError, match=r"was answered with observation\."):
        await anext(nodes.watch(node.address, COMMAND, (0,)))
    with pytest.raises(FtError):
        await anext(nodes.watch("127.0.0.1:1", COMMAND, (0,)))
