"""The four routes of a NodeManager (RFC section 6)."""

from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

from gateway.metrics import RestMetrics
from gateway.rest.bodies import ApplyBody, CommandBody, FinalizeBody, GuardBody, StatusBody, ranks, read
from gateway.rest.errors import answer
from gateway.rest.ports import NodeFtPort
from motor_ft.model.command import Command
from motor_ft.model.engine import ApplyOutcome, EngineObservation, Problem, RankOutcome
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.log import get_logger

PREFIX = "/node-manager/fault-tolerance"
_log = get_logger(__name__)

_UNREAD = {
    Problem.UNREACHABLE: Reason.ENGINE_UNREACHABLE,
    Problem.LOCAL: Reason.ENGINE_UNREACHABLE,
    Problem.HTTP_STATUS: Reason.ENGINE_PROTOCOL,
    Problem.PROTOCOL: Reason.ENGINE_PROTOCOL,
    Problem.IDENTITY: Reason.ENGINE_IDENTITY_MISMATCH,
}

# What is least known weighs most.
_UNAPPLIED = {
    ApplyOutcome.UNKNOWN: Reason.OUTCOME_UNKNOWN,
    ApplyOutcome.REFUSED: Reason.ENGINE_REFUSED,
    ApplyOutcome.NOT_SENT: Reason.ENGINE_UNREACHABLE,
}


def node_manager_routes(
    service: NodeFtPort, *, metrics: RestMetrics, strict_fencing: bool = False
) -> list[web.RouteDef]:
    """The routes on top of ``service``; ``strict_fencing`` refuses commands without epoch and generation."""
    routes = _Routes(service, metrics, strict_fencing)
    return [
        web.post(f"{PREFIX}/status", routes.when_enabled(routes.status)),
        web.post(f"{PREFIX}/apply", routes.when_enabled(routes.apply)),
        web.post(f"{PREFIX}/guard", routes.when_enabled(routes.guard)),
        web.post(f"{PREFIX}/finalize", routes.when_enabled(routes.finalize)),
    ]


Route = Callable[[web.Request], Awaitable[web.Response]]


class _Routes:
    def __init__(self, service: NodeFtPort, metrics: RestMetrics, strict_fencing: bool) -> None:
        self._service = service
        self._metrics = metrics
        self._strict_fencing = strict_fencing

    def when_enabled(self, route: Route) -> Route:
        """Answer 404 before the body is looked at while the feature is off."""

        async def guarded(request: web.Request) -> web.Response:
            if not self._service.enabled:
                raise FtError(Reason.FEATURE_DISABLED, "DP scale-down is switched off for this pod")
            return await route(request)

        return guarded

    async def status(self, request: web.Request) -> web.Response:
        body = await read(request, StatusBody)
        readings = await self._service.status(ranks(body.endpoint_ids, "endpoint_ids"))
        _demand_read(readings)
        return answer({str(reading.rank): _entry(reading) for reading in readings})

    async def apply(self, request: web.Request) -> web.Response:
        body = await read(request, ApplyBody)
        command = self._command(request, body)
        outcomes = await self._service.apply(
            command,
            ranks(body.endpoint_ids, "endpoint_ids"),
            ranks(body.params.removed_dp_ranks, "params.removed_dp_ranks"),
            body.params.dp_master_ip,
            body.params.dp_store_port,
        )
        _demand_accepted(outcomes)
        return answer({"status": "accepted"})

    async def guard(self, request: web.Request) -> web.Response:
        body = await read(request, GuardBody)
        await self._service.guard(self._command(request, body), body.lease_sec)
        return answer({"status": "guarded"})

    async def finalize(self, request: web.Request) -> web.Response:
        body = await read(request, FinalizeBody)
        retired = ranks(body.retired_endpoint_ids, "retired_endpoint_ids")
        await self._service.finalize(self._command(request, body), body.commit, retired if body.commit else ())
        return answer({"status": "committed" if body.commit else "aborted"})

    def _command(self, request: web.Request, body: CommandBody) -> Command:
        command = body.command(self._service.instance_id)
        if command.epoch is None:
            if self._strict_fencing:
                raise FtError(
                    Reason.FENCING_REQUIRED, "controller_epoch and generation are required: strict_fencing is on"
                )
            self._metrics.unfenced.labels(request.path).inc()
            _log.warning("unfenced command", path=request.path, request_id=command.request_id)
        return command


def _entry(reading: EngineObservation) -> dict[str, object]:
    return {
        "id": reading.rank,
        "status": reading.status,
        "ft_state": reading.ft_state or None,
        "fault_info": reading.fault_info or None,
        "last_ft_request_id": reading.last_ft_request_id or None,
        "ft_error": reading.ft_error or None,
        "mask": reading.mask,
    }


def _demand_read(readings: Iterable[EngineObservation]) -> None:
    failed = [reading for reading in readings if reading.problem is not Problem.NONE]
    if failed:
        text = "; ".join(f"rank {reading.rank}: {reading.detail}" for reading in failed)
        raise FtError(_UNREAD[failed[0].problem], text)


def _demand_accepted(outcomes: Iterable[RankOutcome]) -> None:
    failed = [outcome for outcome in outcomes if outcome.outcome is not ApplyOutcome.ACCEPTED]
    if failed:
        text = "; ".join(f"rank {outcome.rank}: {outcome.outcome}: {outcome.detail}" for outcome in failed)
        worst = {outcome.outcome for outcome in failed}
        raise FtError(next(reason for outcome, reason in _UNAPPLIED.items() if outcome in worst), text)
