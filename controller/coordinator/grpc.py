"""A Coordinator that speaks CoordinatorService."""

from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2

from controller.core.serving import ServingEvent, ServingInstance
from motor_ft.model.errors import FtError
from motor_ft.v1 import coordinator_pb2, coordinator_pb2_grpc
from motor_ft.wire.channel import Lasting, call, open_channel
from motor_ft.wire.convert import endpoint_to_pb
from motor_ft.wire.enums import ROLE
from motor_ft.wire.tls import ClientTls

_SERVICE = coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"].full_name
_EVENTS = {
    ServingEvent.ADD: coordinator_pb2.REFRESH_EVENT_ADD,
    ServingEvent.DEL: coordinator_pb2.REFRESH_EVENT_DEL,
    ServingEvent.SET: coordinator_pb2.REFRESH_EVENT_SET,
    ServingEvent.PAUSE: coordinator_pb2.REFRESH_EVENT_PAUSE,
    ServingEvent.RESUME: coordinator_pb2.REFRESH_EVENT_RESUME,
}


class GrpcCoordinator:
    """ports.Coordinator at ``host:port``; ``timeout_sec`` bounds every call. Refuses a lower (epoch, revision)."""

    def __init__(self, target: str, *, timeout_sec: float, tls: ClientTls | None = None) -> None:
        self.name = f"{'grpcs' if tls else 'grpc'}://{target}"
        self._timeout_sec = timeout_sec
        self._calls = Lasting(lambda: open_channel(target, peer="Coordinator", tls=tls), _Calls)

    async def refresh(
        self, event: ServingEvent, instances: Sequence[ServingInstance], epoch: int, revision: int
    ) -> None:
        request = coordinator_pb2.RefreshRequest(
            controller_epoch=epoch,
            revision=revision,
            event=_EVENTS[event],
            instances=[to_pb(instance) for instance in instances],
        )
        await call((await self._calls.stub()).refresh, request, timeout=self._timeout_sec)

    async def ready(self) -> bool:
        request = health_pb2.HealthCheckRequest(service=_SERVICE)
        try:
            answer = await call((await self._calls.stub()).check, request, timeout=self._timeout_sec)
        except FtError:
            return False
        return answer.status == health_pb2.HealthCheckResponse.SERVING

    async def close(self) -> None:
        await self._calls.close()


class _Calls:
    """What a Coordinator is asked."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.refresh = coordinator_pb2_grpc.CoordinatorServiceStub(channel).Refresh
        # Not through HealthStub, which has no types.
        self.check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )


def to_pb(instance: ServingInstance) -> coordinator_pb2.ServingInstance:
    """Return the message of one instance of the view."""
    return coordinator_pb2.ServingInstance(
        instance_id=instance.instance_id,
        job_name=instance.job_name,
        model_name=instance.model_name,
        engine_type=instance.engine_type,
        role=ROLE.to_pb(instance.role),
        dp_size=instance.dp_size,
        tp_size=instance.tp_size,
        pods=[
            coordinator_pb2.ServingPod(
                ip=pod.ip,
                node_manager_port=pod.node_manager_port,
                endpoints=[endpoint_to_pb(endpoint) for endpoint in pod.endpoints],
            )
            for pod in instance.pods
        ],
        paused=instance.paused,
    )
