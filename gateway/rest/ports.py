"""What the REST routes need of the process that hosts them."""

from typing import Protocol

from motor_ft.model.command import Command
from motor_ft.model.engine import EngineObservation, RankOutcome


class NodeFtPort(Protocol):
    """The transaction of one pod, as its NodeManager serves it over gRPC too.

    Every method raises FtError for a refusal. A Command without an epoch is unfenced: it loses to any live fenced
    guard and never displaces one.
    """

    @property
    def enabled(self) -> bool:
        """The four routes are on (RFC section 6, ``enable_dp_scale_down_proxy``)."""

    @property
    def instance_id(self) -> int:
        """Instance that the pod belongs to; asked only while ``enabled``."""

    async def guard(self, command: Command, lease_sec: float) -> None:
        """Take or renew the lease."""

    async def status(self, ranks: tuple[int, ...]) -> tuple[EngineObservation, ...]:
        """Read engines anew, one reading for each rank."""

    async def apply(
        self,
        command: Command,
        ranks: tuple[int, ...],
        removed: tuple[int, ...],
        dp_master_ip: str,
        dp_store_port: int | None,
    ) -> tuple[RankOutcome, ...]:
        """Tell the engines of ``ranks`` to scale down, once; without a port the NodeManager derives it."""

    async def finalize(self, command: Command, commit: bool, retired: tuple[int, ...]) -> None:
        """End the transaction; ``retired`` is empty on abort."""
