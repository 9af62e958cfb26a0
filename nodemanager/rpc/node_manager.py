"""NodeManagerService."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from motor_ft.model.engine import EngineObservation
from motor_ft.v1 import node_manager_pb2, node_manager_pb2_grpc
from motor_ft.wire.convert import (
    command_from_header,
    demand,
    duration_from_pb,
    duration_to_pb,
    observation_to_pb,
    outcome_to_pb,
    plan_from_pb,
    probe_to_pb,
    ranks_from_pb,
)
from motor_ft.wire.enums import INSTRUCTION
from nodemanager.core.applies import ApplyOrder
from nodemanager.pod import Pod
from nodemanager.rpc.ledger import Ledger
from nodemanager.service import FtService

PROGRESS_SEC = 3.0
Context = grpc.aio.ServicerContext[Any, Any]


class NodeManagerServicer(node_manager_pb2_grpc.NodeManagerServiceServicer):
    """Serves one pod."""

    def __init__(self, service: FtService, pod: Pod, ledger: Ledger) -> None:
        self._service = service
        self._pod = pod
        self._ledger = ledger

    async def Guard(self, request: node_manager_pb2.GuardRequest, context: Context) -> node_manager_pb2.GuardResponse:
        """Take or renew the lease."""
        demand(request.HasField("lease"), "lease", "must be present")
        plan = plan_from_pb(request.plan) if request.HasField("plan") else None
        grant = await self._service.guard(
            command_from_header(request.header), duration_from_pb(request.lease, "lease"), plan
        )
        return node_manager_pb2.GuardResponse(
            remaining=duration_to_pb(grant.remaining_sec), dp_store_port=grant.dp_store_port
        )

    async def Status(
        self, request: node_manager_pb2.StatusRequest, context: Context
    ) -> node_manager_pb2.StatusResponse:
        """Read the asked ranks anew."""
        readings = await self._service.status(ranks_from_pb(request.dp_ranks, "dp_ranks", empty=False))
        return node_manager_pb2.StatusResponse(observations=map(observation_to_pb, readings))

    async def Apply(self, request: node_manager_pb2.ApplyRequest, context: Context) -> node_manager_pb2.ApplyResponse:
        """Tell the engines once."""
        outcomes = await self._service.apply(command_from_header(request.header), _order(request))
        return node_manager_pb2.ApplyResponse(outcomes=map(outcome_to_pb, outcomes))

    async def Finalize(
        self, request: node_manager_pb2.FinalizeRequest, context: Context
    ) -> node_manager_pb2.FinalizeResponse:
        """End the transaction."""
        retired = await self._service.finalize(
            command_from_header(request.header),
            commit=request.commit,
            retired=ranks_from_pb(request.retired_dp_ranks, "retired_dp_ranks"),
        )
        return node_manager_pb2.FinalizeResponse(committed=request.commit, retired_dp_ranks=retired)

    async def WatchStatus(
        self, request: node_manager_pb2.WatchStatusRequest, context: Context
    ) -> AsyncIterator[node_manager_pb2.WatchStatusResponse]:
        """Stream readings: every asked rank once, then later ones; the fence is checked for each message."""
        command = command_from_header(request.header)
        ranks = ranks_from_pb(request.dp_ranks, "dp_ranks", empty=False)
        with self._pod.watch(ranks) as later:
            snapshot = await self._service.status(ranks)
            for reading in snapshot:
                yield _reading(reading)
            yield node_manager_pb2.WatchStatusResponse(snapshot_complete=True)
            while True:
                next_reading = await later.get(PROGRESS_SEC)
                self._ledger.fence(command)
                if next_reading is None:
                    yield node_manager_pb2.WatchStatusResponse(snapshot_complete=True)
                elif not _older(next_reading, snapshot):
                    yield _reading(next_reading)

    async def Probe(self, request: node_manager_pb2.ProbeRequest, context: Context) -> node_manager_pb2.ProbeResponse:
        """Ask each asked rank for one token."""
        ranks = ranks_from_pb(request.dp_ranks, "dp_ranks", empty=False)
        timeout = duration_from_pb(request.timeout, "timeout")
        demand(timeout > 0, "timeout", f"must be more than 0, not {timeout:g} s")
        return node_manager_pb2.ProbeResponse(probes=map(probe_to_pb, await self._service.probe(ranks, timeout)))


def _reading(reading: EngineObservation) -> node_manager_pb2.WatchStatusResponse:
    return node_manager_pb2.WatchStatusResponse(observation=observation_to_pb(reading))


def _older(reading: EngineObservation, snapshot: tuple[EngineObservation, ...]) -> bool:
    """It was read before the snapshot; a reading that our side could not make has no number."""
    return any(
        (first.rank, first.incarnation) == (reading.rank, reading.incarnation)
        and 0 < reading.observation <= first.observation
        for first in snapshot
    )


def _order(request: node_manager_pb2.ApplyRequest) -> ApplyOrder:
    instruction = INSTRUCTION.from_pb(request.instruction, "instruction")
    demand(bool(request.plan_hash), "plan_hash", "must be present")
    port = request.dp_store_port if request.HasField("dp_store_port") else None
    demand(port is None or 0 < port < 65536, "dp_store_port", f"must be 1 to 65535, not {port}")
    return ApplyOrder(
        instruction,
        ranks_from_pb(request.dp_ranks, "dp_ranks", empty=False),
        ranks_from_pb(request.removed_dp_ranks, "removed_dp_ranks"),
        request.dp_master_ip,
        port,
        request.plan_hash,
    )
