"""Configuration of the Controller: one file, strict keys, impossible combinations named (recovery.md section 9)."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from controller.core.hardware import HardwarePolicy, LinkDown, PreSeparate, generation
from controller.core.probe import CompletionProbe
from controller.core.transaction import Limits
from controller.fault_manager.environment import Settings
from motor_ft.model.command import MAX_LEASE_SEC
from motor_ft.model.hardware import canonical_code
from motor_ft.wire.address import check_apart, check_found, check_listen, check_peer, check_url
from motor_ft.wire.config import check, check_once, numbered
from motor_ft.wire.tls import TlsConfig, read_file, read_pems

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
SQLITE_PATH = "motor-controller.db"
Code = Annotated[str, Meta(pattern=r"^(0[xX])?[0-9a-fA-F]+$")]


class DpScaleDownConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Times of the transaction (RFC section 7)."""

    request_timeout_sec: Seconds = 5.0
    poll_interval_sec: Seconds = 1.0
    execution_deadline_sec: Seconds = 30.0

    @property
    def limits(self) -> Limits:
        """For the core."""
        return Limits(self.request_timeout_sec, self.poll_interval_sec, self.execution_deadline_sec)

    def __post_init__(self) -> None:
        lease = self.limits.lease
        check(
            lease <= MAX_LEASE_SEC,
            "execution_deadline_sec",
            f"the guard lease of 2 x execution_deadline_sec + 4 x request_timeout_sec + poll would be {lease:g} s; "
            f"a NodeManager takes at most {MAX_LEASE_SEC:g} s",
        )
        for key in ("request_timeout_sec", "poll_interval_sec"):
            value, deadline = getattr(self, key), self.execution_deadline_sec
            check(value <= deadline, key, f"{value:g} s must not be above execution_deadline_sec = {deadline:g} s")


class FaultToleranceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Switches and times; the same for prefill and decode."""

    enable_fault_tolerance: bool = True
    enable_dp_scale_down: bool = False
    enable_dp_scale_up: bool = False
    fast_recovery: bool = False
    completion_probe: CompletionProbe = CompletionProbe.AUTO
    idle_probe: bool = False
    dp_scale_down_config: DpScaleDownConfig = DpScaleDownConfig()
    engine_request_timeout_sec: Seconds | None = None
    fault_collection_timeout_sec: Seconds = 60.0
    hardware_ft_correlation_window_sec: Seconds = 5.0
    hardware_type: str = ""
    hardware_link_down: LinkDown = LinkDown.AUTO
    hardware_pre_separate: PreSeparate = PreSeparate.SOFT
    enable_engine_relaunch: bool = True
    engine_relaunch_timeout_sec: Seconds = 600.0
    engine_relaunch_poll_interval_sec: Seconds = 5.0
    engine_relaunch_misses: Annotated[int, Meta(ge=1, le=100)] = 3
    enable_scale_p2d: bool = True
    scale_p2d_wait_sec: Seconds = 60.0
    enable_token_reinference: bool = True
    token_reinference_codes: tuple[Code, ...] = ("0x00F1FEF5", "0x08520003")
    token_reinference_timeout_sec: Seconds = 60.0
    strategy_center_check_interval: Seconds = 10.0
    engine_recovery_timeout_sec: Seconds = 120.0
    engine_poll_interval_sec: Seconds = 1.0
    status_unreachable_threshold: Annotated[int, Meta(ge=1, le=100)] = 1
    heartbeat_interval_sec: Seconds = 3.0
    heartbeat_ttl_sec: Seconds = 10.0
    heartbeat_ttl_other_sec: Seconds = 300.0
    assemble_timeout_sec: Seconds = 600.0
    coordinator_set_interval_sec: Seconds = 5.0

    def __post_init__(self) -> None:
        request = self.dp_scale_down_config.request_timeout_sec
        window = self.engine_recovery_timeout_sec
        limits = self.dp_scale_down_config.limits
        margin = limits.apply_window
        check(
            window >= limits.begin_window,
            "engine_recovery_timeout_sec",
            f"{window:g} s is less than the {limits.begin_window:g} s that a scale-down needs to begin",
        )
        check(
            self.engine_timeout < request,
            "engine_request_timeout_sec",
            f"{self.engine_timeout:g} s must be below dp_scale_down_config.request_timeout_sec = {request:g} s",
        )
        for key, value in (
            ("fault_collection_timeout_sec", self.fault_collection_timeout_sec),
            ("dp_scale_down_config.execution_deadline_sec", self.dp_scale_down_config.execution_deadline_sec),
        ):
            check(
                value + margin <= window,
                key,
                f"{value:g} s + {margin:g} s to apply is more than engine_recovery_timeout_sec = {window:g} s",
            )
        check(
            self.heartbeat_interval_sec < self.heartbeat_ttl_sec,
            "heartbeat_ttl_sec",
            f"{self.heartbeat_ttl_sec:g} s must be above heartbeat_interval_sec = {self.heartbeat_interval_sec:g} s",
        )
        check(
            self.heartbeat_ttl_sec <= self.heartbeat_ttl_other_sec,
            "heartbeat_ttl_other_sec",
            f"{self.heartbeat_ttl_other_sec:g} s must not be below heartbeat_ttl_sec = {self.heartbeat_ttl_sec:g} s",
        )
        check(
            self.engine_relaunch_poll_interval_sec <= self.engine_relaunch_timeout_sec,
            "engine_relaunch_poll_interval_sec",
            f"{self.engine_relaunch_poll_interval_sec:g} s must not be above "
            f"engine_relaunch_timeout_sec = {self.engine_relaunch_timeout_sec:g} s",
        )
        check(
            not self.hardware_type or bool(generation(self.hardware_type)),
            "hardware_type",
            f"{self.hardware_type!r} names no generation that is known: write A1, A2, A3 or A5, also as in 800I-A2, or "
            "leave it empty and say in hardware_link_down what a lost link means",
        )
        scale_down = self.enable_fault_tolerance and self.enable_dp_scale_down
        needed = "needs enable_fault_tolerance and enable_dp_scale_down"
        check(scale_down or not self.fast_recovery, "fast_recovery", needed)

    @property
    def engine_timeout(self) -> float:
        """Timeout of one HTTP request to an engine; 0.8 of the request timeout unless it is set."""
        if self.engine_request_timeout_sec is not None:
            return self.engine_request_timeout_sec
        return 0.8 * self.dp_scale_down_config.request_timeout_sec

    @property
    def settings(self) -> Settings:
        """For the FaultManager."""
        return Settings(
            enable_fault_tolerance=self.enable_fault_tolerance,
            enable_dp_scale_down=self.enable_dp_scale_down,
            enable_dp_scale_up=self.enable_dp_scale_up,
            fast_recovery=self.fast_recovery,
            completion_probe=self.completion_probe,
            idle_probe=self.idle_probe,
            enable_engine_relaunch=self.enable_engine_relaunch,
            engine_relaunch_timeout=self.engine_relaunch_timeout_sec,
            engine_relaunch_poll_interval=self.engine_relaunch_poll_interval_sec,
            engine_relaunch_misses=self.engine_relaunch_misses,
            enable_scale_p2d=self.enable_scale_p2d,
            scale_p2d_wait=self.scale_p2d_wait_sec,
            enable_token_reinference=self.enable_token_reinference,
            token_reinference_timeout=self.token_reinference_timeout_sec,
            limits=self.dp_scale_down_config.limits,
            fault_collection_timeout=self.fault_collection_timeout_sec,
            correlation_window=self.hardware_ft_correlation_window_sec,
            hardware_policy=HardwarePolicy(
                hardware_type=self.hardware_type,
                link_down=self.hardware_link_down,
                pre_separate=self.hardware_pre_separate,
                transient_codes=frozenset(map(canonical_code, self.token_reinference_codes)),
            ),
            engine_recovery_timeout=self.engine_recovery_timeout_sec,
            strategy_center_check_interval=self.strategy_center_check_interval,
            heartbeat_interval=self.heartbeat_interval_sec,
            heartbeat_ttl=self.heartbeat_ttl_sec,
            heartbeat_ttl_other=self.heartbeat_ttl_other_sec,
            assemble_timeout=self.assemble_timeout_sec,
            poll_interval=self.engine_poll_interval_sec,
            engine_request_timeout=self.engine_timeout,
            status_unreachable_threshold=self.status_unreachable_threshold,
        )


class EtcdConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An etcd cluster, and what this Controller is there; files are PEM."""

    endpoints: list[str] = []
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    user: str = ""
    password_file: str = ""
    prefix: str = "/motor-ft"
    lease_ttl_sec: Annotated[int, Meta(ge=2, le=60)] = 10

    def __post_init__(self) -> None:
        schemes = {url.partition("://")[0] for url in self.endpoints}
        for number, url in enumerate(self.endpoints):
            check_url(f"endpoints[{number}]", url, "http", "https")
        check_once(numbered("endpoints", self.endpoints))
        check(len(schemes) <= 1, "endpoints", "must be all http:// or all https://")
        files = any((self.ca_file, self.cert_file, self.key_file))
        check(self.tls or not files, "endpoints", "must be https:// for ca_file, cert_file and key_file")
        check(bool(self.cert_file) == bool(self.key_file), "cert_file", "needs key_file, and the other way round")
        check(bool(self.user) == bool(self.password_file), "user", "needs password_file, and the other way round")
        check(self.prefix.strip("/") != "", "prefix", "must name something; every Controller of the fleet has the same")

    def check_files(self) -> None:
        """Raise ConfigError for files that cannot be used."""
        if self.tls:
            read_pems("store.etcd", self.ca_file, self.cert_file, self.key_file)
        read_file("store.etcd.password_file", self.password_file)

    @property
    def tls(self) -> bool:
        """Connections are encrypted, and the members' certificates are checked."""
        return any(url.startswith("https://") for url in self.endpoints)

    @property
    def targets(self) -> list[str]:
        """Endpoints as ``host:port``."""
        return [url.partition("://")[2] for url in self.endpoints]


class StoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where durable records go.

    ``sqlite`` is a file of one Controller; with ``etcd`` any number of Controllers stand by for the one that leads;
    ``memory`` forgets everything with the process and is for trials.
    """

    kind: Literal["sqlite", "etcd", "memory"] = "sqlite"
    path: Annotated[str, Meta(min_length=1)] = SQLITE_PATH
    etcd: EtcdConfig = EtcdConfig()

    def __post_init__(self) -> None:
        check(self.kind != "etcd" or bool(self.etcd.endpoints), "etcd.endpoints", 'are needed with kind = "etcd"')
        unused = f'has no effect with kind = "{self.kind}": leave it out, or write kind = '
        check(self.kind == "etcd" or self.etcd == EtcdConfig(), "etcd", f'{unused}"etcd"')
        check(self.kind == "sqlite" or self.path == SQLITE_PATH, "path", f'{unused}"sqlite"')


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Logs go to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    json: bool = True


class ControllerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file."""

    listen: str = "127.0.0.1:50051"
    advertise: str = ""
    metrics_listen: str = "127.0.0.1:9090"
    coordinators: list[str] = []
    store: StoreConfig = StoreConfig()
    log: LogConfig = LogConfig()
    tls: TlsConfig = TlsConfig()
    fault_tolerance_config: FaultToleranceConfig = FaultToleranceConfig()

    def __post_init__(self) -> None:
        check_once(numbered("coordinators", self.coordinators))
        for number, url in enumerate(self.coordinators):
            key, path = f"coordinators[{number}]", not url.startswith("grpc")
            check_url(key, url, "http", "https", "grpc", "grpcs", path=path)
            check(bool(self.tls.ca_file) or not url.startswith("grpcs:"), key, "grpcs:// needs tls.ca_file")
        self.tls.check_serves()
        check_listen("listen", self.listen, unix=True)
        if self.advertise:
            check_peer("advertise", self.advertise)
            check_found("advertise", self.advertise.rpartition(":")[0])
        check_listen("metrics_listen", self.metrics_listen)
        check_apart({"listen": self.listen, "metrics_listen": self.metrics_listen})

    def check_files(self) -> None:
        """Raise ConfigError for files that a start would refuse."""
        self.tls.check_files()
        self.store.etcd.check_files()

    def address(self, hostname: str) -> str:
        """Where reporters and clients find this Controller, on the machine of this name."""
        host, _, port = self.listen.rpartition(":")
        everywhere = host in {"0.0.0.0", "[::]"}
        return self.advertise or (f"{hostname}:{port}" if everywhere else self.listen)
