"""What a NodeManager says on its stream to the Controller, and does when it is told something."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from motor_ft.model.topology import Registration
from motor_ft.v1 import fault_report_pb2
from motor_ft.v1.fault_report_pb2 import FaultReportRequest
from motor_ft.wire.convert import demand, duration_from_pb
from motor_ft.wire.link import ReportLink
from motor_ft.wire.tls import ClientTls
from nodemanager import messages
from nodemanager.core.ports import Clock
from nodemanager.core.settings import Settings
from nodemanager.core.state import welcomed
from nodemanager.journal import Journal
from nodemanager.metrics import NodeMetrics
from nodemanager.pod import Pod, Report


@dataclass(frozen=True, slots=True)
class Orders:
    """What a Directive moves: polling ten times a second or not, and for how many seconds suicide is frozen."""

    set_fast: Callable[[bool], None]
    freeze_suicide: Callable[[float], None]


class Link(ReportLink[Report]):
    """The pod's stream."""

    def __init__(
        self,
        controllers: Sequence[str],
        registration: Callable[[], Registration],
        pod: Pod,
        journal: Journal,
        clock: Clock,
        metrics: NodeMetrics,
        orders: Orders,
        *,
        incarnation: str,
        rng: Callable[[], float],
        tls: ClientTls | None = None,
    ) -> None:
        """``rng`` returns numbers in [0, 1) for the jitter of pauses."""
        super().__init__(controllers, pod.outbox, pod.wake, metrics, now=clock.now, rng=rng, tls=tls)
        self._registration = registration
        self._pod = pod
        self._journal = journal
        self._orders = orders
        self._incarnation = incarnation

    def hello(self) -> FaultReportRequest:
        """The pod, with what it registers."""
        return messages.hello(self._registration(), self._incarnation, self._journal.state)

    async def welcomed(self, welcome: fault_report_pb2.Welcome) -> None:
        """Take the Controller on, its epoch durable; raises FtError STALE_EPOCH for a former leader."""
        settings = _settings(welcome)
        demand(welcome.instance_id > 0, "welcome.instance_id", "must be positive")
        await self._journal.update(
            lambda state: welcomed(
                state,
                welcome.instance_id,
                welcome.controller_epoch,
                welcome.generation,
                scale_down_on=welcome.enable_dp_scale_down_proxy,
            )
        )
        self._pod.paced(settings)
        self._pod.changed()

    def linked(self) -> None:
        """A Controller that wants faster polling says so again."""
        self._orders.set_fast(False)

    def report(self, sequence: int, item: Report, now: float) -> FaultReportRequest:
        """One report about a rank, or a snapshot of all."""
        return messages.report(sequence, item, self._pod, self._journal.state, now)

    def heartbeat(self) -> FaultReportRequest:
        """Every endpoint that is not retired."""
        return messages.heartbeat(self._pod)

    def directed(self, directive: fault_report_pb2.Directive) -> bool:
        """Change the pace of polling, and freeze or thaw suicide."""
        if directive.controller_epoch < (self._journal.state.fence.epoch or 0):
            return False
        if directive.poll_mode != fault_report_pb2.POLL_MODE_UNSPECIFIED:
            self._orders.set_fast(directive.poll_mode == fault_report_pb2.POLL_MODE_FAST)
        if directive.HasField("freeze_suicide"):
            self._orders.freeze_suicide(duration_from_pb(directive.freeze_suicide))
        return True


def _settings(welcome: fault_report_pb2.Welcome) -> Settings:
    """What Welcome says about pace; raises FieldError for what cannot be."""
    settings = Settings(
        duration_from_pb(welcome.heartbeat_interval),
        duration_from_pb(welcome.heartbeat_ttl),
        duration_from_pb(welcome.poll_interval),
        welcome.status_unreachable_threshold,
        duration_from_pb(welcome.engine_request_timeout),
    )
    for name in ("poll_interval_sec", "engine_timeout_sec"):
        demand(getattr(settings, name) > 0, f"welcome.{name.removesuffix('_sec')}", "must be positive")
    demand(settings.unreachable_threshold > 0, "welcome.status_unreachable_threshold", "must be at least 1")
    return settings
