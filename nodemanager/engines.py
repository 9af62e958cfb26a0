"""EngineService as the NodeManager calls it; implements ``core.ports.Engines``."""

from collections.abc import AsyncGenerator, Iterable, Sequence

import grpc

from motor_ft.model.command import Command
from motor_ft.model.engine import EngineObservation, RankOutcome, RankProbe
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import engine_pb2, engine_pb2_grpc
from motor_ft.wire.channel import Lasting, call, open_channel
from motor_ft.wire.convert import (
    command_to_header,
    duration_to_pb,
    observation_from_pb,
    outcome_from_pb,
)
from motor_ft.wire.enums import INSTRUCTION, PROBE_OUTCOME
from motor_ft.wire.errors import from_rpc_error
from motor_ft.wire.tls import ClientTls
from nodemanager.core.applies import ApplyOrder
from nodemanager.core.ports import Target

_MARGIN_SEC = 1.0


class EngineClient:
    """The engines of this pod through the gateway at ``address``, in this process or beside it."""

    def __init__(self, address: str, token: str = "", tls: ClientTls | None = None) -> None:
        self._gateway = Lasting(
            lambda: open_channel(address, peer="gateway", token=token, tls=tls), engine_pb2_grpc.EngineServiceStub
        )

    async def close(self) -> None:
        """Let go of the connection."""
        await self._gateway.close()

    async def status(self, targets: Sequence[Target], timeout_sec: float) -> tuple[EngineObservation, ...]:
        """Read each engine anew, in the asked order."""
        request = engine_pb2.GetEngineStatusRequest(targets=_targets(targets), timeout=duration_to_pb(timeout_sec))
        response = await call((await self._gateway.stub()).GetEngineStatus, request, timeout=_deadline(timeout_sec))
        _demand_count(len(targets), len(response.observations), "GetEngineStatus")
        return tuple(observation_from_pb(message) for message in response.observations)

    async def watch(
        self, targets: Sequence[Target], interval_sec: float, timeout_sec: float
    ) -> AsyncGenerator[EngineObservation, None]:
        """Read again and again until closed; raises FtError when the gateway ends it."""
        request = engine_pb2.WatchEngineRequest(
            targets=_targets(targets), interval=duration_to_pb(interval_sec), timeout=duration_to_pb(timeout_sec)
        )
        stream = (await self._gateway.stub()).WatchEngine(request)
        try:
            async for response in stream:
                yield observation_from_pb(response.observation)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        finally:
            stream.cancel()
        raise FtError(Reason.SHUTTING_DOWN, "the gateway ended WatchEngine")

    async def apply(
        self,
        command: Command,
        order: ApplyOrder,
        targets: Sequence[Target],
        *,
        lease_sec: float,
        timeout_sec: float,
    ) -> tuple[RankOutcome, ...]:
        """Tell each target once, while the lease has ``lease_sec`` left; OUTCOME_UNKNOWN may have been sent."""
        request = engine_pb2.ApplyInstructionRequest(
            header=command_to_header(command),
            instruction=INSTRUCTION.to_pb(order.instruction),
            targets=_targets(targets),
            removed_dp_ranks=order.removed,
            retired_dp_ranks=order.retired,
            dp_master_ip=order.dp_master_ip,
            dp_store_port=order.dp_store_port or 0,
            lease_remaining=duration_to_pb(lease_sec),
            timeout=duration_to_pb(timeout_sec),
        )
        response = await call((await self._gateway.stub()).ApplyInstruction, request, timeout=_deadline(timeout_sec))
        _demand_count(len(targets), len(response.outcomes), "ApplyInstruction")
        return tuple(outcome_from_pb(message) for message in response.outcomes)

    async def probe(self, target: Target, timeout_sec: float) -> RankProbe:
        """Ask for one token."""
        (message,) = _targets([target])
        request = engine_pb2.ProbeCompletionRequest(target=message, timeout=duration_to_pb(timeout_sec))
        response = await call((await self._gateway.stub()).ProbeCompletion, request, timeout=_deadline(timeout_sec))
        return RankProbe(target.rank, PROBE_OUTCOME.from_pb(response.outcome, "outcome"), response.detail)


def _deadline(timeout_sec: float) -> float:
    """The gateway may have to find out the dialect, or the model, before it asks: that is another HTTP request."""
    return 2 * timeout_sec + _MARGIN_SEC


def _targets(targets: Iterable[Target]) -> list[engine_pb2.EngineTarget]:
    return [engine_pb2.EngineTarget(dp_rank=target.rank, engine_incarnation=target.incarnation) for target in targets]


def _demand_count(asked: int, got: int, method: str) -> None:
    if asked != got:
        raise FtError(Reason.ENGINE_PROTOCOL, f"{method} of the gateway answered {got} entries for {asked} engines")
