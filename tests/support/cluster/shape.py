"""What a cluster looks like, and the configuration files that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.engine import FakeGroup
from tests.support.engine.config import FAST, Dialect, Timings

Table = Mapping[str, Any]

SCALED: Table = {
    "enable_dp_scale_down": True,
    "dp_scale_down_config": {"request_timeout_sec": 2.0, "poll_interval_sec": 0.2, "execution_deadline_sec": 6.0},
    "fault_collection_timeout_sec": 6.0,
    "strategy_center_check_interval": 1.0,
    "engine_recovery_timeout_sec": 60.0,
    "engine_poll_interval_sec": 0.1,
    "heartbeat_interval_sec": 0.5,
    "heartbeat_ttl_sec": 3.0,
    "assemble_timeout_sec": 60.0,
    "coordinator_set_interval_sec": 1.0,
}
"""A test profile: the same order of events as with the defaults, in less time."""

CAPABILITY: Table = {
    "dialect": "vllm_v1",
    "engine_ft": True,
    "scale_down_supported": True,
    "external_lb": True,
    "auto_recovery": False,
    "eplb": True,
    "num_redundant_experts": 8,
    "engine_recovery_timeout_sec": 60.0,
}


def even_pods(pods: int, ranks_per_pod: int) -> tuple[tuple[int, ...], ...]:
    """Ranks in order, the same number in every pod."""
    return tuple(tuple(range(pod * ranks_per_pod, (pod + 1) * ranks_per_pod)) for pod in range(pods))


@dataclass(frozen=True, slots=True)
class Shape:
    """``urls`` are engines that run already, one for each rank; without them fake ones are launched.

    Pod N is on node N, where other jobs may have pods too; rank R uses card ``first_card`` + R of its node.
    """

    pods: tuple[tuple[int, ...], ...] = ((0, 1), (2, 3))
    dialect: str = Dialect.V1
    engine_ft: bool = True
    """The fake engines were started with fault tolerance; without it nobody declares any."""
    timings: Timings = FAST
    fault_tolerance: Table = field(default_factory=lambda: dict(SCALED))
    capability: Table = field(default_factory=lambda: dict(CAPABILITY))
    pod_capabilities: Mapping[int, Table] = field(default_factory=dict)
    proxied_pods: tuple[int, ...] = ()
    """Pods that the Controller reaches only through a proxy that can delay and cut."""
    job: str = "demo"
    role: str = "union"
    first_card: int = 0
    pods_outlive: bool = False
    """A pod stays the same when its NodeManager ends; else each start is another pod."""
    urls: tuple[str, ...] = ()
    group: FakeGroup | None = None
    """What is behind ``urls`` when that runs in this process; such engines outlive their NodeManagers."""
    store: str = "sqlite"
    etcd: tuple[str, ...] = ()
    """Members of an etcd that runs already; the records are kept there instead of in ``store``."""
    lease_ttl_sec: int = 2
    """After which time a standby takes over from a leader that is silent."""
    controllers: int = 1
    """More than one need an etcd."""
    controller_module: str = "controller"
    node_manager_module: str = "nodemanager"
    proxied_reports: tuple[int, ...] = ()
    """Pods that reach the Controller only through a proxy."""
    proxied_coordinator: bool = False
    """The Controller reaches the Coordinator only through a proxy."""

    @property
    def dp_size(self) -> int:
        return sum(len(ranks) for ranks in self.pods)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each of ``urls``."""
        parts = (url.removeprefix("http://").rstrip("/").rpartition(":") for url in self.urls)
        return [(host, int(port)) for host, _, port in parts]


def toml(table: Table) -> str:
    """The few kinds of values that our configuration files have."""
    lines = [f"{key} = {_value(value)}" for key, value in table.items() if value is not None]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key} = {_value(item)}" for key, item in value.items() if item is not None)
        return f"{{ {inner} }}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, int | float):
        return repr(value)
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
