"""The routes beside a Controller (RFC section 7; protocol.md section 5)."""

import re

import msgspec
from aiohttp import web

from gateway.rest.bodies import SoftwareFaultBody, read
from gateway.rest.controller_client import ControllerClient
from gateway.rest.errors import answer
from motor_ft.model.engine import EngineStatus
from motor_ft.model.errors import CATALOG, FieldError, FtError, Reason
from motor_ft.v1 import controller_pb2, fault_report_pb2
from motor_ft.wire.enums import ENGINE_STATUS

_REPORTED = {0: EngineStatus.HEALTHY, 1: EngineStatus.DEAD, 2: EngineStatus.UNHEALTHY}
_DISABLED = {"phase": "DISABLED", "instances": []}


def controller_routes(controller: ControllerClient) -> list[web.RouteDef]:
    """The routes on top of a Controller."""
    routes = _Routes(controller)
    return [
        web.get("/controller/fault_tolerance/status", routes.status),
        web.post("/controller/report_software_fault", routes.report_software_fault),
    ]


class _Routes:
    def __init__(self, controller: ControllerClient) -> None:
        self._controller = controller

    async def status(self, request: web.Request) -> web.Response:
        if (text := request.query.get("instance_id")) is not None:
            instance = await self._controller.instance(_instance_id(text))
            return answer(_DISABLED if _is_disabled(instance) else runtime(instance))
        instances: list[dict[str, object]] = []
        async for page in self._controller.pages():
            if page.scale_down_disabled or any(map(_is_disabled, page.instances)):
                return answer(_DISABLED)
            instances += map(runtime, page.instances)
        return answer({"instances": instances})

    async def report_software_fault(self, request: web.Request) -> web.Response:
        try:
            return answer({"accepted": await self._controller.report(_report(await read(request, SoftwareFaultBody)))})
        except FtError as error:
            if error.reason is Reason.FEATURE_DISABLED:
                return answer({"accepted": False})
            return answer({"accepted": False, "reason": str(error)}, _report_status(error.reason))


def runtime(instance: controller_pb2.Instance) -> dict[str, object]:
    """Exactly the 13 fields of RFC section 7."""
    gate = {"allowed": instance.gate.allowed, "reason_codes": list(instance.gate.reason_codes)}
    return {
        "instance_id": instance.instance_id,
        "phase": _phase(instance),
        "original_dp_ranks": list(instance.original_dp_ranks),
        "request_id": instance.request_id or None,
        "dead_committed": list(instance.dead_committed),
        "pending_removed_ranks": list(instance.pending_removed_ranks),
        "alive_dp_ranks": list(instance.alive_dp_ranks),
        "fallback_strategy": instance.fallback_strategy,
        "gate": gate if instance.HasField("gate") else None,
        "engine_statuses": {
            str(rank): ENGINE_STATUS.from_pb(status, f"engine_statuses[{rank}]")
            for rank, status in sorted(instance.engine_statuses.items())
        },
        "serving_published": instance.serving_published,
        "last_error": instance.last_error or None,
        "can_serve": instance.can_serve,
    }


def _phase(instance: controller_pb2.Instance) -> str:
    return controller_pb2.Phase.Name(instance.phase).removeprefix("PHASE_")


def _is_disabled(instance: controller_pb2.Instance) -> bool:
    return instance.phase == controller_pb2.PHASE_DISABLED


def _instance_id(text: str) -> int:
    if not re.fullmatch("[0-9]{1,19}", text) or not 0 < int(text) < 2**63:
        raise FieldError({"instance_id": f"must be a positive number, not {text[:40]!r}"})
    return int(text)


def _report(body: SoftwareFaultBody) -> fault_report_pb2.ReportSoftwareFaultRequest:
    info = (body.additional_info or {}).items()
    return fault_report_pb2.ReportSoftwareFaultRequest(
        instance_id=body.instance_id,
        pod_ip=body.pod_ip,
        node_manager_port=body.node_manager_port,
        engine_id=body.engine_id,
        engine_status=ENGINE_STATUS.to_pb(_REPORTED[body.engine_status]),
        exception_type=body.exception_type,
        exception_message=body.exception_message,
        additional_info={
            key: value if isinstance(value, str) else msgspec.json.encode(value).decode() for key, value in info
        },
    )


def _report_status(reason: Reason) -> int:
    """400 for a report that was refused for what it says; the catalog's status for one that was not judged."""
    undelivered = {
        Reason.UNAUTHENTICATED,
        Reason.PERMISSION_DENIED,
        Reason.NOT_LEADER,
        Reason.EPOCH_BEHIND_FLEET,
        Reason.CONTROLLER_UNREACHABLE,
        Reason.OUTCOME_UNKNOWN,
        Reason.OVERLOADED,
        Reason.STORE_UNAVAILABLE,
        Reason.SHUTTING_DOWN,
        Reason.INTERNAL,
    }
    return CATALOG[reason].rest_status if reason in undelivered else 400
