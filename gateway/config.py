"""Configuration of the gateway's two daemons, and of the EngineService inside a NodeManager."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from yarl import URL

from motor_ft.wire.config import check
from motor_ft.wire.listen import split_address

Seconds = Annotated[float, Meta(gt=0, le=3600)]
LogLevel = Literal["debug", "info", "warning", "error"]


class EngineAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the engine of one DP rank serves HTTP: ``url`` is scheme, host and port."""

    rank: Annotated[int, Meta(ge=0, lt=2**31)]
    url: str

    def __post_init__(self) -> None:
        what = f"must be like http://127.0.0.1:8000, not {self.url!r}"
        try:
            url = URL(self.url)
            origin = url.scheme in {"http", "https"} and url.host is not None and url == url.origin().with_path("/")
        except ValueError:
            origin = False
        check(origin, "url", what)


class EngineGatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The engines of one pod."""

    engines: Annotated[tuple[EngineAddress, ...], Meta(min_length=1)]
    dialect: Literal["auto", "vllm_v1", "vllm_0_33"] = "auto"
    """``auto``: asked of every engine by reading both status paths."""
    token_file: str = ""
    """File with the engines' API key; empty when they have none."""
    request_timeout_sec: Seconds = 4.0
    """Of one HTTP request, where the caller states none."""

    def __post_init__(self) -> None:
        ranks = [engine.rank for engine in self.engines]
        check(len(set(ranks)) == len(ranks), "engines", f"must name each rank once, not {ranks}")


class _Daemon(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    metrics_listen: str
    """``host:port`` of /metrics, /healthz and /readyz."""
    log_level: LogLevel = "info"
    log_json: bool = True


class EngineDaemonConfig(_Daemon, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``motor-gateway engine``: an EngineService for one NodeManager."""

    listen: str
    """``unix:/path`` or ``host:port``."""
    engine: EngineGatewayConfig
    caller_token_file: str = ""
    """File with the token that the NodeManager must send; empty where only it can reach the address."""

    def __post_init__(self) -> None:
        _check_listen("metrics_listen", self.metrics_listen)
        if not self.listen.startswith("unix:/"):
            _check_listen("listen", self.listen)


class RestDaemonConfig(_Daemon, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``motor-gateway rest``: the REST routes beside a Controller."""

    listen: str
    """``host:port`` of the REST routes."""
    controller: str
    """``host:port`` of the Controller's gRPC server."""
    request_timeout_sec: Seconds = 5.0
    """Of one call to the Controller."""

    def __post_init__(self) -> None:
        _check_listen("metrics_listen", self.metrics_listen)
        _check_listen("listen", self.listen)
        _check_listen("controller", self.controller)


def _check_listen(key: str, address: str) -> None:
    try:
        split_address(address)
    except ValueError as error:
        check(False, key, str(error))
