"""One member of an etcd cluster: its connection, and who we are to it."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import grpc

from controller.store.etcd.errors import RefusedError
from motor_ft.etcd import rpc_pb2 as pb
from motor_ft.etcd.rpc_pb2_grpc import AuthStub, KVStub, LeaseStub, WatchStub
from motor_ft.wire.channel import connected

OPTIONS = (
    # Not below 5 s, etcd's default limit: more frequent pings are answered with GOAWAY.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # a frozen member is noticed only with this one
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Whether a request is sent again, and to whom, is decided in client.py alone.
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),  # all records at once
)


@dataclass(frozen=True, slots=True)
class Login:
    """A user of etcd; the file is read at every login, so that a password can change without a restart."""

    user: str
    password_file: Path

    async def request(self) -> pb.AuthenticateRequest:
        """Raises RefusedError when the file cannot be read."""
        try:
            password = await asyncio.to_thread(self.password_file.read_text)
        except (OSError, UnicodeDecodeError) as error:
            raise RefusedError(f"no password of user {self.user} in {self.password_file}: {error}") from error
        return pb.AuthenticateRequest(name=self.user, password=password.rstrip("\r\n"))


class Member:
    """A channel to ``host:port`` with etcd's services; it connects with the first call."""

    def __init__(self, endpoint: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.endpoint = endpoint
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(endpoint, options=OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(endpoint, credentials, options=OPTIONS)
        self.kv = KVStub(self._channel)
        self.lease = LeaseStub(self._channel)
        self.watch = WatchStub(self._channel)
        self.auth = AuthStub(self._channel)

    async def connected(self) -> bool:
        """Whether a request goes out at once."""
        return await connected(self._channel)

    async def close(self) -> None:
        """Let go of the connection."""
        await self._channel.close()
