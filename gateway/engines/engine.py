"""One engine: where it is, which process is meant, and how often it was read."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from gateway.engines.client import EngineHttp, NotSentError, UnansweredError
from gateway.engines.dialect import Dialect, Order, UnreadableError, Verdict
from gateway.engines.dialects import detect
from gateway.metrics import EngineMetrics
from motor_ft.model.engine import ApplyOutcome, EngineObservation, EngineStatus, Problem


@dataclass(frozen=True, slots=True)
class Target:
    """The engine that the NodeManager means: a rank and the incarnation of its process."""

    rank: int
    incarnation: str


class Engine:
    """The engine of one rank behind ``url``; ``dialect`` None means that it is found out.

    ``server`` is the same for all ranks that one server answers for.
    ``counter`` numbers the readings; it only grows, so within every incarnation a larger one is later.
    """

    def __init__(
        self, rank: int, url: str, http: EngineHttp, dialect: Dialect | None, metrics: EngineMetrics, first: int
    ) -> None:
        self.rank = rank
        self.url = url
        self.server: str | int = url if dialect is not None and dialect.one_server else rank
        self.incarnation: str | None = None
        self.counter = first
        self._http = http
        self._metrics = metrics
        self._configured = dialect
        self._found = dialect

    def declare(self, incarnation: str) -> None:
        """Take over which process the NodeManager means from now on; another one may speak another dialect."""
        if incarnation != self.incarnation:
            self.incarnation = incarnation
            self._found = self._configured

    async def dialect(self, timeout: float) -> Dialect:
        """What the engine speaks; raises UnreadableError while that is not known. ``timeout`` in seconds."""
        if self._found is None:
            asked = self.incarnation
            found = await detect(self._http, self.url, timeout)
            if asked == self.incarnation:
                self._found = found
            return found
        return self._found

    async def read(self, timeout: float) -> EngineObservation:
        """Read the status anew, within ``timeout`` seconds; a failure is a reading as well."""
        self.counter += 1
        number, incarnation = self.counter, self.incarnation
        try:
            dialect = await self.dialect(timeout)
            reading = dialect.read_status(self.rank, await self._http.get(self.url + dialect.status_path, timeout))
            if incarnation != self.incarnation:
                raise UnreadableError(Problem.LOCAL, "the engine was replaced while it was read")
        except UnreadableError as error:
            reading = EngineObservation(self.rank, EngineStatus.UNKNOWN, problem=error.problem, detail=error.detail)
        self._metrics.reads.labels(reading.problem).inc()
        return replace(reading, incarnation=incarnation or "", observation=number)

    async def send(self, dialect: Dialect, order: Order, timeout: float, check: Callable[[], None]) -> Verdict:
        """Send an order, once, unless ``check`` raises NotSentError at the last moment; ``timeout`` in seconds."""
        try:
            reply = await self._http.post(self.url + dialect.apply_path, dialect.encode(order), timeout, check)
        except NotSentError as error:
            return Verdict(ApplyOutcome.NOT_SENT, str(error))
        except UnansweredError as error:
            return Verdict(ApplyOutcome.UNKNOWN, str(error))
        return dialect.read_apply(order, reply)
