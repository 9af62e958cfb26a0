"""Configuration of the gateway's daemons, and of the EngineService inside a NodeManager."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from motor_ft.model.hardware import FaultLevel
from motor_ft.wire.address import check_apart, check_listen, check_peer, check_peers, check_url
from motor_ft.wire.authorizer import read_token
from motor_ft.wire.config import check, check_once, numbered
from motor_ft.wire.tls import TlsConfig, read_file, read_pems

Name = Annotated[str, Meta(min_length=1)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
LogLevel = Literal["debug", "info", "warning", "error"]


class EngineAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the engine of one DP rank serves HTTP: ``url`` is scheme, host and port."""

    rank: Annotated[int, Meta(ge=0, lt=2**31)]
    url: str

    def __post_init__(self) -> None:
        check_url("url", self.url.removesuffix("/"), "http", "https")


class EngineGatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The engines of one pod."""

    engines: Annotated[tuple[EngineAddress, ...], Meta(min_length=1)]
    dialect: Literal["auto", "vllm_v1", "vllm_0_33", "vllm_no_ft", "sglang"] = "auto"
    """``auto``: vLLM's, asked of every engine by reading both status paths; ``vllm_no_ft``: started without them."""
    token_file: str = ""
    """File with the engines' API key; empty when they have none."""
    request_timeout_sec: Seconds = 4.0
    """Of one HTTP request, where the caller states none."""

    def __post_init__(self) -> None:
        ranks = [engine.rank for engine in self.engines]
        check(len(set(ranks)) == len(ranks), "engines", f"must name each rank once, not {ranks}")
        if self.dialect != "sglang":  # there one server answers for every rank
            check_once({f"engines[{n}].url": engine.url.removesuffix("/") for n, engine in enumerate(self.engines)})


class _Daemon(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    metrics_listen: str
    """``host:port`` of /metrics, /healthz and /readyz."""
    log_level: LogLevel = "info"
    log_json: bool = True
    tls: TlsConfig = TlsConfig()

    def check_files(self) -> None:
        """Raise ConfigError for files that a start would refuse."""
        self.tls.check_files()


class EngineDaemonConfig(_Daemon, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``motor-gateway engine``: an EngineService for one NodeManager."""

    listen: str
    """``unix:/path`` or ``host:port``."""
    engine: EngineGatewayConfig
    caller_token_file: str = ""
    """File with the token that the NodeManager must send; empty where only it can reach the address."""

    def __post_init__(self) -> None:
        check_listen("metrics_listen", self.metrics_listen)
        self.tls.check_serves()
        check_listen("listen", self.listen, unix=True)
        check_apart({"listen": self.listen, "metrics_listen": self.metrics_listen})

    def check_files(self) -> None:
        """The tokens too."""
        super().check_files()
        read_token("caller_token_file", self.caller_token_file)
        read_token("engine.token_file", self.engine.token_file)


class RestDaemonConfig(_Daemon, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``motor-gateway rest``: the REST routes beside a Controller."""

    listen: str
    """``host:port`` of the REST routes."""
    controllers: Annotated[tuple[str, ...], Meta(min_length=1)]
    """``host:port`` of every Controller, leader or not."""
    request_timeout_sec: Seconds = 5.0
    """Of one call to one Controller."""

    def __post_init__(self) -> None:
        check_listen("metrics_listen", self.metrics_listen)
        check_listen("listen", self.listen)
        check_apart({"listen": self.listen, "metrics_listen": self.metrics_listen})
        check_peers("controllers", self.controllers)


class ConditionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition of Nodes that is a fault of ``level`` while its status is ``bad_status``."""

    type: Name
    level: FaultLevel
    bad_status: Name = "True"


class KubernetesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to read through the Kubernetes API."""

    server: str = ""
    """URL of an API server that asks for no credentials, e.g. of ``kubectl proxy``."""
    kubeconfig: str = ""
    """File with server and credentials; without either, those of the pod's service account."""
    configmaps: tuple[Literal["device", "node", "cluster", "manual"], ...] = ("device",)
    """``device``: the device plugin's; ``node``: NodeD's; ``cluster`` and ``manual``: ClusterD's."""
    nodes: bool = True
    """Read whether nodes are Ready."""
    node_selector: str = ""
    """Label selector of the nodes that count; empty for all."""
    conditions: tuple[ConditionConfig, ...] = ()
    """More conditions that are faults."""
    check_code: Literal["warn", "reject", "ignore"] = "warn"
    """A wrong checksum: ``warn`` clears no fault, ``reject`` takes nothing, ``ignore`` is for simulators."""
    watch_sec: Seconds = 300.0
    """For how long one watch is asked for."""

    def __post_init__(self) -> None:
        check(bool(self.configmaps) or self.nodes, "configmaps", "must not be empty when nodes is false")
        check(not (self.server and self.kubeconfig), "kubeconfig", "must be empty when server is set")
        check_once(numbered("configmaps", self.configmaps))
        check_once(numbered("conditions", (f"{each.type}={each.bad_status}" for each in self.conditions)))
        unread = "has no effect with nodes = false: leave it out, or read nodes"
        check(self.nodes or not self.conditions, "conditions", unread)
        check(self.nodes or not self.node_selector, "node_selector", unread)
        if self.server:
            check_url("server", self.server, "http", "https", path=True)


class ClusterDConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """ClusterD's fault service."""

    address: str
    """``host:port``."""
    role: str = "motor-ft"
    """Subscribers are told apart by it; the reporter's id is added."""
    request_timeout_sec: Seconds = 5.0
    query_interval_sec: Annotated[float, Meta(ge=1, le=60)] = 8.0
    """Between two queries of the whole cluster."""
    ca_file: str = ""
    """Certificate authority; empty for plain text."""
    cert_file: str = ""
    key_file: str = ""
    """Own certificate and its key, where ClusterD asks for one."""

    def __post_init__(self) -> None:
        check_peer("address", self.address)
        check(bool(self.role), "role", "must not be empty")
        check(bool(self.cert_file) == bool(self.key_file), "key_file", "must be given together with cert_file")
        check(bool(self.ca_file) or not self.cert_file, "ca_file", "must be given where cert_file is")


class MindClusterDaemonConfig(_Daemon, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``motor-gateway mindcluster``: hardware faults for the Controller."""

    controllers: Annotated[tuple[str, ...], Meta(min_length=1)]
    """``host:port`` of every Controller."""
    state_dir: str
    """Directory that outlives a restart of the process: the number of starts is kept there."""
    reporter_id: str = ""
    """Name of this adapter; empty: MOTOR_FT_POD_UID of the environment, or the host's name."""
    kubernetes: KubernetesConfig | None = None
    clusterd: ClusterDConfig | None = None
    debounce_codes: tuple[str, ...] = ("81078603",)
    """Codes that flap: they count as L6 only after ``debounce_sec`` at that level."""
    debounce_sec: Annotated[float, Meta(ge=0, le=3600)] = 0.0

    def __post_init__(self) -> None:
        check_listen("metrics_listen", self.metrics_listen)
        check_peers("controllers", self.controllers)
        check(bool(self.kubernetes or self.clusterd), "kubernetes", "must be given, or clusterd, or both")

    def check_files(self) -> None:
        """Those of the sources too."""
        super().check_files()
        if self.kubernetes:
            read_file("kubernetes.kubeconfig", self.kubernetes.kubeconfig)
        if self.clusterd:
            read_pems("clusterd", self.clusterd.ca_file, self.clusterd.cert_file, self.clusterd.key_file)
