"""Pods, capabilities and readings for tests of the core."""

from collections.abc import Iterable

from motor_ft.model.engine import EngineObservation, EngineStatus, FtState, Problem
from motor_ft.model.topology import Endpoint, FtCapability, Registration, Role

CAPABILITY = FtCapability(
    dialect="vllm_v1",
    engine_ft=True,
    scale_down_supported=True,
    external_lb=True,
    auto_recovery=False,
    eplb=True,
    num_redundant_experts=32,
)
"""Passes every check of the gate."""


def pod(
    number: int,
    ranks: Iterable[int],
    *,
    headless: Iterable[int] = (),
    capability: FtCapability | None = CAPABILITY,
    address: str | None = None,
    dp_size: int = 4,
) -> Registration:
    """Pod ``number`` at 10.0.0.``number``, with routable and headless endpoints of these ranks."""
    ip = f"10.0.0.{number}"
    endpoints = [Endpoint(rank, ip, 8000 + rank) for rank in ranks]
    endpoints += [Endpoint(rank, ip, 8000 + rank, headless=True) for rank in headless]
    return Registration(
        pod_uid=f"uid-{number}",
        job_name="job",
        model_name="model",
        engine_type="vllm",
        role=Role.DECODE,
        node_name=f"node-{number}",
        pod_name=f"pod-{number}",
        pod_ip=ip,
        node_manager_address=f"{ip}:9000" if address is None else address,
        dp_size=dp_size,
        tp_size=1,
        endpoints=tuple(endpoints),
        capability=capability,
    )


def read(
    rank: int,
    status: EngineStatus,
    ft_state: FtState = FtState.NONE,
    *,
    observation: int = 1,
    incarnation: str | None = None,
    ft_error: str = "",
    last_id: str = "",
    detail: str = "",
) -> EngineObservation:
    """A reading of a rank; its engine is called ``e<rank>`` unless said otherwise."""
    return EngineObservation(
        rank,
        status,
        incarnation=f"e{rank}" if incarnation is None else incarnation,
        observation=observation,
        ft_state=ft_state,
        last_ft_request_id=last_id,
        ft_error=ft_error,
        detail=detail,
    )


def unread(rank: int, problem: Problem = Problem.UNREACHABLE, *, observation: int = 0) -> EngineObservation:
    """A reading that failed."""
    return EngineObservation(
        rank, EngineStatus.UNKNOWN, f"e{rank}", observation, problem=problem, detail="connection refused"
    )
