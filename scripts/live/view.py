"""What a person sees: the instance, its ranks, completions, and what has happened."""

from __future__ import annotations

import time
from collections import Counter, deque

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from motor_ft.v1 import common_pb2, controller_pb2
from tests.support.cluster import Cluster, Evidence

MOST_EVENTS = 14
FEWEST_EVENTS = 5
MOST_RANK_ROWS = 16
"""Of an instance with more ranks a row is a pod, so that the rest of the screen stays visible."""
COLORS = {"HEALTHY": "green", "UNHEALTHY": "yellow", "DIAGNOSING": "yellow", "DEAD": "red", "REMOVED": "bright_black"}


class View:
    """Renders the last known state; ``changed`` is told every instance that the Controller reports."""

    def __init__(self, cluster: Cluster, evidence: Evidence) -> None:
        self._cluster = cluster
        self._evidence = evidence
        self._started = time.time()
        self._events: deque[str] = deque(maxlen=MOST_EVENTS)
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
        shown = "; ".join([shown, *instance.degraded])
        if self._phases.get(instance.instance_id) == shown:
            return None
        self._phases[instance.instance_id] = shown
        detail = f"  {instance.last_error}" if instance.last_error else ""
        return self.say(f"instance {instance.instance_id}: {shown}{detail}")

    def render(self, height: int) -> Group:
        """The whole screen, ``height`` lines; where it is short, what happened long ago goes first."""
        services, tables = self.services(), self._tables()
        above = len(services) + 2 + sum(table.row_count + 3 for table in tables) + 1
        events = list(self._events)[-max(FEWEST_EVENTS, height - above - 2) :]
        return Group(self._services(services), *tables, self._completions(), self._history(events))

    def services(self) -> list[str]:
        """How to reach what runs."""
        cluster = self._cluster
        return [
            f"gRPC        127.0.0.1:{cluster.controller_port}   (Controller: reflection and health are on)",
            f"REST        http://127.0.0.1:{cluster.rest_port}/controller/fault_tolerance/status",
            f"completions {cluster.coordinator_url}/v1/completions",
            f"metrics     http://127.0.0.1:{cluster.metrics_port}/metrics",
            *(
                f"pod {number:<8}127.0.0.1: gRPC {grpc}, REST {rest}, metrics {http}"
                for number, (grpc, rest, http) in enumerate(cluster.pod_ports)
            ),
            f"logs        {cluster.folder}",
        ]

    def _services(self, lines: list[str]) -> Panel:
        return Panel(
            Text("\n".join(lines), no_wrap=True, overflow="ellipsis"),
            title="motor-ft",
            subtitle="Ctrl-C ends everything",
        )

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

    def _history(self, events: list[str]) -> Panel:
        return Panel(Text("\n".join(events) or "…", no_wrap=True, overflow="ellipsis"), title="what has happened")


def _ranks(instance: controller_pb2.Instance) -> Table:
    phase = controller_pb2.Phase.Name(instance.phase).removeprefix("PHASE_")
    table = Table(
        title=f"instance {instance.instance_id} of job {instance.job_name}: {phase}, "
        f"{'serving' if instance.can_serve else 'not serving'}, generation {instance.generation}",
        expand=True,
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    pods = sorted(instance.pods, key=lambda pod: min((endpoint.dp_rank for endpoint in pod.endpoints), default=0))
    if sum(len(pod.endpoints) for pod in pods) > MOST_RANK_ROWS:
        table.add_column("pod", no_wrap=True)
        table.add_column("engines", no_wrap=True, ratio=1)
        for pod in pods:
            table.add_row(pod.name, _summary(instance, sorted(endpoint.dp_rank for endpoint in pod.endpoints)))
        return table
    for column in ("rank", "pod", "endpoint", "engine"):
        table.add_column(column, no_wrap=True)
    for pod in pods:
        for endpoint in sorted(pod.endpoints, key=lambda endpoint: endpoint.dp_rank):
            name = _status(instance, endpoint.dp_rank)
            cells = (str(endpoint.dp_rank), pod.name, f"{endpoint.ip}:{endpoint.business_port}")
            table.add_row(*cells, Text(name, style=COLORS.get(name, "")))
    return table


def _summary(instance: controller_pb2.Instance, ranks: list[int]) -> Text:
    """How many engines are in each state, and which when they are not healthy."""
    states: dict[str, list[int]] = {}
    for rank in ranks:
        states.setdefault(_status(instance, rank), []).append(rank)
    text = Text()
    for name, members in sorted(states.items(), key=lambda item: item[0] != "HEALTHY"):
        which = "" if name == "HEALTHY" else f" (rank {', '.join(map(str, members))})"
        text.append(f"{len(members)} {name}{which}  ", style=COLORS.get(name, ""))
    return text


def _status(instance: controller_pb2.Instance, rank: int) -> str:
    if rank in instance.dead_committed:
        return "REMOVED"
    status = instance.engine_statuses.get(rank, common_pb2.ENGINE_STATUS_UNKNOWN)
    return common_pb2.EngineStatus.Name(status).removeprefix("ENGINE_STATUS_")


def timings(latencies: dict[str, float]) -> Table:
    """Stages of what the last fault led to."""
    table = Table(title="recovery from the last fault", box=SIMPLE_HEAD)
    table.add_column("step begins")
    table.add_column("ms from the fault", justify="right")
    table.add_column("+ ms", justify="right")
    before = 0.0
    for name, at in sorted(latencies.items(), key=lambda item: item[1]):
        table.add_row(name, f"{at:.0f}", f"{at - before:.0f}")
        before = at
    return table
