"""What can happen: a scenario is plain data, made from a seed, that can be stored, read and shortened."""

from itertools import cycle
from pathlib import Path
from random import Random
from typing import Literal

import msgspec

from tests.simulation.damage import DAMAGES
from tests.simulation.troubles import ENGINE_TROUBLES, HARDWARE_FAULTS, HARMLESS

Mode = Literal["launched", "adopted", "endpoint"]
"""How a NodeManager knows its engines: as its children, by their pid, or by their address alone."""


class Pod(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """``headless``: ranks of other pods that have a second, headless endpoint here."""

    ranks: tuple[int, ...]
    headless: tuple[int, ...] = ()


class Job(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One instance and its successors. Times in seconds, as in ``tests.support.engine.config.Timings``."""

    pods: tuple[Pod, ...]
    dialect: str = "vllm_v1"
    mode: Mode = "launched"
    detection: float = 1.0
    window: float = 120.0
    round_time: float = 1.0
    boot: float = 2.0
    restart: float = 1.0
    new_pod: bool = True
    suicide: bool = False
    gate_closed: bool = False
    mixed: bool = False
    unstated: bool = False
    role: str = "union"

    @property
    def dp_size(self) -> int:
        return sum(len(pod.ranks) for pod in self.pods)

    @property
    def one_server(self) -> bool:
        """Rank 0 has the server, and the NodeManager the process, of all ranks; they are in one pod."""
        return self.dialect == "sglang"


class Config(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What an operator may choose."""

    scale_down: bool = True
    request_timeout: float = 2.0
    poll: float = 1.0
    execution: float = 10.0
    collection: float = 20.0
    correlation: float = 5.0
    heartbeat: float = 3.0
    ttl: float = 10.0
    assemble: float = 60.0
    threshold: int = 1
    store_lease: float = 6.0
    fast_recovery: bool = False
    scale_up: bool = False
    probe: str = "auto"
    idle_probe: bool = False
    relaunch: bool = True
    reinference: bool = True
    hardware_type: str = ""
    link_down: str = "auto"


class Event(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Something happens to ``who``: at ``at``, or so long after the ``nth`` time that ``after`` was seen from then on.

    ``value`` is the one parameter that some kinds have.
    """

    at: float
    kind: str
    who: str = ""
    value: float = 0.0
    text: str = ""
    after: str = ""
    nth: int = 1
    delay: float = 0.0


class Scenario(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Everything that a run depends on; ``seed`` decides delays and what else is left to chance."""

    seed: int
    jobs: tuple[Job, ...]
    events: tuple[Event, ...]
    config: Config = Config()
    controllers: int = 1
    coordinators: int = 1
    delay: float = 0.002
    jitter: float = 0.003
    calm_at: float = 60.0


# Moments of a recovery, as the world names them: "<what> <method or phase>".
MOMENTS = (
    "arrive Guard",
    "answer Guard",
    "arrive Status",
    "arrive Apply",
    "answer Apply",
    "post apply",
    "arrive Probe",
    "arrive Finalize",
    "answer Finalize",
    "arrive Stop",
    "arrive Refresh",
    "answer Refresh",
    "store DECIDING",
    "store WAITING_ENGINE_FAULT",
    "store SCALING_DOWN",
    "store POST_SCALE_CLEANUP",
    "store SCALED_DOWN_RUNNING",
    "store RECONFIGURING",
    "store NORMAL",
)

CORE_MOMENTS = MOMENTS[: MOMENTS.index("arrive Stop")] + MOMENTS[-7:-2]
"""Of a transaction."""

DIALECTS = {"vllm_v1": 92, "vllm_0_33": 5, "sglang": 3}
"""How many of a hundred jobs have which."""

STRANGE = (
    "guard of a former leader",
    "stop of a former leader",
    "relaunch of a former leader",
    "guard of a former generation",
    "half fenced",
    "no lease",
    "endless lease",
    "another instance",
    "made-up plan",
    "foreign commit",
    "foreign apply",
    "apply to the removed",
    "apply that removes nobody",
    "retry that removes",
    "unknown rank",
)
TURNS = ("worker_kill", "engine_kill", "root_kill", "restart", "freeze", "deaf", "frontend_kill", "says", "says")
"""What an engine does at some point of a transaction."""

IN_HIS_NAME = (
    "abort that retires",
    "commit for another pod",
    "commit of a survivor",
    "another plan",
    "apply under another plan",
    "apply in another generation",
    "removes nobody",
    "removes whom it tells",
    "removes others",
    "names no master",
    "retry that moves the store",
    "guard that is late",
)
"""Said in the name of who holds the guard, or held it last."""
CONSOLE = ("console", "console that waits")
"""Somebody at the routes of one pod, without a fence."""
BY_HAND = "by hand"
"""Somebody does at the routes what the Controller does not, because it may not."""
GATEWAY = "gateway"
"""Somebody reads engines at the gateway of a pod, and means others."""
AGAIN = tuple(f"{method} again" for method in ("Guard", "Status", "Apply", "Finalize", "Stop", "RestartEngines"))
"""What a Controller said to a pod last arrives once more."""
PORTLESS = "Apply without a port"
"""... or so, as that is left to the pods."""
MISFITS = ("no job", "no ranks", "no size", "outside", "twice", "no port", "another size", "same rank", "nonsense")


def store(file: Path, scenario: Scenario) -> None:
    """Keep a scenario, for people to read too."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(scenario)) + b"\n")


def load(file: Path) -> Scenario:
    """A scenario that was stored."""
    return msgspec.json.decode(file.read_bytes(), type=Scenario)


def scenario(seed: int) -> Scenario:
    """The scenario of a seed."""
    return _Author(seed).write()


class _Author:
    """Makes up one story: usually one incident, and some trouble on the way through it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.events: list[Event] = []

    def write(self) -> Scenario:
        rng = self.rng
        jobs = [self._job() for _ in range(rng.choice([1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 4]))]
        roles = rng.choice([["union"], ["prefill", "decode"], ["decode", "prefill", "prefill"]])
        self.jobs = tuple(
            msgspec.structs.replace(job, role=role) for job, role in zip(jobs, cycle(roles), strict=False)
        )
        self.config = self._config()
        self.controllers = rng.choice([1, 1, 2])
        self.coordinators = rng.choice([1, 1, 1, 2])
        self.start = 8.0 + rng.random() * 4
        calm = self.start
        for _ in range(rng.choice([1, 1, 1, 2, 2, 3])):
            self._incident()
            calm = self.start + rng.choice([rng.uniform(5.0, 20.0), rng.uniform(5.0, 45.0)])
            self.start = calm if rng.random() < 0.5 else self.start + rng.uniform(0.0, 5.0)
        for _ in range(rng.choice([0, 0, 1, 1, 2, 3, 5])):
            self._trouble()
        for _ in range(rng.choice([0, 0, 1, 2, 3])):
            self._people()
        delay = rng.choice([0.0005, 0.002, 0.02])
        jitter = rng.choice([0.001, 0.01, 0.1])
        calm += rng.choice([rng.uniform(2.0, 10.0), rng.uniform(5.0, 30.0)])
        self._more()
        return Scenario(
            seed=self.seed,
            jobs=self.jobs,
            events=tuple(sorted(self.events, key=lambda event: event.at)),
            config=self.config,
            controllers=self.controllers,
            coordinators=self.coordinators,
            delay=delay,
            jitter=jitter,
            calm_at=calm,
        )

    def _job(self) -> Job:
        rng = self.rng
        ranks = rng.choice([2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 6, 8, 12, 16])
        pods = min(rng.choice([1, 1, 2, 2, 3, 4, 8]), ranks)
        owners = sorted([*range(pods), *(rng.randrange(pods) for _ in range(ranks - pods))])
        groups = [tuple(rank for rank, owner in enumerate(owners) if owner == pod) for pod in range(pods)]
        headless: list[tuple[int, ...]] = [() for _ in groups]
        if pods > 1 and rng.random() < 0.2:
            rank = rng.randrange(ranks)
            headless[rng.choice([pod for pod in range(pods) if rank not in groups[pod]])] = (rank,)
        job = Job(
            pods=tuple(Pod(*pair) for pair in zip(groups, headless, strict=True)),
            dialect=rng.choices([*DIALECTS], [*DIALECTS.values()])[0],
            mode=rng.choice(["launched", "launched", "adopted", "endpoint"]),
            detection=rng.choice([0.05, 0.5, 2.0, 8.0]),
            window=rng.choice([60.0, 60.0, 90.0, 120.0]),
            round_time=rng.choice([0.02, 1.0, 3.0]),
            boot=rng.choice([0.5, 2.0, 5.0]),
            restart=rng.choice([0.2, 1.0, 4.0]),
            new_pod=rng.random() < 0.6,
            suicide=rng.random() < 0.2,
            gate_closed=rng.random() < 0.04,
            mixed=rng.random() < 0.04,
        )
        return msgspec.structs.replace(job, pods=(Pod(tuple(range(ranks))),)) if job.one_server else job

    def _config(self) -> Config:
        rng = self.rng
        scale_down = rng.random() < 0.92
        return Config(
            scale_down=scale_down,
            request_timeout=rng.choice([1.0, 2.0, 5.0]),
            poll=rng.choice([1.0, 2.0]),
            execution=rng.choice([6.0, 10.0, 20.0]),
            collection=rng.choice([10.0, 20.0, 30.0]),
            correlation=rng.choice([2.0, 5.0]),
            heartbeat=rng.choice([2.0, 3.0, 3.0, 4.0]),
            ttl=rng.choice([8.0, 10.0]),
            threshold=rng.choice([1, 1, 2, 3]),
            store_lease=rng.choice([4.0, 8.0]),
            fast_recovery=scale_down and rng.random() < 0.4,
            scale_up=rng.random() < 0.3,
            probe=rng.choice(["auto", "on", "off"]),
            idle_probe=rng.random() < 0.3,
            relaunch=rng.random() < 0.7,
            reinference=rng.random() < 0.8,
            hardware_type=rng.choice(["", "", "800I-A2", "800I-A3"]),
        )

    # --- incidents ---

    def _incident(self) -> None:
        rng = self.rng
        job = rng.randrange(len(self.jobs))
        size = self.jobs[job].dp_size
        first = rng.randrange(size)
        kinds = [self._death] * 8 + [self._deaths] * 4 + [self._step, self._frozen, self._silent, self._hardware]
        rng.choice([*kinds, self._idle, self._replaced, self._hardware])(job, first)

    def _add(self, kind: str, who: str = "", *, later: float = 0.0, value: float = 0.0, text: str = "") -> None:
        self.events.append(Event(round(self.start + later, 3), kind, who, value, text))

    def _kill(self, job: int, rank: int, later: float = 0.0) -> None:
        self._add(
            self.rng.choice(["worker_kill", "worker_kill", "engine_kill", "root_kill"]), f"{job}/{rank}", later=later
        )

    def _death(self, job: int, rank: int) -> None:
        self._kill(job, rank)

    def _deaths(self, job: int, rank: int) -> None:
        """More than one, at once or one after the other."""
        size = self.jobs[job].dp_size
        self._kill(job, rank)
        for _ in range(self.rng.choice([1, 1, 2, size])):
            self._kill(job, self.rng.randrange(size), self.rng.choice([0.0, 0.3, 2.0, self.rng.uniform(0.0, 30.0)]))

    def _step(self, job: int, rank: int) -> None:
        """A step raises: everybody is unhealthy, nobody dead."""
        self._add("step_exception", f"{job}/{rank}")

    def _frozen(self, job: int, rank: int) -> None:
        self._add("freeze", f"{job}/{rank}")
        self._add("unfreeze", f"{job}/{rank}", later=self.rng.uniform(1.0, 60.0))

    def _silent(self, job: int, rank: int) -> None:
        """A server that does not answer, or is not there, for a while; the engine works."""
        kind = self.rng.choice(["deaf", "frontend_kill"])
        self._add(kind, f"{job}/{rank}")
        self._add("frontend_restore", f"{job}/{rank}", later=self.rng.choice([0.5, 2.0, 8.0, 25.0]))

    def _idle(self, job: int, rank: int) -> None:
        """Nobody notices the death."""
        self._add("idle", f"{job}/{rank}", value=1.0)
        self._kill(job, rank, 1.0)

    def _replaced(self, job: int, rank: int) -> None:
        self._add("restart", f"{job}/{rank}")

    def _hardware(self, job: int, rank: int) -> None:
        """With or without a death that it explains, before or after it."""
        rng = self.rng
        what = rng.choice(HARDWARE_FAULTS).format(rng.choice(["card", "card", "node", "odd"]))
        told = rng.uniform(0.0, 8.0)
        self._add("hardware", f"{job}/{rank}", later=told, text=what)
        if rng.random() < 0.7:
            self._kill(job, rank, rng.uniform(0.0, 8.0))
        if rng.random() < 0.5:
            self._add("hardware_cleared", f"{job}/{rank}", later=told + rng.uniform(1.0, 30.0))

    # --- trouble ---

    def _trouble(self) -> None:
        rng = self.rng
        job = rng.randrange(len(self.jobs))
        pod = rng.randrange(len(self.jobs[job].pods))
        rank = rng.randrange(self.jobs[job].dp_size)
        controller = rng.randrange(self.controllers)
        pick = rng.random()
        if rng.random() < 0.35:
            self._engine(job, rank)
        elif pick < 0.03:
            self._add("slow", f"{job}/{rank}", value=rng.choice([0.3, 1.5, 6.0]))
            self._add("frontend_restore", f"{job}/{rank}", later=rng.choice([0.5, 2.0, 8.0, 25.0]))
        elif pick < 0.06:
            self._moment("says", f"{job}/{rank}", value=rng.choice([1.0, 2.0, 4.0, 30.0]), text="diagnosing")
        elif pick < 0.2:
            self._moment("controller_kill", str(controller), value=float(rng.randrange(0, 400)))
        elif pick < 0.4:
            self._moment("node_kill", f"{job}/{pod}", value=float(rng.randrange(0, 200)))
        elif pick < 0.5:
            self._moment(
                "engine_trouble", f"{job}/{rank}", value=rng.choice([0.5, 2.0, 12.0]), text=rng.choice(ENGINE_TROUBLES)
            )
        elif pick < 0.6:
            who = rng.choice([f"controller {controller}", f"node {job}/{pod}"])
            self._moment("stop_process", who, value=rng.choice([1.0, 5.0, 12.0, 25.0]))
        elif pick < 0.75:
            self._moment(
                "cut",
                self._path(controller, job, pod),
                value=rng.choice([0.5, 3.0, 10.0, 30.0]),
                text=rng.choice(["both", "there", "back"]),
            )
        elif pick < 0.85:
            self._moment("storm", self._path(controller, job, pod), value=rng.choice([5.0, 20.0]))
        elif pick < 0.9:
            self._moment("reset", self._path(controller, job, pod))
        elif pick < 0.94:
            self._moment("store_down", value=rng.choice([0.5, 3.0, 10.0]))
        elif pick < 0.96:
            self._moment(
                "coordinator_restart", str(rng.randrange(self.coordinators)), value=rng.choice([0.0, 2.0, 15.0])
            )
        elif pick < 0.97:
            self._moment("adapter_restart", value=rng.choice([0.0, 3.0, 20.0]))
        elif pick < 0.98:
            self._moment("disk_broken", f"{job}/{pod}", value=rng.choice([1.0, 10.0]))
        elif pick < 0.99:
            self._moment(
                "clock",
                rng.choice([f"controller {controller}", f"node {job}/{pod}"]),
                value=rng.choice([0.1, 30.0, 3600.0]),
            )
        else:
            self._moment("reboot", f"{job}/{pod}")

    def _engine(self, job: int, rank: int) -> None:
        """An engine that was well, or was thought to be dead, is different at some point of a transaction."""
        kind = self.rng.choice(TURNS)
        value, text = (self.rng.choice([1.0, 4.0, 30.0]), "diagnosing") if kind == "says" else (0.0, "")
        self._moment(kind, f"{job}/{rank}", value=value, text=text, moments=CORE_MOMENTS)

    def _people(self) -> None:
        """Questions and orders, and commands that nobody may give."""
        rng = self.rng
        job = rng.randrange(len(self.jobs))
        if rng.random() < 0.4:
            self._moment("order", str(job), text=rng.choice(["ask", "ask", "ask", "pause", "resume", "reconfigure"]))
        else:
            pod = rng.randrange(len(self.jobs[job].pods))
            kinds = rng.choice([STRANGE, IN_HIS_NAME, IN_HIS_NAME, IN_HIS_NAME, CONSOLE, MISFITS])
            self._moment("strange", f"{job}/{pod}", text=rng.choice(kinds))

    def _more(self) -> None:
        """What was thought of later; it is drawn last, and so the rest of every history stays as it was."""
        rng = self.rng
        job = rng.randrange(len(self.jobs))
        pod = f"{job}/{rng.randrange(len(self.jobs[job].pods))}"
        if rng.random() < 0.6:
            self._moment("strange", pod, text=rng.choice([*AGAIN, GATEWAY]))
        if rng.random() < 0.05:
            self._moment("disk_slow", pod, value=rng.choice([0.1, 0.5, 1.5]))
        controller = rng.randrange(self.controllers)
        if rng.random() < 0.2:
            who = rng.choice([*[f"controller {controller}"] * 3, f"node {pod}"])
            self._moment("terminate", who, moments=CORE_MOMENTS)
        if rng.random() < 0.1:
            path = self._path(controller, *map(int, pod.split("/")))
            self._moment("lag", path, value=rng.choice([0.1, 0.5, 1.0, 2.0]))
        if rng.random() < 0.1:
            self._moment("damage", str(job), text=rng.choice([*DAMAGES]))
        if rng.random() < 0.1:
            self._moment("hardware", f"{job}/0", text=rng.choice(HARMLESS))
        link_down = rng.choice(["auto", "auto", "count", "ignore"])
        self.config = msgspec.structs.replace(self.config, link_down=link_down)
        unstated = rng.random() < 0.02
        self.jobs = tuple(msgspec.structs.replace(each, unstated=unstated) for each in self.jobs)

    def _path(self, controller: int, job: int, pod: int) -> str:
        rng = self.rng
        other = rng.choice(
            [
                *[f"node {job}/{pod}"] * 4,
                *["store"] * 2,
                *[f"coordinator {rng.randrange(self.coordinators)}"] * 2,
                "adapter",
            ]
        )
        return f"controller {controller} - {other}"

    def _moment(
        self, kind: str, who: str = "", *, value: float = 0.0, text: str = "", moments: tuple[str, ...] = MOMENTS
    ) -> None:
        """Trouble at some time, or right when the recovery comes to some point."""
        rng = self.rng
        first = min(event.at for event in self.events)
        if rng.random() < 0.3:
            last = max(event.at for event in self.events) + 20.0
            self.events.append(Event(round(rng.uniform(first - 2.0, last), 3), kind, who, value, text))
            return
        after, nth = rng.choice(moments), rng.choice([1, 1, 1, 2, 3])
        delay = rng.choice([0.0, 0.0, 0.001, 0.01, 0.1, 1.0])
        self.events.append(Event(first, kind, who, value, text, after, nth, delay))
