"""EngineService: parse, ask the hub, reply."""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from gateway.engines.dialect import Order
from gateway.engines.engine import Target
from gateway.engines.hub import Apply, EngineHub
from motor_ft.model.command import MAX_LEASE_SEC
from motor_ft.model.engine import Instruction
from motor_ft.v1 import engine_pb2, engine_pb2_grpc
from motor_ft.wire.convert import (
    command_from_header,
    demand,
    duration_from_pb,
    natural,
    observation_to_pb,
    outcome_to_pb,
    ranks_from_pb,
)
from motor_ft.wire.enums import INSTRUCTION, PROBE_OUTCOME

Context = grpc.aio.ServicerContext[Any, Any]


class EngineServicer(engine_pb2_grpc.EngineServiceServicer):
    """Serves one hub. ``timeout`` (seconds) is for requests without one; ``clock`` is the hub's."""

    def __init__(self, hub: EngineHub, *, timeout: float, clock: Callable[[], float]) -> None:
        self._hub = hub
        self._timeout = timeout
        self._clock = clock

    async def GetEngineStatus(
        self, request: engine_pb2.GetEngineStatusRequest, context: Context
    ) -> engine_pb2.GetEngineStatusResponse:
        """Read engines anew."""
        readings = await self._hub.observe(_targets(request.targets), self._timeout_of(request))
        return engine_pb2.GetEngineStatusResponse(observations=map(observation_to_pb, readings))

    async def WatchEngine(
        self, request: engine_pb2.WatchEngineRequest, context: Context
    ) -> AsyncIterator[engine_pb2.WatchEngineResponse]:
        """Stream readings until the caller has enough."""
        interval = _positive(request.interval, "interval")
        with self._hub.watch(_targets(request.targets), interval, self._timeout_of(request)) as watch:
            while True:
                yield engine_pb2.WatchEngineResponse(observation=observation_to_pb(await watch.next()))

    async def ApplyInstruction(
        self, request: engine_pb2.ApplyInstructionRequest, context: Context
    ) -> engine_pb2.ApplyInstructionResponse:
        """Give one order to engines; the lease counts from here."""
        received = self._clock()
        outcomes = await self._hub.apply(_apply(request, received, self._timeout_of(request)))
        return engine_pb2.ApplyInstructionResponse(outcomes=map(outcome_to_pb, outcomes))

    async def ProbeCompletion(
        self, request: engine_pb2.ProbeCompletionRequest, context: Context
    ) -> engine_pb2.ProbeCompletionResponse:
        """Ask one engine for one token."""
        target = _target(request.target, "target")
        outcome, detail = await self._hub.probe_completion(target, self._timeout_of(request))
        return engine_pb2.ProbeCompletionResponse(outcome=PROBE_OUTCOME.to_pb(outcome), detail=detail)

    def _timeout_of(
        self,
        request: engine_pb2.GetEngineStatusRequest
        | engine_pb2.WatchEngineRequest
        | engine_pb2.ApplyInstructionRequest
        | engine_pb2.ProbeCompletionRequest,
    ) -> float:
        return _positive(request.timeout, "timeout") if request.HasField("timeout") else self._timeout


def _apply(request: engine_pb2.ApplyInstructionRequest, received: float, timeout: float) -> Apply:
    command = command_from_header(request.header)
    instruction = INSTRUCTION.from_pb(request.instruction, "instruction")
    targets = _targets(request.targets)
    for index, target in enumerate(targets):
        demand(bool(target.incarnation), f"targets[{index}].engine_incarnation", "must be present")
    scale_down = instruction is Instruction.SCALE_DOWN
    removed = ranks_from_pb(request.removed_dp_ranks, "removed_dp_ranks", empty=not scale_down)
    demand(scale_down or not removed, "removed_dp_ranks", "must be empty for retry")
    retired = ranks_from_pb(request.retired_dp_ranks, "retired_dp_ranks", empty=True)
    demand(set(retired) <= set(removed), "retired_dp_ranks", f"must be among the removed ones, not {list(retired)}")
    both = sorted({target.rank for target in targets} & set(removed))
    demand(not both, "targets", f"ranks {both} are removed and must not be contacted")
    port = request.dp_store_port
    if scale_down:
        demand(bool(request.dp_master_ip), "dp_master_ip", "must be present")
        demand(0 < port < 65536, "dp_store_port", f"must be 1 to 65535, not {port}")
    else:
        demand(not request.dp_master_ip, "dp_master_ip", "must be empty for retry")
        demand(port == 0, "dp_store_port", "must be 0 for retry")
    lease = _positive(request.lease_remaining, "lease_remaining")
    demand(lease <= MAX_LEASE_SEC, "lease_remaining", f"must be at most {MAX_LEASE_SEC:g} s, not {lease:g} s")
    order = Order(command.request_id, instruction, removed, request.dp_master_ip, port, retired)
    return Apply(command, order, targets, received + lease, timeout)


def _targets(messages: Iterable[engine_pb2.EngineTarget]) -> tuple[Target, ...]:
    targets = tuple(_target(message, f"targets[{index}]") for index, message in enumerate(messages))
    ranks = [target.rank for target in targets]
    demand(bool(targets), "targets", "must name at least one engine")
    demand(len(set(ranks)) == len(ranks), "targets", f"must name each rank once, not {ranks}")
    return targets


def _target(message: engine_pb2.EngineTarget, path: str) -> Target:
    return Target(natural(message.dp_rank, f"{path}.dp_rank"), message.engine_incarnation)


def _positive(duration: Duration, path: str) -> float:
    seconds = duration_from_pb(duration, path)
    demand(seconds > 0, path, f"must be positive, not {seconds:g} s")
    return seconds
