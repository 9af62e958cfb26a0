"""Configuration of a NodeManager: one TOML or JSON file, unknown keys refused."""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from motor_ft.model.hardware import parse_card
from motor_ft.model.topology import Device, Endpoint, FtCapability, Role
from motor_ft.wire.address import check_apart, check_found, check_host, check_listen, check_peer, check_peers, is_local
from motor_ft.wire.authorizer import read_token
from motor_ft.wire.config import ConfigError, check, check_once
from motor_ft.wire.tls import TlsConfig
from nodemanager.supervisor import EngineSpec

Port = Annotated[int, Meta(ge=1, le=65535)]
Natural = Annotated[int, Meta(ge=0, lt=2**31)]
Size = Annotated[int, Meta(ge=1, lt=2**31)]
Dialect = Literal["auto", "vllm_v1", "vllm_0_33", "vllm_no_ft", "sglang"]
Name = Annotated[str, Meta(min_length=1)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]


class DeviceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One accelerator of an endpoint."""

    device_id: str
    """Number of the card on its node, as the cluster names it."""
    device_ip: str = ""

    def __post_init__(self) -> None:
        known = parse_card(self.device_id) is not None
        check(known, "device_id", f"{self.device_id!r} names no card: write its number on the node, 3 or Ascend910-3")


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One DP rank of this pod. With neither ``command`` nor ``pid`` only its endpoint is known."""

    rank: Natural
    port: Port
    """Port of the engine's HTTP server."""
    host: str = ""
    """Address of the engine's HTTP server; empty: the pod's."""
    command: tuple[str, ...] = ()
    """Launches the engine; it ends with the NodeManager."""
    pid: Natural = 0
    """A running engine to adopt; it outlives the NodeManager."""
    headless: bool = False
    """Serves no traffic and is never read."""
    devices: tuple[DeviceConfig, ...] = ()

    def __post_init__(self) -> None:
        check(not (self.command and self.pid), "pid", "comes in place of command, not with it")
        if self.host:
            check_host("host", self.host)

    def spec(self) -> EngineSpec:
        """What the supervisor needs."""
        return EngineSpec(self.rank, self.command, self.pid)

    def endpoint(self, pod_ip: str) -> Endpoint:
        """Where the rank serves."""
        cards = tuple(Device(card.device_id, card.device_ip) for card in self.devices)
        return Endpoint(self.rank, self.host or pod_ip, self.port, self.headless, cards)


class CapabilityConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Static facts about the engines, for the gate; all pods of an instance must agree."""

    dialect: Dialect
    """``auto``: asked of the engines."""
    engine_ft: bool
    scale_down_supported: bool
    external_lb: bool
    auto_recovery: bool
    eplb: bool
    num_redundant_experts: Natural
    engine_recovery_timeout_sec: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    """How long an engine waits for a command after its fault; 0: not stated."""

    def capability(self) -> FtCapability:
        """The same in our vocabulary."""
        return FtCapability(**msgspec.structs.asdict(self))


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """EngineService: hosted in this process, unless ``address`` names a standalone gateway."""

    address: str = ""
    """``unix:/path`` or ``host:port`` of a standalone gateway."""
    caller_token_file: str = ""
    """File with the token that a standalone gateway demands of us."""
    dialect: Dialect = "auto"
    """What the engines speak, for the hosted one; ``auto``: asked of them if the capability has ``engine_ft``."""
    token_file: str = ""
    """File with the engines' API key, for the hosted one."""

    def __post_init__(self) -> None:
        if self.address:
            check_peer("address", self.address, unix=True)
            hosted = "has no effect with address: give it to the gateway there"
            check(self.dialect == "auto", "dialect", hosted)
            check(not self.token_file, "token_file", hosted)
        else:
            check(not self.caller_token_file, "caller_token_file", "has no effect without address")


class StorePortConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Ports of the store that survivors meet at."""

    first: Port = 29600
    last: Port = 29699
    """Range that the node of the lowest survivor reserves from."""
    base: Port = 29700
    """Without a reserved port: this plus the lowest survivor's rank, so it must be the same on every pod."""

    def __post_init__(self) -> None:
        check(self.first <= self.last, "last", f"{self.last} is below first, {self.first}")


class NodeManagerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One pod."""

    job_name: Name
    model_name: Name
    engine_type: Name = "vllm"
    role: Role = Role.UNION
    node_name: Name
    pod_name: Name
    pod_uid: str = ""
    """New for every pod that the cluster creates; empty: MOTOR_FT_POD_UID of the environment, else the pod's name."""
    pod_ip: Name
    listen: str
    """``host:port`` of NodeManagerService."""
    advertise: str = ""
    """``host:port`` at which Controllers reach it; empty: the pod's address and the port of ``listen``."""
    rest_listen: str = ""
    """``host:port`` of the four FT routes; empty: not served."""
    rest_strict_fencing: bool = False
    """Refuse REST commands without controller_epoch and generation."""
    metrics_listen: str = ""
    """``host:port`` of /metrics, /healthz and /readyz; empty: not served."""
    controllers: Annotated[tuple[str, ...], Meta(min_length=1)]
    """``host:port`` of every Controller, leader or not."""
    state_dir: Name
    """Directory of the journal; must outlive the process, and be this pod's alone."""
    log_dir: str = ""
    """Directory of the engines' output; empty: the state directory."""
    dp_size: Size
    """DP size of the whole instance."""
    tp_size: Size = 1
    engines: Annotated[tuple[EngineConfig, ...], Meta(min_length=1)]
    capability: CapabilityConfig | None = None
    gateway: GatewayConfig = GatewayConfig()
    store_port: StorePortConfig = StorePortConfig()
    tls: TlsConfig = TlsConfig()
    suicide: bool = False
    """End the pod after five abnormal rounds of 3 s; only where something starts it again."""
    worker_pattern: str = "VLLM::(EngineCore|Worker)"
    """Titles of engine processes, besides the launched one, whose exit is evidence; a regular expression."""
    stop_grace_sec: Seconds = 10.0
    """From SIGTERM to SIGKILL when engines are ended."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_json: bool = True

    @property
    def dialect(self) -> Dialect:
        """What the engines speak; those that are not said to have fault tolerance are not asked for its routes."""
        with_ft = self.capability is not None and self.capability.engine_ft
        return "vllm_no_ft" if self.gateway.dialect == "auto" and not with_ft else self.gateway.dialect

    def __post_init__(self) -> None:
        ranks = [engine.rank for engine in self.engines]
        check(len(set(ranks)) == len(ranks), "engines", f"must name each rank once, not {ranks}")
        check(max(ranks) < self.dp_size, "engines", f"ranks {ranks} must be below dp_size {self.dp_size}")
        if self.capability and not self.gateway.address:
            stated, spoken = self.capability.dialect, self.gateway.dialect
            same = (stated == "sglang") == (spoken == "sglang")
            check(same, "capability.dialect", f"is {stated!r}, but gateway.dialect is {spoken!r}")
        check(self.store_port.base + self.dp_size <= 65536, "store_port.base", "plus dp_size is no port")
        self.tls.check_serves()
        check_host("pod_ip", self.pod_ip)
        check_found("pod_ip", self.pod_ip)
        check_listen("listen", self.listen)
        for key in ("rest_listen", "metrics_listen"):
            if address := getattr(self, key):
                check_listen(key, address)
        if self.advertise:
            check_peer("advertise", self.advertise)
            check_found("advertise", self.advertise.rpartition(":")[0])
        else:
            here = not is_local(self.listen) or is_local(f"{self.pod_ip}:0")
            check(here, "listen", f"nobody reaches it at pod_ip, {self.pod_ip}: listen there, or set advertise")
        strict = self.rest_listen or not self.rest_strict_fencing
        check(bool(strict), "rest_strict_fencing", "has no effect without rest_listen")
        check_peers("controllers", self.controllers)
        self._check_engines()
        try:
            every = re.search(self.worker_pattern, "") is not None
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(f"worker_pattern: is no regular expression: {error}") from error
        check(not every, "worker_pattern", "matches every process, also those that only help")

    def check_files(self) -> None:
        """Raise ConfigError for files that a start would refuse."""
        self.tls.check_files()
        read_token("gateway.token_file", self.gateway.token_file)
        read_token("gateway.caller_token_file", self.gateway.caller_token_file)

    def _check_engines(self) -> None:
        """Each has a port, a process and cards of its own; of SGLang one server answers for all ranks."""
        listens = {"listen": self.listen, "rest_listen": self.rest_listen, "metrics_listen": self.metrics_listen}
        served = {
            f"engines[{number}].port": f"{engine.host or self.pod_ip}:{engine.port}"
            for number, engine in enumerate(self.engines)
            if not engine.headless
        }
        if "sglang" in (self.gateway.dialect, self.capability and self.capability.dialect):
            for key, address in served.items():
                check_apart(listens | {key: address})
        else:
            check_apart(listens | served)
            check_once({f"engines[{n}].pid": engine.pid for n, engine in enumerate(self.engines) if engine.pid})
        devices = ((n, m, device) for n, engine in enumerate(self.engines) for m, device in enumerate(engine.devices))
        check_once({f"engines[{n}].devices[{m}].device_id": device.device_id for n, m, device in devices})
