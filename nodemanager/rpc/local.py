"""The transaction for callers in this process: the REST routes, whose commands may be unfenced (protocol.md 5)."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from motor_ft.model.command import Command
from motor_ft.model.engine import EngineObservation, Instruction, RankOutcome
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.interceptors.dedupe import answer_once
from motor_ft.wire.log import bound
from motor_ft.wire.policy import Lease
from nodemanager.core.applies import ApplyOrder
from nodemanager.journal import Journal
from nodemanager.rpc.ledger import Ledger
from nodemanager.service import FtService


class LocalNode:
    """Passes commands through fence, de-duplication and lease as the interceptors do for gRPC."""

    def __init__(self, service: FtService, ledger: Ledger, journal: Journal) -> None:
        self._service = service
        self._ledger = ledger
        self._journal = journal

    @property
    def enabled(self) -> bool:
        """The four routes are on."""
        return self._service.enabled

    @property
    def instance_id(self) -> int:
        """Instance of the pod; raises FtError UNKNOWN_INSTANCE before there is one."""
        if self._journal.state.instance_id is None:
            raise FtError(Reason.UNKNOWN_INSTANCE, "this pod does not belong to an instance yet")
        return self._journal.state.instance_id

    async def guard(self, command: Command, lease_sec: float) -> None:
        """Take or renew the lease."""
        with _admitted(self._ledger, command):
            await self._service.guard(command, lease_sec, None)

    async def status(self, ranks: tuple[int, ...]) -> tuple[EngineObservation, ...]:
        """Read engines anew."""
        return await self._service.status(ranks)

    async def apply(
        self,
        command: Command,
        ranks: tuple[int, ...],
        removed: tuple[int, ...],
        dp_master_ip: str,
        dp_store_port: int | None,
    ) -> tuple[RankOutcome, ...]:
        """Tell the engines of ``ranks`` to scale down, once."""
        order = ApplyOrder(Instruction.SCALE_DOWN, ranks, removed, dp_master_ip, dp_store_port)

        async def run() -> bytes:
            self._ledger.lease(Lease.LIVE, command, "")
            return msgspec.json.encode(await self._service.apply(command, order))

        with _admitted(self._ledger, command):
            answer = await answer_once(self._ledger, "rest/apply", command, order.fingerprint().encode(), run)
        return msgspec.json.decode(answer, type=tuple[RankOutcome, ...])

    async def finalize(self, command: Command, commit: bool, retired: tuple[int, ...]) -> None:
        """End the transaction."""

        async def run() -> bytes:
            self._ledger.lease(Lease.OWNER, command, "")
            await self._service.finalize(command, commit=commit, retired=retired)
            return b""

        with _admitted(self._ledger, command):
            await answer_once(self._ledger, "rest/finalize", command, msgspec.json.encode((commit, retired)), run)


@contextmanager
def _admitted(ledger: Ledger, command: Command) -> Iterator[None]:
    """Behind the fence, with the identity of the command in every line that is logged."""
    with bound(request_id=command.request_id, instance_id=command.instance_id):
        ledger.fence(command)
        yield
