"""Pods, endpoints and what their engines can do; immutable after an instance is assembled (RFC section 3.2)."""

from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """Part of a deployment that an instance plays."""

    PREFILL = "prefill"
    DECODE = "decode"
    UNION = "union"


class EndpointStatus(StrEnum):
    """Health of one endpoint as its NodeManager sees it."""

    INITIAL = "initial"
    NORMAL = "normal"
    ABNORMAL = "abnormal"


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator: the card's number on its node, and its address where known."""

    device_id: str
    device_ip: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one DP rank serves. A headless endpoint serves nothing and is retired with its rank."""

    rank: int
    ip: str
    business_port: int
    headless: bool = False
    devices: tuple[Device, ...] = ()
    incarnation: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class FtCapability:
    """Static facts for the gate (RFC section 5, step 2); ``engine_recovery_timeout_sec`` 0 means not stated."""

    dialect: str
    engine_ft: bool
    scale_down_supported: bool
    external_lb: bool
    auto_recovery: bool
    eplb: bool
    num_redundant_experts: int
    engine_recovery_timeout_sec: float = 0.0


@dataclass(frozen=True, slots=True)
class Registration:
    """What one pod brings to an instance; ``pod_uid`` is new for every pod that the cluster creates."""

    pod_uid: str
    job_name: str
    model_name: str
    engine_type: str
    role: Role
    node_name: str
    pod_name: str
    pod_ip: str
    node_manager_address: str
    dp_size: int
    tp_size: int
    endpoints: tuple[Endpoint, ...]
    capability: FtCapability | None
    rest_port: int = 0
