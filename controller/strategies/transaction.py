"""Performs the effects of a transaction and feeds the answers back (RFC section 5).

The decisions are all in ``controller.core.transaction``; this file only sends, writes and waits.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from controller.core import effects as fx
from controller.core.phases import Phase
from controller.core.ports import Clock, NodeManagers, Runtime, ServingPublisher, StrategyResult
from controller.core.transaction import Spec, Step, Transaction, advance, begin
from motor_ft.model.command import Command
from motor_ft.model.engine import EvidenceSource, Instruction
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.log import get_logger
from motor_ft.wire.tasks import Tasks

log = get_logger(__name__)

REFUSALS = frozenset(
    {
        Reason.STALE_EPOCH,
        Reason.STALE_GENERATION,
        Reason.STALE_REQUEST_ID,
        Reason.GUARD_REQUIRED,
        Reason.UNKNOWN_INSTANCE,
        Reason.INVALID_REQUEST,
    }
)
"""Answers to Finalize that asking again cannot change."""


class TransactionStrategy:
    """One transaction of one instance; the subclasses say what the engines are told."""

    name: str
    instruction: Instruction

    def __init__(
        self,
        spec: Spec,
        *,
        epoch: int,
        nodes: NodeManagers,
        publisher: ServingPublisher,
        runtime: Runtime,
        clock: Clock,
        on_stage: Callable[[str, float], None],
    ) -> None:
        self._spec = replace(spec, instruction=self.instruction)
        # All commands carry the epoch of the begin: a guard is held by an id in one epoch, whatever comes meanwhile.
        self._command = Command(spec.instance_id, spec.request_id, epoch, spec.generation)
        self._nodes = nodes
        self._publisher = publisher
        self._runtime = runtime
        self._clock = clock
        self._on_stage = on_stage
        # Drained at every turn of the loop: it holds what effects, survivors and reports brought since the last one.
        self._events: asyncio.Queue[fx.Event | BaseException] = asyncio.Queue()

    def died(self, rank: int, source: EvidenceSource) -> None:
        """Evidence of a death that arrives while the transaction runs."""
        self._events.put_nowait(fx.Died(rank, source))

    def stop(self, reason: str) -> None:
        """Honoured until SCALING_DOWN is written."""
        self._events.put_nowait(fx.Cancel(reason))

    async def execute(self) -> StrategyResult:
        """Run the machine until it is done; raises NOT_LEADER, and what an effect raised that is no FtError."""
        tasks = Tasks(f"{self.name}-{self._spec.instance_id}", lambda _, error: self._events.put_nowait(error))
        self._runtime.show(request_id=self._spec.request_id)
        try:
            state, effects = begin(self._spec)
            while True:
                self._show(state)
                for effect in effects:
                    tasks.spawn(_name(effect), self._perform(effect))
                if state.step is Step.DONE:
                    return self._result(state)
                event = await self._next(state)
                if isinstance(event, BaseException):
                    raise event
                before = state
                state, effects = advance(state, event, self._clock.now())
                self._log(before, state)
        finally:
            await tasks.close()

    async def _next(self, state: Transaction) -> fx.Event | BaseException:
        if state.wake_at is None:
            return await self._events.get()
        try:
            async with asyncio.timeout(max(0.0, state.wake_at - self._clock.now())):
                return await self._events.get()
        except TimeoutError:
            return fx.Tick()

    def _show(self, state: Transaction) -> None:
        pending = (
            frozenset() if state.step is Step.DONE else state.removed - frozenset(self._runtime.record.dead_committed)
        )
        self._runtime.show(pending=pending, gate=state.gate, withdrawn=state.withdrawn, failure=state.failure)

    def _result(self, state: Transaction) -> StrategyResult:
        assert state.outcome is not None
        return StrategyResult(state.outcome, state.failure, state.removed, state.learned)

    def _log(self, before: Transaction, state: Transaction) -> None:
        for stage, at in state.marks.items():
            if stage not in before.marks:
                previous = max(before.marks.values(), default=at)
                self._on_stage(stage, at - previous)
        if before.step is not state.step:
            log.info(
                "transaction step",
                instance_id=self._spec.instance_id,
                request_id=self._spec.request_id,
                step=str(state.step),
                removed=sorted(state.removed),
                failure=str(state.failure) if state.failure else None,
                cancelled=state.cancelled or None,
            )

    async def _perform(self, effect: fx.Effect) -> None:
        """Every effect but Watch and Recycle ends in exactly one event, or in the error that ends the strategy."""
        try:
            event = await self._answer(effect)
        except asyncio.CancelledError:
            # Not by us, while the machine waits for it: it must not wait for ever.
            self._events.put_nowait(RuntimeError(f"{_name(effect)} was cancelled"))
            raise
        if event is not None:
            self._events.put_nowait(event)

    async def _answer(self, effect: fx.Effect) -> fx.Event | FtError | None:
        match effect:
            case fx.Watch():
                await self._watch(effect)
                return None
            case fx.Persist():
                return await self._persist(effect)
            case fx.Guard():
                return await self._guard(effect)
            case fx.Query():
                return await self._query(effect)
            case fx.Withdraw():
                return fx.Withdrawn(await self._publisher.withdraw(self._spec.instance_id, self._timeout))
            case fx.Publish():
                return fx.Published(await self._publisher.publish(self._spec.instance_id, self._timeout))
            case fx.Apply():
                return await self._apply(effect)
            case fx.Probe():
                return await self._probe(effect)
            case fx.Finalize():
                return await self._finalize(effect)
            case fx.Recycle():
                self._nodes.recycle(effect.address, self._command)
                return None
            case _:
                assert_never(effect)

    @property
    def _timeout(self) -> float:
        return self._spec.limits.request_timeout

    async def _persist(self, effect: fx.Persist) -> fx.Persisted | FtError:
        begins = effect.phase is Phase.DECIDING
        try:
            await self._runtime.persist(effect.phase, effect.dead_committed, begins=begins)
        except FtError as error:
            return error if error.reason is Reason.NOT_LEADER else fx.Persisted(error=str(error))
        return fx.Persisted()

    async def _guard(self, effect: fx.Guard) -> fx.Guarded:
        sent_at = self._clock.now()
        try:
            grant = await self._nodes.guard(effect.address, self._command, effect.lease_sec, effect.plan)
        except FtError as error:
            return fx.Guarded(effect.address, sent_at, error=str(error))
        return fx.Guarded(effect.address, sent_at, grant=grant)

    async def _query(self, effect: fx.Query) -> fx.Observed:
        try:
            return fx.Observed(effect.address, await self._nodes.status(effect.address, self._command, effect.ranks))
        except FtError as error:
            return fx.Observed(effect.address, error=str(error))

    async def _watch(self, effect: fx.Watch) -> None:
        try:
            async for observation in self._nodes.watch(effect.address, self._command, effect.ranks):
                self._events.put_nowait(fx.Pushed(observation))
        except FtError as error:  # a watch only makes the transaction faster; Status is asked in any case
            log.warning("status watch ended", address=effect.address, error=str(error))

    async def _apply(self, effect: fx.Apply) -> fx.Applied:
        try:
            return fx.Applied(effect.address, await self._nodes.apply(effect.address, self._command, effect.order))
        except FtError as error:
            return fx.Applied(effect.address, error=str(error))

    async def _probe(self, effect: fx.Probe) -> fx.Probed:
        try:
            probes = await self._nodes.probe(effect.address, self._command, effect.ranks, effect.timeout_sec)
        except FtError as error:
            return fx.Probed(effect.address, error=str(error))
        return fx.Probed(effect.address, probes)

    async def _finalize(self, effect: fx.Finalize) -> fx.Finalized:
        try:
            await self._nodes.finalize(effect.address, self._command, commit=effect.commit, retired=effect.retired)
        except FtError as error:
            return fx.Finalized(effect.address, error=str(error), refused=error.reason in REFUSALS)
        return fx.Finalized(effect.address)


def _name(effect: fx.Effect) -> str:
    target = getattr(effect, "address", "")
    return f"{type(effect).__name__} {target}".rstrip()
