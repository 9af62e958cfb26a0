"""The adapter's stream to the Controller."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.mindcluster.feed import Feed, Item
from gateway.mindcluster.metrics import MindClusterMetrics
from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import fault_report_pb2
from motor_ft.v1.fault_report_pb2 import FaultReportRequest
from motor_ft.wire.link import ReportLink
from motor_ft.wire.tls import ClientTls


@dataclass(frozen=True, slots=True)
class Identity:
    """Who reports; see ``Hello`` in fault_report.proto."""

    reporter_id: str
    incarnation: str
    incarnation_number: int


class HardwareLink(ReportLink[Item]):
    """Hello without a registration, a snapshot of all hardware, then its changes."""

    def __init__(
        self,
        controllers: Sequence[str],
        feed: Feed,
        identity: Identity,
        metrics: MindClusterMetrics,
        *,
        now: Callable[[], float],
        rng: Callable[[], float],
        tls: ClientTls | None = None,
    ) -> None:
        super().__init__(controllers, feed.outbox, feed.wake, metrics, now=now, rng=rng, tls=tls)
        self._feed = feed
        self._identity = identity
        self._epoch: int | None = None

    def hello(self) -> FaultReportRequest:
        """An adapter."""
        hello = fault_report_pb2.Hello(
            kind=fault_report_pb2.REPORTER_KIND_MINDCLUSTER,
            reporter_id=self._identity.reporter_id,
            incarnation=self._identity.incarnation,
            incarnation_number=self._identity.incarnation_number,
            highest_epoch=self._epoch,
        )
        return FaultReportRequest(hello=hello)

    async def welcomed(self, welcome: fault_report_pb2.Welcome) -> None:
        """Take the Controller on. The epoch is only kept in memory, because nobody commands an adapter."""
        if self._epoch is not None and welcome.controller_epoch < self._epoch:
            text = f"a Controller of epoch {welcome.controller_epoch} has been followed by one of {self._epoch}"
            raise FtError(Reason.STALE_EPOCH, text, got=welcome.controller_epoch, current=self._epoch)
        self._epoch = welcome.controller_epoch

    def report(self, sequence: int, item: Item, now: float) -> FaultReportRequest:
        """A fault, its end, or everything."""
        return self._feed.message(sequence, item, now)

    def heartbeat(self) -> FaultReportRequest:
        """No endpoints."""
        return FaultReportRequest(heartbeat=fault_report_pb2.Heartbeat())

    def directed(self, directive: fault_report_pb2.Directive) -> bool:
        """An adapter only knows how to send a snapshot."""
        return directive.controller_epoch >= (self._epoch or 0)
