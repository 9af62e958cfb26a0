"""One soak, from the first start to the report."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack, nullcontext
from dataclasses import asdict, replace

from scripts.endurance import clients
from scripts.endurance.disturbances import Disturbances
from scripts.endurance.faults import FAULTS, SPARING
from scripts.endurance.incidents import Incident, Patient
from scripts.endurance.leaks import Sample, judge
from scripts.endurance.options import Options
from scripts.endurance.report import Result
from scripts.endurance.rules import defects
from scripts.endurance.samples import Daemon, Sampler
from scripts.endurance.witness import Witness
from tests.support.cluster import SCALED, Cluster, Shape
from tests.support.cluster.hardware import Hardware

REQUESTERS = 3
MORTAL = (0.25, 0.92)
"""Controller, gateway and adapter are killed before and after these parts of the time: between them they live, and
are measured."""
PROFILE = {
    **SCALED,
    "fast_recovery": True,
    "fault_collection_timeout_sec": 4.0,
    "hardware_ft_correlation_window_sec": 2.0,
    "engine_poll_interval_sec": 0.2,
    "heartbeat_ttl_sec": 5.0,
}
SHAPE = Shape(
    fault_tolerance=PROFILE,
    proxied_pods=(0, 1),
    proxied_reports=(0, 1),
    controller_module="scripts.endurance.controller",
)
STEADY = "steady"


def shapes(count: int) -> list[Shape]:
    """Instances beside each other; of several the last one is treated so that its NodeManagers live long."""
    steady = replace(SHAPE, job=STEADY, pods=((0,), (1,)), first_card=4 * count)
    wild = [replace(SHAPE, job=f"wild-{number}", first_card=4 * number) for number in range(count)]
    return [*wild[: count - 1], steady] if count > 1 else wild


class Soak:
    """``run`` it once; ``result`` is what was found so far, also when that was cut short."""

    def __init__(self, options: Options, tell: Callable[[str], None]) -> None:
        self._options = options
        self._tell = tell
        self._incidents: list[Incident] = []
        self._answers = Counter[str]()
        self._cluster = Cluster(options.folder, *shapes(options.instances))
        self._witness = Witness(self._cluster)
        self._patients: list[Patient] = []
        self._sampler: Sampler | None = None
        self._disturbances: Disturbances | None = None
        self._begin = 0.0

    def result(self) -> Result:
        """Until now."""
        return Result(
            seconds=time.monotonic() - self._begin if self._begin else 0.0,
            cycles=self._cycles,
            incidents=self._incidents,
            disturbances=self._disturbances.counts if self._disturbances else {},
            answers=self._answers,
            judgements=judge(self._sampler.samples) if self._sampler else [],
            broken=[*self._witness.broken, *self._defects()],
        )

    @property
    def _cycles(self) -> int:
        return sum(each.cycles for each in self._patients)

    async def run(self) -> None:
        """Until the time is over and all instances are whole again."""
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(self._cluster)
            await cluster.start_gateway()
            hardware = await stack.enter_async_context(Hardware(cluster))
            self._begin = time.monotonic()
            lock = asyncio.Lock()
            self._patients = [
                Patient(
                    cluster,
                    each,
                    hardware,
                    self._witness,
                    SPARING if each.shape.job == STEADY else FAULTS,
                    self._options.seed,
                    lock if each.shape.job == STEADY else nullcontext(),
                    self._ended,
                )
                for each in cluster.deployments
            ]
            self._sampler = Sampler(lambda: self._daemons(hardware), cluster.http)
            stack.callback(self._write, "samples.jsonl", self._sampler.samples)
            self._disturbances = Disturbances(cluster, hardware, self._witness, self._options.seed, lock, self._mortal)
            background = [
                self._witness.run(),
                self._sampler.run(),
                self._disturbances.run(),
                clients.look(cluster),
                *(clients.request(cluster, self._answers) for _ in range(REQUESTERS)),
            ]
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(each) for each in background]
                await asyncio.gather(*(self._break(each) for each in self._patients))
                for task in running:
                    task.cancel()

    async def _break(self, patient: Patient) -> None:
        while self._goes_on():
            await patient.cycle()

    def _goes_on(self) -> bool:
        enough = self._options.cycles is not None and self._cycles >= self._options.cycles
        return self._passed < 1 and not enough

    @property
    def _passed(self) -> float:
        return (time.monotonic() - self._begin) / self._options.seconds

    def _mortal(self) -> bool:
        return not MORTAL[0] < self._passed < MORTAL[1]

    def _ended(self, incident: Incident) -> None:
        self._incidents.append(incident)
        self._write("incidents.jsonl", [incident])
        minutes, seconds = divmod(int(time.monotonic() - self._begin), 60)
        self._tell(
            f"{minutes:3}:{seconds:02} cycle {self._cycles + 1:3} {incident.job:7} {incident.fault}: "
            f"{incident.ending} after {incident.seconds:.1f} s {incident.text}"
        )

    def _write(self, name: str, records: Iterable[Incident | Sample]) -> None:
        with (self._options.folder / name).open("a") as file:
            file.writelines(json.dumps(asdict(each)) + "\n" for each in records)

    def _daemons(self, hardware: Hardware) -> Iterator[Daemon]:
        cluster = self._cluster
        for name, process, port in (
            ("controller", cluster.controller, cluster.metrics_port),
            ("gateway", cluster.gateway, cluster.gateway_metrics_port),
            ("adapter", hardware.adapter, hardware.metrics_port),
        ):
            if process is not None:
                yield Daemon(name, process.pid, port)
        for deployment in cluster.deployments:
            for number, pod in enumerate(deployment.pods):
                yield Daemon(f"{deployment.shape.job} pod {number}", pod.pid, deployment.pod_ports[number][2])

    def _defects(self) -> Iterator[str]:
        for log in sorted(self._options.folder.glob("*.log")):
            yield from (f"{log.name}: {text}" for text in defects(log.read_text().splitlines()))
