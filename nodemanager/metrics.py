"""What a NodeManager counts, beside its RPCs."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from motor_ft.model.engine import Problem
from motor_ft.wire.log import get_logger

_log = get_logger(__name__)


class NodeMetrics:
    """One NodeManager."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.connected = Gauge(
            "motor_ft_link_connected", "1 while a Controller has answered Hello on the open stream.", registry=registry
        )
        self.reports = Counter("motor_ft_reports", "Reports sent, repeats included.", ["kind"], registry=registry)
        self.rejected = Counter("motor_ft_reports_rejected", "Reports refused.", ["reason"], registry=registry)
        self.process_deaths = Counter("motor_ft_process_deaths", "Engine processes that ended.", registry=registry)
        self.retired_healthy = Counter(
            "motor_ft_retired_rank_healthy", "Readings in which a retired rank was healthy.", registry=registry
        )
        self.problems = Counter(
            "motor_ft_engine_problems",
            "Readings of engines that could not be taken, or not be believed.",
            ["problem"],
            registry=registry,
        )
        for problem in Problem:
            if problem is not Problem.NONE:
                self.problems.labels(problem)  # a rate needs the zero before the first one
        self._journal = Gauge("motor_ft_journal_available", "1 while the journal can be written.", registry=registry)
        self._journal.set(1)
        self.apply_seconds = Histogram(
            "motor_ft_apply_seconds", "From apply received to all engines answered.", registry=registry
        )

    def journal(self, problem: str) -> None:
        """The journal cannot be written any more, or can again."""
        self._journal.set(not problem)
        if problem:
            _log.error("the journal cannot be written; every command that needs it is refused", problem=problem)
        else:
            _log.warning("the journal can be written again")
