"""Commands to NodeManagers over gRPC."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import grpc

from controller.core.history import EventKind
from controller.core.ports import ApplyOrder, Clock, GuardGrant, Recorder
from motor_ft.model.command import Command, ScaleDownPlan
from motor_ft.model.engine import EngineObservation, PodEngine, RankOutcome, RankProbe
from motor_ft.model.errors import FieldError, FtError, Reason
from motor_ft.v1 import node_lifecycle_pb2, node_lifecycle_pb2_grpc, node_manager_pb2, node_manager_pb2_grpc
from motor_ft.wire.channel import call, failing, open_channel
from motor_ft.wire.convert import (
    command_to_header,
    demand,
    duration_from_pb,
    duration_to_pb,
    observation_from_pb,
    outcome_from_pb,
    plan_to_pb,
    pod_engine_from_pb,
    probe_from_pb,
)
from motor_ft.wire.enums import INSTRUCTION
from motor_ft.wire.errors import from_rpc_error
from motor_ft.wire.log import get_logger
from motor_ft.wire.tasks import Tasks
from motor_ft.wire.tls import ClientTls

log = get_logger(__name__)

WATCH_SILENCE_SEC = 9.0
"""Three of the progress intervals of WatchStatus."""


@dataclass(frozen=True, slots=True)
class _Peer:
    channel: grpc.aio.Channel
    transaction: "node_manager_pb2_grpc.NodeManagerServiceAsyncStub"
    lifecycle: "node_lifecycle_pb2_grpc.NodeLifecycleServiceAsyncStub"
    upkeep: asyncio.Task[None]


class GrpcNodeManagers:
    """ports.NodeManagers: one channel per address, opened once and kept connected until ``forget``.

    What becomes of a command that changes something goes into the history of its instance.
    """

    def __init__(
        self,
        *,
        request_timeout_sec: float,
        clock: Clock,
        recorder: Recorder,
        watch_silence_sec: float = WATCH_SILENCE_SEC,
        tls: ClientTls | None = None,
    ) -> None:
        self._tls = tls
        self._timeout = request_timeout_sec
        self._clock = clock
        self._recorder = recorder
        self._silence = watch_silence_sec
        self._tasks = Tasks("node managers")
        self._peers: dict[str, _Peer] = {}

    def connect(self, address: str) -> None:
        peer = self._peers.get(address)
        if peer is not None and failing(peer.channel):
            # It would wait up to a second before it tries again, and fail every command until then.
            self._tasks.spawn(f"leave {address}", _leave(self._peers.pop(address)))
        self._peer(address)

    async def guard(self, address: str, command: Command, lease_sec: float, plan: ScaleDownPlan | None) -> GuardGrant:
        request = node_manager_pb2.GuardRequest(
            header=command_to_header(command),
            lease=duration_to_pb(lease_sec),
            plan=None if plan is None else plan_to_pb(plan),
        )
        with self._recorded("Guard", address, command):
            answer = await call(self._peer(address).transaction.Guard, request, timeout=self._timeout)
            with _answer_of(address, "Guard", Reason.INTERNAL):
                port = answer.dp_store_port if answer.HasField("dp_store_port") else None
                demand(port is None or 0 < port < 65536, "dp_store_port", f"must be 1 to 65535, not {port}")
                return GuardGrant(duration_from_pb(answer.remaining, "remaining"), port)

    async def status(self, address: str, command: Command, ranks: Sequence[int]) -> tuple[EngineObservation, ...]:
        request = node_manager_pb2.StatusRequest(header=command_to_header(command), dp_ranks=ranks)
        answer = await call(self._peer(address).transaction.Status, request, timeout=self._timeout)
        with _answer_of(address, "Status", Reason.INTERNAL):
            read = tuple(
                observation_from_pb(message, f"observations[{index}]")
                for index, message in enumerate(answer.observations)
            )
            _demand_ranks([reading.rank for reading in read], ranks, "observations")
        return read

    async def apply(self, address: str, command: Command, order: ApplyOrder) -> tuple[RankOutcome, ...]:
        request = node_manager_pb2.ApplyRequest(
            header=command_to_header(command),
            instruction=INSTRUCTION.to_pb(order.instruction),
            dp_ranks=order.ranks,
            removed_dp_ranks=order.removed,
            dp_master_ip=order.dp_master_ip,
            dp_store_port=order.dp_store_port,
            plan_hash=order.plan_hash,
        )
        with self._recorded(f"Apply({order.instruction})", address, command) as said:
            outcomes = await self._applied(address, request)
            said["outcome"] = ", ".join(f"rank {each.rank} {each.outcome} {each.detail}".rstrip() for each in outcomes)
        return outcomes

    async def _applied(self, address: str, request: node_manager_pb2.ApplyRequest) -> tuple[RankOutcome, ...]:
        try:
            answer = await call(self._peer(address).transaction.Apply, request, timeout=self._timeout)
        except FtError as error:
            if error.reason is Reason.INTERNAL:  # it broke on the way, perhaps after the engines were told
                raise FtError(Reason.OUTCOME_UNKNOWN, error.message) from error
            raise
        with _answer_of(address, "Apply", Reason.OUTCOME_UNKNOWN):
            outcomes = tuple(
                outcome_from_pb(message, f"outcomes[{index}]") for index, message in enumerate(answer.outcomes)
            )
            _demand_ranks([outcome.rank for outcome in outcomes], request.dp_ranks, "outcomes")
        return outcomes

    async def probe(
        self, address: str, command: Command, ranks: Sequence[int], timeout_sec: float
    ) -> tuple[RankProbe, ...]:
        request = node_manager_pb2.ProbeRequest(
            header=command_to_header(command), dp_ranks=ranks, timeout=duration_to_pb(timeout_sec)
        )
        with self._recorded("Probe", address, command) as said:
            answer = await call(self._peer(address).transaction.Probe, request, timeout=timeout_sec)
            with _answer_of(address, "Probe", Reason.INTERNAL):
                probes = tuple(probe_from_pb(each, f"probes[{index}]") for index, each in enumerate(answer.probes))
                _demand_ranks([probe.rank for probe in probes], ranks, "probes")
            said["outcome"] = ", ".join(f"rank {each.rank} {each.outcome} {each.detail}".rstrip() for each in probes)
        return probes

    async def finalize(self, address: str, command: Command, *, commit: bool, retired: Sequence[int]) -> None:
        request = node_manager_pb2.FinalizeRequest(
            header=command_to_header(command), commit=commit, retired_dp_ranks=retired
        )
        with self._recorded("Finalize(commit)" if commit else "Finalize(abort)", address, command):
            await call(self._peer(address).transaction.Finalize, request, timeout=self._timeout)

    async def stop(self, address: str, command: Command, reason: str) -> None:
        request = node_lifecycle_pb2.StopRequest(header=command_to_header(command), reason=reason)
        with self._recorded("Stop", address, command):
            await call(self._peer(address).lifecycle.Stop, request, timeout=self._timeout)

    def recycle(self, address: str, command: Command) -> None:
        self._tasks.spawn(f"recycle {address}", self._recycle(address, command))

    async def _recycle(self, address: str, command: Command) -> None:
        try:
            await self.stop(address, command, "none of its ranks is in use any more")
        except FtError as error:  # what becomes of the pod is the cluster's business (RFC section 5)
            log.warning("pod not recycled", address=address, error=str(error))

    async def restart_engines(
        self, address: str, command: Command, reason: str, timeout_sec: float, *, validate_only: bool = False
    ) -> tuple[PodEngine, ...]:
        request = node_lifecycle_pb2.RestartEnginesRequest(
            header=command_to_header(command),
            reason=reason,
            timeout=duration_to_pb(timeout_sec),
            validate_only=validate_only,
        )
        with nullcontext() if validate_only else self._recorded("RestartEngines", address, command):
            answer = await call(self._peer(address).lifecycle.RestartEngines, request, timeout=self._timeout)
            with _answer_of(address, "RestartEngines", Reason.INTERNAL):
                return tuple(
                    pod_engine_from_pb(message, f"engines[{index}]") for index, message in enumerate(answer.engines)
                )

    async def watch(
        self, address: str, command: Command, ranks: Sequence[int]
    ) -> AsyncGenerator[EngineObservation, None]:
        request = node_manager_pb2.WatchStatusRequest(header=command_to_header(command), dp_ranks=ranks)
        stream = self._peer(address).transaction.WatchStatus(request)
        try:
            while True:
                message = await self._read(address, stream)
                if message.HasField("observation"):
                    with _answer_of(address, "WatchStatus", Reason.INTERNAL):
                        reading = observation_from_pb(message.observation)
                    yield reading
        finally:
            stream.cancel()

    async def forget(self, address: str) -> None:
        peer = self._peers.pop(address, None)
        if peer is not None:
            await _leave(peer)

    async def close(self) -> None:
        """Close every channel."""
        for address in list(self._peers):
            await self.forget(address)
        await self._tasks.close()

    @contextmanager
    def _recorded(self, method: str, address: str, command: Command) -> Iterator[dict[str, str]]:
        """Whatever comes of a command, and how long that took; ``outcome`` may say more than OK."""
        started, said = self._clock.now(), {"outcome": "OK"}
        try:
            yield said
        except asyncio.CancelledError:
            said["outcome"] = "cancelled, perhaps after it was sent"
            raise
        except FtError as error:
            said["outcome"] = str(error)
            log.warning("command failed", instance_id=command.instance_id, method=method, error=str(error))
            raise
        finally:
            said |= {"method": method, "address": address, "request_id": command.request_id}
            said |= {"generation": str(command.generation), "seconds": f"{self._clock.now() - started:.3f}"}
            text = f"{method} at {address}: {said['outcome']}"
            self._recorder.record(command.instance_id, EventKind.COMMAND, text, **said)

    def _peer(self, address: str) -> _Peer:
        if address not in self._peers:
            channel = open_channel(address, peer="NodeManager", tls=self._tls)
            self._peers[address] = _Peer(
                channel,
                node_manager_pb2_grpc.NodeManagerServiceStub(channel),
                node_lifecycle_pb2_grpc.NodeLifecycleServiceStub(channel),
                self._tasks.spawn(f"keep {address} connected", _keep_connected(channel)),
            )
        return self._peers[address]

    async def _read(
        self,
        address: str,
        stream: grpc.aio.UnaryStreamCall[node_manager_pb2.WatchStatusRequest, node_manager_pb2.WatchStatusResponse],
    ) -> node_manager_pb2.WatchStatusResponse:
        try:
            async with asyncio.timeout(self._silence):
                message = await stream.read()
        except TimeoutError as error:
            text = f"WatchStatus of NodeManager at {address}: silent for {self._silence:g} s"
            raise FtError(Reason.OUTCOME_UNKNOWN, text) from error
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        if not isinstance(message, node_manager_pb2.WatchStatusResponse):
            raise FtError(Reason.OUTCOME_UNKNOWN, f"WatchStatus of NodeManager at {address} has ended")
        return message


async def _leave(peer: _Peer) -> None:
    peer.upkeep.cancel()
    await peer.channel.close()


async def _keep_connected(channel: grpc.aio.Channel) -> None:
    """A channel that lost its connection, or was not used for long, would connect again only with the next command."""
    while True:
        await channel.wait_for_state_change(channel.get_state(try_to_connect=True))


@contextmanager
def _answer_of(address: str, method: str, reason: Reason) -> Iterator[None]:
    """A bad field inside is the fault of the one who answered."""
    try:
        yield
    except FieldError as error:
        raise FtError(reason, f"{method} of NodeManager at {address} was answered with {error.message}") from error


def _demand_ranks(answered: Sequence[int], asked: Sequence[int], path: str) -> None:
    demand(list(answered) == list(asked), path, f"must be for ranks {list(asked)}, not {list(answered)}")
