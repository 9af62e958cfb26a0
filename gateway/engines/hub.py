"""All engines of a gateway: read them, watch them, command each at most once."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from gateway.engines.client import EngineHttp, NotSentError
from gateway.engines.completion import probe
from gateway.engines.dialect import Dialect, Order, UnreadableError, Verdict
from gateway.engines.engine import Engine, Target
from gateway.engines.fence import Fence
from gateway.engines.poller import Poller, Watch
from gateway.metrics import EngineMetrics
from motor_ft.model.command import Command
from motor_ft.model.engine import ApplyOutcome, EngineObservation, ProbeOutcome, RankOutcome
from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.tasks import Tasks

Admit = Callable[[Command], None]
"""Raises FtError when the command may not be sent any more, for a reason that only the host of the hub knows."""

# Orders that are remembered. A transaction has one for each rank: a forgotten one is dozens of them old at least.
_REMEMBERED = 1_000


@dataclass(frozen=True, slots=True)
class Apply:
    """One order for several engines; ``deadline`` on the hub's clock, ``timeout`` in seconds for each request."""

    command: Command
    order: Order
    targets: tuple[Target, ...]
    deadline: float
    timeout: float


class EngineHub:
    """Engines by rank, ``engines`` being their base URLs; create it inside the running loop.

    ``dialect`` None means that it is found out for each engine. ``clock`` is monotonic, in seconds. ``first`` is
    where readings start to count: above all that an earlier process of this gateway handed out. ``admit`` is asked
    right before an order is sent.

    Every method raises UNKNOWN_RANK for a target that is not in ``engines``.
    """

    def __init__(
        self,
        engines: Mapping[int, str],
        *,
        http: EngineHttp,
        dialect: Dialect | None,
        fence: Fence,
        clock: Callable[[], float],
        metrics: EngineMetrics,
        first: int = 0,
        admit: Admit = lambda _: None,
    ) -> None:
        self._http = http
        self._fence = fence
        self._clock = clock
        self._metrics = metrics
        self._admit = admit
        self._tasks = Tasks("engines")
        self._engines = {rank: Engine(rank, url, http, dialect, metrics, first) for rank, url in engines.items()}
        self._pollers = {rank: Poller(engine, self._tasks) for rank, engine in self._engines.items()}
        self._sent: dict[tuple[str, str | int], asyncio.Task[dict[int, RankOutcome]]] = {}

    async def observe(self, targets: Iterable[Target], timeout: float) -> tuple[EngineObservation, ...]:
        """Read engines anew and at the same time, within ``timeout`` seconds; watchers learn of it too."""
        ranks = self._declare(targets)
        readings = await asyncio.gather(*(self._engines[rank].read(timeout) for rank in ranks))
        for reading in readings:
            self._pollers[reading.rank].publish(reading)
        return tuple(readings)

    @contextmanager
    def watch(self, targets: Iterable[Target], interval: float, timeout: float) -> Iterator[Watch]:
        """Have engines read every ``interval`` seconds while the context is open."""
        pollers = [self._pollers[rank] for rank in self._declare(targets)]
        watch = Watch(interval, timeout)
        for poller in pollers:
            poller.join(watch)
        try:
            yield watch
        finally:
            for poller in pollers:
                poller.leave(watch)

    async def apply(self, apply: Apply) -> tuple[RankOutcome, ...]:
        """Give the order to all targets at the same time, and to each server at most once per request id.

        A caller that is cancelled does not stop what has begun; with the same id it learns the first outcome.
        """
        self._known(apply.targets)
        tasks = [self._once(apply, self._engines[target.rank].server) for target in apply.targets]
        answers = await asyncio.gather(*(asyncio.shield(task) for task in tasks))
        return tuple(answer[target.rank] for answer, target in zip(answers, apply.targets, strict=True))

    async def probe_completion(self, target: Target, timeout: float) -> tuple[ProbeOutcome, str]:
        """Ask one engine for one token; returns a text for people too. ``timeout`` in seconds for each request."""
        self._known([target])
        engine = self._engines[target.rank]
        if target.incarnation != engine.incarnation:
            return ProbeOutcome.FAILED, _other_process(target, engine)
        return await probe(self._http, engine.url, timeout)

    async def close(self) -> None:
        """Stop reading; what is being sent is cut off and stays unknown."""
        await self._tasks.close()
        await self._http.close()

    def _once(self, apply: Apply, server: str | int) -> "asyncio.Task[dict[int, RankOutcome]]":
        key = (apply.order.request_id, server)
        if (task := self._sent.get(key)) is None:
            while len(self._sent) >= _REMEMBERED:
                del self._sent[next(iter(self._sent))]
            task = self._sent[key] = self._tasks.spawn(f"apply-{server}", self._deliver(apply, server))
        return task

    async def _deliver(self, apply: Apply, server: str | int) -> dict[int, RankOutcome]:
        """Send to one server; the outcome is that of each of its ranks."""
        engines = [engine for engine in self._engines.values() if engine.server == server]
        verdict = await self._send(apply, engines[0])
        if verdict.outcome is ApplyOutcome.NOT_SENT:
            del self._sent[apply.order.request_id, server]
        self._metrics.applies.labels(apply.order.instruction, verdict.outcome).inc()
        return {
            each.rank: RankOutcome(each.rank, verdict.outcome, verdict.detail, each.counter, verdict.engine_request_id)
            for each in engines
        }

    async def _send(self, apply: Apply, engine: Engine) -> Verdict:
        try:
            dialect = await engine.dialect(apply.timeout)
        except UnreadableError as error:
            return Verdict(ApplyOutcome.NOT_SENT, error.detail)
        if (instruction := apply.order.instruction) not in dialect.instructions:
            text = f"engines of dialect {dialect.name} do not know {instruction}; nothing was sent"
            return Verdict(ApplyOutcome.REFUSED, text)
        return await engine.send(dialect, apply.order, apply.timeout, partial(self._check, apply, engine.server))

    def _check(self, apply: Apply, server: str | int) -> None:
        """Raise NotSentError when the order may not go out any more."""
        try:
            self._fence.check(apply.command)
            self._admit(apply.command)
        except FtError as error:
            raise NotSentError(str(error)) from error
        for target in apply.targets:
            engine = self._engines[target.rank]
            if engine.server == server and target.incarnation != engine.incarnation:
                raise NotSentError(_other_process(target, engine))
        if self._clock() >= apply.deadline:
            raise NotSentError("the guard lease is over")

    def _declare(self, targets: Iterable[Target]) -> list[int]:
        targets = list(targets)
        self._known(targets)
        for target in targets:
            self._engines[target.rank].declare(target.incarnation)
        return [target.rank for target in targets]

    def _known(self, targets: Iterable[Target]) -> None:
        if unknown := sorted({target.rank for target in targets} - self._engines.keys()):
            raise FtError(
                Reason.UNKNOWN_RANK, f"ranks {unknown} are not here, this gateway has {sorted(self._engines)}"
            )


def _other_process(target: Target, engine: Engine) -> str:
    declared = "none" if engine.incarnation is None else repr(engine.incarnation)
    return f"engine incarnation {target.incarnation!r} is meant, the last one declared here is {declared}"
