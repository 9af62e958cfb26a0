"""What a person sees: the instance, its ranks, completions, and what has happened."""

from __future__ import annotations

import time
from collections import Counter, deque

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from motor_ft.v1 import common_pb2, controller_pb2
from tests.support.cluster import Cluster, Evidence

COLORS = {"HEALTHY": "green", "UNHEALTHY": "yellow", "DIAGNOSING": "yellow", "DEAD": "red", "REMOVED": "bright_black"}


class View:
    """Renders the last known state; ``changed`` is told every instance that the Controller reports."""

    def __init__(self, cluster: Cluster, evidence: Evidence) -> None:
        self._cluster = cluster
        self._evidence = evidence
        self._started = time.time()
        self._events: deque[str] = deque(maxlen=14)
        self._instances: dict[int, controller_pb2.Instance] = {}
        self._phases: dict[int, str] = {}

    def say(self, text: str) -> str:
        """Add a line to what has happened, and return it."""
        line = f"{time.time() - self._started:7.2f} s  {text}"
        self._events.append(line)
        return line

    def changed(self, instance: controller_pb2.Instance) -> str | None:
        """Take a new state; returns a line when the phase moved."""
        self._instances[instance.instance_id] = instance
        phase = controller_pb2.Phase.Name(instance.phase).removeprefix("PHASE_")
        shown = f"{phase} serving" if instance.can_serve else phase
        if self._phases.get(instance.instance_id) == shown:
            return None
        self._phases[instance.instance_id] = shown
        detail = f"  {instance.last_error}" if instance.last_error else ""
        return self.say(f"instance {instance.instance_id}: {shown}{detail}")

    def render(self) -> Group:
        """The whole screen."""
        return Group(self._services(), *self._tables(), self._completions(), self._history())

    def services(self) -> list[str]:
        """How to reach what runs."""
        cluster = self._cluster
        return [
            f"gRPC        127.0.0.1:{cluster.controller_port}   (Controller: reflection and health are on)",
            f"REST        http://127.0.0.1:{cluster.rest_port}/controller/fault_tolerance/status",
            f"completions {cluster.coordinator_url}/v1/completions",
            f"metrics     http://127.0.0.1:{cluster.metrics_port}/metrics",
            *(
                f"pod {number}       gRPC 127.0.0.1:{grpc}  REST http://127.0.0.1:{rest}  metrics http://127.0.0.1:{http}"
                for number, (grpc, rest, http) in enumerate(cluster.pod_ports)
            ),
            f"logs, evidence {cluster.folder}",
        ]

    def _services(self) -> Panel:
        return Panel(Text("\n".join(self.services())), title="motor-ft", subtitle="Ctrl-C ends everything")

    def _tables(self) -> list[Table]:
        gone = controller_pb2.INSTANCE_STATE_DELETED
        return [_ranks(instance) for _, instance in sorted(self._instances.items()) if instance.state != gone]

    def _completions(self) -> Text:
        counts = Counter(record["status"] for record in self._evidence.completions)
        recent = [record["status"] for record in self._evidence.completions[-40:]]
        text = Text("completions  ")
        text.append(f"{counts[200]} served", style="green")
        text.append(f"  {counts.total() - counts[200]} refused  ", style="red" if counts.total() > counts[200] else "")
        for status in recent:
            text.append("▪", style="green" if status == 200 else "red")
        return text

    def _history(self) -> Panel:
        return Panel(Text("\n".join(self._events) or "…"), title="what has happened")


def _ranks(instance: controller_pb2.Instance) -> Table:
    phase = controller_pb2.Phase.Name(instance.phase).removeprefix("PHASE_")
    table = Table(
        title=f"instance {instance.instance_id} of job {instance.job_name}: {phase}, "
        f"{'serving' if instance.can_serve else 'not serving'}, generation {instance.generation}",
        expand=True,
    )
    for column in ("rank", "pod", "endpoint", "engine"):
        table.add_column(column)
    for pod in instance.pods:
        for endpoint in pod.endpoints:
            status = instance.engine_statuses.get(endpoint.dp_rank, common_pb2.ENGINE_STATUS_UNKNOWN)
            name = common_pb2.EngineStatus.Name(status).removeprefix("ENGINE_STATUS_")
            if endpoint.dp_rank in instance.dead_committed:
                name = "REMOVED"
            cells = (str(endpoint.dp_rank), pod.name, f"{endpoint.ip}:{endpoint.business_port}")
            table.add_row(*cells, Text(name, style=COLORS.get(name, "")))
    return table


def timings(latencies: dict[str, float]) -> Table:
    """Stages of the last transaction, from the fault on."""
    table = Table(title="recovery, milliseconds from the fault")
    table.add_column("step begins")
    table.add_column("ms", justify="right")
    for name, at in sorted(latencies.items(), key=lambda item: item[1]):
        table.add_row(name, f"{at:.0f}")
    return table
