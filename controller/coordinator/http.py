"""A Motor Coordinator, by its own HTTP interface (protocol.md section 5)."""

from collections.abc import Sequence

import aiohttp
import orjson

from controller.core.serving import ServingEvent, ServingInstance
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import Endpoint, EndpointStatus

_MAX_ANSWER_BYTES = 64 * 1024
_TAKES_IN = {ServingEvent.ADD, ServingEvent.SET}


class HttpCoordinator:
    """ports.Coordinator at a base URL such as ``http://coordinator:1026``; ``timeout_sec`` bounds every request.

    Motor has no epochs: who may write is decided by the leadership deadline alone. What takes requests away from an
    instance that the Coordinator does not know (HTTP 404) is confirmed.

    Motor routes to everything that ADD or SET names, whatever its status says: they leave out what is paused, and so a
    SET ends in the Coordinator what PAUSE has begun. RESUME of what is not there any more means nothing to Motor, so
    ADD follows, which means nothing to it where RESUME was enough.
    """

    def __init__(self, url: str, *, timeout_sec: float) -> None:
        self._url = url.rstrip("/")
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_sec))

    @property
    def name(self) -> str:
        return self._url

    async def refresh(
        self, event: ServingEvent, instances: Sequence[ServingInstance], epoch: int, revision: int
    ) -> None:
        if event in _TAKES_IN:
            instances = [instance for instance in instances if not instance.paused]
        if instances or event is ServingEvent.SET:
            await self._post(event, instances)
        if event is ServingEvent.RESUME:
            await self._post(ServingEvent.ADD, instances)

    async def _post(self, event: ServingEvent, instances: Sequence[ServingInstance]) -> None:
        body = orjson.dumps({"event": event, "instances": [to_json(instance) for instance in instances]})
        url = f"{self._url}/instances/refresh"
        try:
            async with self._session.post(
                url, data=body, headers={"Content-Type": "application/json"}, allow_redirects=False
            ) as response:
                answer = await response.content.read(_MAX_ANSWER_BYTES)
                status = response.status
        except (TimeoutError, aiohttp.ClientError) as error:
            raise FtError(Reason.OUTCOME_UNKNOWN, f"{event} to {url}: {str(error) or 'no answer in time'}") from error
        if status != 200 and not (status == 404 and event not in _TAKES_IN):
            text = answer.decode(errors="replace")[:200]
            raise FtError(Reason.OUTCOME_UNKNOWN, f"{event} to {url} was answered with HTTP {status}: {text}")

    async def ready(self) -> bool:
        try:
            async with self._session.get(
                f"{self._url}/readiness", params={"status": "normal"}, allow_redirects=False
            ) as response:
                answer = orjson.loads(await response.content.read(_MAX_ANSWER_BYTES))
                return response.status == 200 and isinstance(answer, dict) and answer.get("ready") is True
        except (TimeoutError, aiohttp.ClientError, orjson.JSONDecodeError):
            return False

    async def close(self) -> None:
        await self._session.close()


def to_json(instance: ServingInstance) -> dict[str, object]:
    """Return Motor's form of an instance; its models want ports and device numbers as strings."""
    return {
        "job_name": instance.job_name,
        "model_name": instance.model_name,
        "engine_type": instance.engine_type,
        "id": instance.instance_id,
        "role": instance.role,
        "status": "inactive" if instance.paused else "active",
        "parallel_config": {"dp_size": instance.dp_size, "tp_size": instance.tp_size},
        "node_managers": [{"pod_ip": pod.ip, "port": str(pod.node_manager_port)} for pod in instance.pods],
        "endpoints": _endpoints(instance),
    }


def _endpoints(instance: ServingInstance) -> dict[str, dict[str, object]]:
    # Collected by address: two pods that share one must not hide each other.
    by_address: dict[str, list[Endpoint]] = {}
    for pod in instance.pods:
        by_address.setdefault(pod.ip, []).extend(pod.endpoints)
    return {
        address: {str(index): _endpoint(endpoint, instance.tp_size) for index, endpoint in enumerate(endpoints)}
        for address, endpoints in by_address.items()
    }


def _endpoint(endpoint: Endpoint, tp_size: int) -> dict[str, object]:
    port = str(endpoint.business_port)
    return {
        "id": endpoint.rank,
        "ip": endpoint.ip,
        "business_port": port,
        "mgmt_port": port,
        "status": EndpointStatus.NORMAL,
        "device_infos": [
            {
                "device_id": card.device_id,
                "device_ip": card.device_ip or None,
                "rank_id": str(endpoint.rank * tp_size + index),
            }
            for index, card in enumerate(endpoint.devices)
        ],
        "headless": endpoint.headless,
    }
