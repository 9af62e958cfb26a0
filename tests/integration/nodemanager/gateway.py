"""An EngineService that says what a test wants and remembers what it was told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from motor_ft.v1.common_pb2 import EngineObservation, RankOutcome
from motor_ft.wire.errors import abort

Context = grpc.aio.ServicerContext[Any, Any]
HEALTHY = common_pb2.ENGINE_STATUS_HEALTHY
UNHEALTHY = common_pb2.ENGINE_STATUS_UNHEALTHY
DEAD = common_pb2.ENGINE_STATUS_DEAD
UNKNOWN = common_pb2.ENGINE_STATUS_UNKNOWN


class ScriptedGateway(engine_pb2_grpc.EngineServiceServicer):
    """Engines are healthy until told otherwise; every change is streamed to whoever watches."""

    def __init__(self) -> None:
        self.applies: list[engine_pb2.ApplyInstructionRequest] = []
        self.applied = asyncio.Event()
        self.answer = asyncio.Event()
        self.answer.set()
        self.outcome: common_pb2.ApplyOutcome.ValueType = common_pb2.APPLY_OUTCOME_ACCEPTED
        self.watches: list[engine_pb2.WatchEngineRequest] = []
        self.reads = 0
        self.probes: list[engine_pb2.ProbeCompletionRequest] = []
        self.probed: dict[int, common_pb2.ProbeOutcome.ValueType] = {}
        self._said: dict[int, EngineObservation] = {}
        self._changed = asyncio.Condition()

    async def say(self, rank: int, status: common_pb2.EngineStatus.ValueType, **fields: Any) -> None:
        """What the engine of a rank says from now on."""
        async with self._changed:
            self._said[rank] = EngineObservation(dp_rank=rank, status=status, **fields)
            self._changed.notify_all()

    def _read(self, target: engine_pb2.EngineTarget) -> EngineObservation:
        self.reads += 1
        said = self._said.get(target.dp_rank, EngineObservation(dp_rank=target.dp_rank, status=HEALTHY))
        reading = EngineObservation()
        reading.CopyFrom(said)
        reading.observation = self.reads
        reading.engine_incarnation = said.engine_incarnation or target.engine_incarnation
        return reading

    async def GetEngineStatus(
        self, request: engine_pb2.GetEngineStatusRequest, context: Context
    ) -> engine_pb2.GetEngineStatusResponse:
        return engine_pb2.GetEngineStatusResponse(observations=[self._read(target) for target in request.targets])

    async def WatchEngine(
        self, request: engine_pb2.WatchEngineRequest, context: Context
    ) -> AsyncIterator[engine_pb2.WatchEngineResponse]:
        self.watches.append(request)
        seen: dict[int, EngineObservation | None] = {}
        while True:
            async with self._changed:
                while not (new := [target for target in request.targets if self._new(seen, target)]):
                    await self._changed.wait()
                seen.update({target.dp_rank: self._said.get(target.dp_rank) for target in new})
            for target in new:
                yield engine_pb2.WatchEngineResponse(observation=self._read(target))

    def _new(self, seen: dict[int, EngineObservation | None], target: engine_pb2.EngineTarget) -> bool:
        rank = target.dp_rank
        return rank not in seen or seen[rank] is not self._said.get(rank)

    async def ApplyInstruction(
        self, request: engine_pb2.ApplyInstructionRequest, context: Context
    ) -> engine_pb2.ApplyInstructionResponse:
        self.applies.append(request)
        self.applied.set()
        await self.answer.wait()
        return engine_pb2.ApplyInstructionResponse(
            outcomes=[
                RankOutcome(dp_rank=target.dp_rank, outcome=self.outcome, observation=self.reads)
                for target in request.targets
            ]
        )

    async def ProbeCompletion(
        self, request: engine_pb2.ProbeCompletionRequest, context: Context
    ) -> engine_pb2.ProbeCompletionResponse:
        self.probes.append(request)
        if (outcome := self.probed.get(request.target.dp_rank)) is None:
            await abort(context, FtError(Reason.UNKNOWN_RANK, "no such engine here"))
        return engine_pb2.ProbeCompletionResponse(outcome=outcome, detail="as a test says")


@asynccontextmanager
async def serve(gateway: ScriptedGateway, address: str) -> AsyncIterator[None]:
    """Serve it on ``unix:/path``; leaving ends it as a crash would, without a farewell."""
    server = grpc.aio.server()
    engine_pb2_grpc.add_EngineServiceServicer_to_server(gateway, server)
    server.add_insecure_port(address)
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)
