"""Server side: one server per process, every call through the interceptors (protocol.md section 3)."""

from collections.abc import Callable
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import TypeVar

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from motor_ft.model.errors import FtError
from motor_ft.v1.common_pb2 import CommandHeader, OperatorHeader
from motor_ft.wire.address import is_local, split_address
from motor_ft.wire.authorizer import Authorizer
from motor_ft.wire.channel import MAX_MESSAGE_BYTES
from motor_ft.wire.commands import CommandLedger
from motor_ft.wire.health import Health
from motor_ft.wire.interceptors.chain import Chain
from motor_ft.wire.listen import cannot_listen
from motor_ft.wire.log import get_logger
from motor_ft.wire.metrics import RpcMetrics
from motor_ft.wire.policy import PolicyTable

S = TypeVar("S")
_log = get_logger(__name__)

OPTIONS = (
    # Else a stale second process would silently take half of the connections.
    ("grpc.so_reuseport", 0),
    # A frozen peer is noticed only with the ping timeout; the keepalive options alone do not do it.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Our clients ping every 10 s; the default of 5 min would answer them with GOAWAY.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)


class RpcServer:
    """Serves what is added, with health per service and reflection.

    ``listen`` is ``host:port``, with port 0 for any free one, or ``unix:/path``. ``commands`` is needed where a
    method's policy says ``command``; without ``authorizer`` everybody may call. ``refusal`` says why methods whose
    policy says ``leader`` are not answered now. Without ``credentials``, and on ``unix:``, it serves
    in plain text; ``client_certificates`` says whether they ask clients who they are.
    """

    def __init__(
        self,
        *,
        name: str,
        listen: str,
        metrics: RpcMetrics,
        policies: PolicyTable,
        commands: CommandLedger | None = None,
        authorizer: Authorizer | None = None,
        refusal: Callable[[], FtError | None] = lambda: None,
        reflection: bool = True,
        credentials: grpc.ServerCredentials | None = None,
        client_certificates: bool = True,
    ) -> None:
        self._name = name
        self._listen = listen
        self._policies = policies
        self._commands = commands
        self._reflection = reflection
        self._credentials = credentials
        self._protected = (credentials is not None and client_certificates) or authorizer is not None
        self._services: list[str] = []
        self._health = Health()
        self._chain = Chain(policies, metrics, commands, authorizer, refusal)
        self._server = grpc.aio.server(interceptors=[self._chain], options=OPTIONS)

    def add(self, descriptor_name: str, add_to_server: Callable[[S, grpc.aio.Server], None], servicer: S) -> None:
        """Serve a service, SERVING unless said otherwise.

        Raises ValueError for a method without a policy, with one that does not fit its messages, or not written for
        asyncio: mistakes of a programmer that must not wait for a call.
        """
        service: ServiceDescriptor = descriptor_pool.Default().FindServiceByName(descriptor_name)
        for method in service.methods:
            self._check(method, servicer)
        add_to_server(servicer, self._server)
        self._services.append(descriptor_name)
        self._health.set(descriptor_name, True)

    async def start(self) -> int:
        """Listen and serve; returns the bound port, 0 for ``unix:``.

        Raises FtError PORT_UNAVAILABLE, or ConfigError for an address without a port, which gRPC takes as port 443.
        """
        if not self._listen.startswith("unix:"):
            split_address(self._listen)
        self.add("grpc.health.v1.Health", health_pb2_grpc.add_HealthServicer_to_server, self._health)
        if self._reflection:
            servicer = reflection.aio.ReflectionServicer([*self._services, reflection.SERVICE_NAME])
            add_to_server = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
            self.add(reflection.SERVICE_NAME, add_to_server, servicer)
        try:
            if self._credentials is None or self._listen.startswith("unix:"):
                port = self._server.add_insecure_port(self._listen)
            else:
                port = self._server.add_secure_port(self._listen, self._credentials)
        except RuntimeError as error:
            raise cannot_listen(self._listen) from error
        if not self._protected and not is_local(self._listen):
            how = "set tls" if self._credentials is None else "leave tls.client_certificates on"
            text = f"whoever reaches this address may command: {how}, or let only the fleet reach it"
            _log.warning(text, server=self._name, listen=self._listen)
        await self._server.start()
        port = 0 if self._listen.startswith("unix:") else port
        _log.info("serving", server=self._name, listen=self._listen, port=port, services=self._services)
        return port

    def set_serving(self, service: str, serving: bool) -> None:
        """Tell health checks whether a service, or ``""`` for the whole process, serves."""
        self._health.set(service, serving)

    def set_all_serving(self, serving: bool) -> None:
        """The same of every service that was added, and of the whole process."""
        self._health.set_all(serving)

    async def stop(self, grace: float) -> None:
        """Say NOT_SERVING, end the streams, then let unary calls finish; ``grace`` in seconds.

        Commands whose callers have gone get ``grace`` again.
        """
        self._health.set_all(False)
        self._chain.end_streams()
        await self._server.stop(grace)
        await self._chain.finish_commands(grace)

    def _check(self, method: MethodDescriptor, servicer: object) -> None:
        full_name = f"/{method.containing_service.full_name}/{method.name}"
        if (policy := self._policies.get(full_name)) is None:
            raise ValueError(f"{full_name} has no policy; give it one in motor_ft.wire.policy")
        header = method.input_type.fields_by_name.get("header")
        commanded = header is not None and header.message_type in (CommandHeader.DESCRIPTOR, OperatorHeader.DESCRIPTOR)
        if policy.command is not commanded or (commanded and self._commands is None):
            raise ValueError(f"{full_name} needs, for its header, policy 'command' and a CommandLedger")
        function = getattr(servicer, method.name)
        if not (isasyncgenfunction if method.server_streaming else iscoroutinefunction)(function):
            raise ValueError(f"{full_name} must be an async generator if it streams, else a coroutine function")
