"""What a Coordinator holds: instances by id, with the identity checks of a refresh. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """One routable rank: `number` is the endpoint id, its DP rank."""

    pod_ip: str
    local_index: str
    number: int
    ip: str
    business_port: str
    headless: bool = False


@dataclass(frozen=True, slots=True)
class Instance:
    """Identity of an instance in a view: what a DEL must repeat to be believed."""

    number: int
    job_name: str
    role: str
    endpoints: frozenset[Endpoint]


class RefreshError(Exception):
    """A refused refresh; the view is as it was."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class View:
    """The serving view: every event is applied whole or not at all.

    As in Motor, ADD and SET let requests in to all that they name, whatever its status says, and RESUME of what is
    not paused means nothing.
    """

    def __init__(self) -> None:
        self._instances: dict[int, Instance] = {}
        self._paused: frozenset[int] = frozenset()

    def refresh(self, body: object) -> None:
        """Apply one `POST /instances/refresh`.

        Raises:
            RefreshError: malformed body, unknown instance, or a view that is not the one held.
        """
        event, instances = _parse(body)
        appliers: dict[str, Callable[[dict[int, Instance]], None]] = {
            "add": self._add,
            "del": self._delete,
            "set": self._set,
            "pause": self._pause,
            "resume": self._resume,
        }
        if event not in appliers:
            raise RefreshError(HTTPStatus.BAD_REQUEST, f"unknown event {event!r}; there are {[*appliers]}")
        appliers[event](instances)

    def forget(self) -> None:
        """As after a restart."""
        self._instances, self._paused = {}, frozenset()

    @property
    def instances(self) -> dict[int, Instance]:
        return dict(self._instances)

    def routable(self) -> list[tuple[Instance, Endpoint]]:
        """Every endpoint that may get requests, in a stable order."""
        return [
            (instance, endpoint)
            for number, instance in sorted(self._instances.items())
            if number not in self._paused
            for endpoint in sorted(instance.endpoints)
            if not endpoint.headless
        ]

    def _add(self, instances: dict[int, Instance]) -> None:
        for number, instance in instances.items():
            if self._instances.get(number, instance) != instance:
                raise _identity(f"instance {number} is known with another view; delete it first")
        self._instances |= instances
        self._paused -= instances.keys()

    def _delete(self, instances: dict[int, Instance]) -> None:
        self._known(instances)
        for number, instance in instances.items():
            if self._instances[number] != instance:
                raise _identity(f"the view of instance {number} to delete is not the one held")
        for number in instances:
            del self._instances[number]
        self._paused -= instances.keys()

    def _set(self, instances: dict[int, Instance]) -> None:
        self._instances, self._paused = dict(instances), frozenset()

    def _pause(self, instances: dict[int, Instance]) -> None:
        self._known(instances)
        self._paused |= instances.keys()

    def _resume(self, instances: dict[int, Instance]) -> None:
        paused = {number: instance for number, instance in instances.items() if number in self._paused}
        self._instances |= paused
        self._paused -= paused.keys()

    def _known(self, instances: dict[int, Instance]) -> None:
        if unknown := sorted(instances.keys() - self._instances.keys()):
            raise RefreshError(HTTPStatus.NOT_FOUND, f"unknown instances {unknown}")


def _identity(text: str) -> RefreshError:
    return RefreshError(HTTPStatus.CONFLICT, f"identity validation failed: {text}")


def _parse(body: object) -> tuple[object, dict[int, Instance]]:
    try:
        if not isinstance(body, dict) or not isinstance(body["instances"], list):
            raise TypeError("the body must be an object with a list 'instances'")
        instances = [_instance(instance) for instance in body["instances"]]
        event = body["event"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RefreshError(HTTPStatus.BAD_REQUEST, f"malformed refresh: {error!r}") from error
    if repeated := _repeated([instance.number for instance in instances]):
        raise RefreshError(HTTPStatus.BAD_REQUEST, f"duplicate instance ids {repeated} in one request")
    return event, {instance.number: instance for instance in instances}


def _repeated(numbers: Sequence[int]) -> list[int]:
    return sorted({number for number in numbers if numbers.count(number) > 1})


def _instance(fields: Json) -> Instance:
    endpoints = fields["endpoints"]
    if not isinstance(endpoints, dict):
        raise TypeError("'endpoints' must be an object")
    return Instance(
        number=int(str(fields["id"])),
        job_name=str(fields["job_name"]),
        role=str(fields["role"]),
        endpoints=frozenset(
            _endpoint(pod_ip, index, endpoint)
            for pod_ip, by_index in endpoints.items()
            for index, endpoint in by_index.items()
        ),
    )


def _endpoint(pod_ip: str, index: str, fields: Json) -> Endpoint:
    return Endpoint(
        pod_ip=pod_ip,
        local_index=index,
        number=int(str(fields["id"])),
        ip=str(fields["ip"]),
        business_port=str(fields["business_port"]),
        headless=bool(fields.get("headless", False)),
    )
