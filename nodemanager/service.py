"""The transaction as this pod carries it out: guard, status, apply, finalize (RFC section 6)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from motor_ft.model.command import Command, ScaleDownPlan
from motor_ft.model.engine import (
    ApplyOutcome,
    EngineObservation,
    EngineStatus,
    Instruction,
    ProbeOutcome,
    Problem,
    RankOutcome,
    RankProbe,
)
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.log import get_logger
from nodemanager.core.applies import ApplyOrder, check_order, find, lowest_survivor
from nodemanager.core.guard import Guard, check_apply, displaces, take
from nodemanager.core.health import checked
from nodemanager.core.ports import Clock, Engines, Processes, Target
from nodemanager.core.state import (
    NodeState,
    abandoned,
    admit,
    check_not_ended,
    finalized,
    guarded,
    intended,
    settled,
)
from nodemanager.journal import Journal
from nodemanager.metrics import NodeMetrics
from nodemanager.pod import Pod
from nodemanager.store_port import StorePort

_log = get_logger(__name__)

# With these the gateway, or our own last look at the guard, has said that nothing was sent.
_NOT_SENT = {
    Reason.GUARD_REQUIRED,
    Reason.GUARD_EXPIRED,
    Reason.GUARD_HELD,
    Reason.STALE_REQUEST_ID,
    Reason.INVALID_REQUEST,
    Reason.STALE_EPOCH,
    Reason.STALE_GENERATION,
    Reason.UNKNOWN_INSTANCE,
    Reason.REQUEST_ID_REUSED,
    Reason.UNKNOWN_RANK,
    Reason.UNAUTHENTICATED,
    Reason.PERMISSION_DENIED,
    Reason.SHUTTING_DOWN,
}


@dataclass(frozen=True, slots=True)
class Grant:
    """The lease is held for another ``remaining_sec``; the port only from the node of the lowest survivor."""

    remaining_sec: float
    dp_store_port: int | None


class FtService:
    """Carries out commands that have passed fence, de-duplication and lease. Every method raises FtError."""

    def __init__(
        self,
        pod: Pod,
        journal: Journal,
        engines: Engines,
        processes: Processes,
        store_port: StorePort,
        clock: Clock,
        metrics: NodeMetrics,
        *,
        dp_size: int,
        base_port: int,
    ) -> None:
        self._pod = pod
        self._journal = journal
        self._engines = engines
        self._processes = processes
        self._store_port = store_port
        self._clock = clock
        self._metrics = metrics
        self._dp_size = dp_size
        self._base_port = base_port
        self._guarding = asyncio.Lock()

    @property
    def enabled(self) -> bool:
        """The Controller has scale-down on (``enable_dp_scale_down_proxy``)."""
        return self._journal.state.scale_down_on

    def check_enabled(self) -> None:
        """Raise FtError FEATURE_DISABLED."""
        if not self.enabled:
            raise FtError(Reason.FEATURE_DISABLED, "DP scale-down is switched off by the Controller")

    async def guard(self, command: Command, lease_sec: float, plan: ScaleDownPlan | None) -> Grant:
        """Take or renew the lease.

        A plan must mean the engines that run here. What is left of removed own ranks is ended first, and, where ranks
        are removed, the node of the lowest survivor reserves the store port for as long as the lease; a renewal returns
        the same port.
        """
        self.check_enabled()
        received = self._clock.boot()

        def taken(state: NodeState) -> Guard:
            admit(state, command)
            check_not_ended(state, command)
            return take(state.guard, command, lease_sec, plan, received)

        async with self._guarding:
            before = self._journal.state.guard
            guard = taken(self._journal.state)
            port = guard.dp_store_port
            if plan is not None:
                self._pod.check_meant(plan.survivors)
                await self._fence_removed(plan)
                if plan.removed and port is None and plan.lowest_survivor in self._pod.own:
                    port = self._store_port.reserve()
            if port is not None:
                self._store_port.keep(guard.remaining(self._clock.boot()))
            await self._journal.update(lambda state: guarded(state, replace(taken(state), dp_store_port=port)))
        if before is not None and displaces(before, command, received):
            _log.warning("unfenced guard displaced", displaced=before.holder.request_id, by=command.request_id)
        _log.info("guarded", lease_sec=lease_sec, plan_hash=guard.plan_hash, dp_store_port=port)
        return Grant(guard.remaining(self._clock.boot()), port)

    async def status(self, ranks: Sequence[int]) -> tuple[EngineObservation, ...]:
        """Read the engines of exactly these ranks anew; a gateway that cannot be asked is a LOCAL problem."""
        self.check_enabled()
        targets = self._pod.choose(ranks)
        try:
            readings = await self._engines.status(targets, self._pod.settings.engine_timeout_sec)
        except FtError as error:
            return tuple(local_problem(target, error) for target in targets)
        return tuple(
            checked(reading, target.rank, target.incarnation) for reading, target in zip(readings, targets, strict=True)
        )

    async def probe(self, ranks: Sequence[int], timeout_sec: float) -> tuple[RankProbe, ...]:
        """Ask the engines of exactly these ranks for one token each, at the same time."""
        self.check_enabled()
        return tuple(await asyncio.gather(*(self._probe(target, timeout_sec) for target in self._pod.choose(ranks))))

    async def apply(self, command: Command, order: ApplyOrder) -> tuple[RankOutcome, ...]:
        """Tell the engines, once for each request id and engine; the intent is durable before anything is sent."""
        self.check_enabled()
        plan = self._guard(command, order).plan
        if (record := find(self._journal.state.applies, command, order)) is not None:
            return record.answer()
        check_order(order, plan)
        targets = self._pod.choose(order.ranks)
        addressed = self._addressed(order, plan)
        with self._metrics.apply_seconds.time():
            await self._journal.update(lambda state: intended(state, command, order))
            outcomes = await self._send(command, addressed, plan, targets)
            await self._journal.update(lambda state: settled(state, command, outcomes))
        _log.info("applied", outcomes={outcome.rank: outcome.outcome for outcome in outcomes})
        return outcomes

    async def finalize(self, command: Command, *, commit: bool, retired: Sequence[int]) -> tuple[int, ...]:
        """End the transaction and return all retired ranks of this pod, ascending.

        A refused abort is remembered where no lease runs: a Guard of its id that arrives later is stale.
        """
        self.check_enabled()
        refusal: FtError | None = None

        def ended(state: NodeState) -> NodeState:
            nonlocal refusal
            now = self._clock.boot()
            try:
                return finalized(state, command, commit=commit, retired=retired, own=self._pod.own, now=now)
            except FtError as error:
                if commit:
                    raise
                refusal = error
                return abandoned(state, command, now)

        state = await self._journal.update(ended)
        if refusal is not None:
            raise refusal
        self._store_port.release()
        if retired:
            self._pod.changed()
        _log.info("finalized", commit=commit, retired=sorted(state.retired))
        return tuple(sorted(state.retired))

    async def _probe(self, target: Target, timeout_sec: float) -> RankProbe:
        try:
            return await self._engines.probe(target, timeout_sec)
        except FtError as error:
            return RankProbe(target.rank, ProbeOutcome.FAILED, str(error))

    def _guard(self, command: Command, order: ApplyOrder) -> Guard:
        admit(self._journal.state, command)
        return check_apply(self._journal.state.guard, command, order.plan_hash, self._clock.boot())

    async def _fence_removed(self, plan: ScaleDownPlan) -> None:
        """A removed rank must not come back, whatever it looks like now."""
        for rank in sorted(self._pod.own & set(plan.removed)):
            await self._processes.kill(rank)

    async def _send(
        self, command: Command, order: ApplyOrder, plan: ScaleDownPlan | None, targets: Sequence[Target]
    ) -> tuple[RankOutcome, ...]:
        """Send to every engine that is still the one that was meant, while the guard is still held."""
        meant = dict(plan.survivors) if plan else {}
        outcomes = {
            target.rank: RankOutcome(
                target.rank,
                ApplyOutcome.NOT_SENT,
                f"engine {meant[target.rank]} was meant, engine {target.incarnation} runs",
            )
            for target in targets
            if meant.get(target.rank, target.incarnation) != target.incarnation
        }
        same = [target for target in targets if target.rank not in outcomes]
        try:
            left = self._guard(command, order).remaining(self._clock.boot())
            if same:
                self._store_port.release()
                sent = await self._engines.apply(
                    self._fenced(command),
                    order,
                    same,
                    lease_sec=left,
                    timeout_sec=self._pod.settings.engine_timeout_sec,
                )
                outcomes |= {outcome.rank: outcome for outcome in sent}
        except FtError as error:
            outcome = ApplyOutcome.NOT_SENT if error.reason in _NOT_SENT else ApplyOutcome.UNKNOWN
            outcomes |= {target.rank: RankOutcome(target.rank, outcome, str(error)) for target in same}
        return tuple(outcomes[rank] for rank in order.ranks)

    def _addressed(self, order: ApplyOrder, plan: ScaleDownPlan | None) -> ApplyOrder:
        """The order with what is retired, and its store port: without a reserved one every pod derives the same."""
        retired = tuple(rank for rank in order.removed if rank in self._journal.state.retired)
        port = order.dp_store_port
        if order.instruction is Instruction.SCALE_DOWN and port is None:
            port = self._base_port + lowest_survivor(order, plan, self._dp_size)
        return replace(order, dp_store_port=port, retired=retired)

    def _fenced(self, command: Command) -> Command:
        """The command for the gateway, which takes none without a fence: ours stands in for a missing one."""
        if command.epoch is not None:
            return command
        fence = self._journal.state.fence
        epoch, generation = fence.generations.get(command.instance_id, (fence.epoch or 0, 0))
        return replace(command, epoch=epoch, generation=generation)


def local_problem(target: Target, error: FtError) -> EngineObservation:
    """The reading when our side could not ask: never evidence."""
    return EngineObservation(
        target.rank, EngineStatus.UNKNOWN, target.incarnation, problem=Problem.LOCAL, detail=str(error)
    )
