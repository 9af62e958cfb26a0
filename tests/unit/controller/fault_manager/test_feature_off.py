"""Feature off: the FaultManager does, says and accepts what the baseline does, in any history of faults."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from controller.core.reports import EndpointState, Heartbeat
from controller.fault_manager.environment import Settings
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.hardware import FaultLevel, HardwareFault
from motor_ft.model.topology import EndpointStatus, Role
from tests.support.baseline import GRAVE, Baseline, Job
from tests.support.world.hardware import FakeAdapter, card, with_cards
from tests.support.world.pods import D, FakePod, U, registration
from tests.support.world.world import SETTINGS, World

pytestmark = pytest.mark.looptime

OFF = replace(
    SETTINGS,
    enable_dp_scale_down=False,
    scale_p2d_wait=20.0,
    token_reinference_timeout=20.0,
    heartbeat_interval=5.0,
    heartbeat_ttl=15.0,
)
ALL_OFF = replace(OFF, enable_fault_tolerance=False, enable_dp_scale_down=True, idle_probe=True)
SOON, AWAY, SETTLED = 5.0, 3 * OFF.heartbeat_ttl, 60.0
"""Seconds: within every patience, longer than the TTL, and when everything has come of a fault."""

Kind = tuple[FaultLevel, str, str | None]
CARD = "Ascend910-0"
HARDWARE: dict[str, Kind] = {
    "L1": (FaultLevel.L1, "80E18401", CARD),
    "L2": (FaultLevel.L2, "80E18402", CARD),
    "L3": (FaultLevel.L3, "80E18403", CARD),
    "L4": (FaultLevel.L4, "80E18404", CARD),
    "L5": (FaultLevel.L5, "80E18405", CARD),
    "L6": (FaultLevel.L6, "80E18406", CARD),
    "unmapped": (FaultLevel.L5, "80E18407", "switch0"),
    "node": (FaultLevel.L6, "", ""),
    "transient": (FaultLevel.L2, "0x08520003", CARD),
    "link": (FaultLevel.L6, "81078603", CARD),
}
PODS = ((0, 1), (2, 3)), ((0, 1),), ((0, 1),), ((0, 1),)
ROLES = (Role.UNION, Role.DECODE, Role.PREFILL, Role.PREFILL)


def jobs() -> list[Job]:
    """Pods and their nodes are numbered through."""
    numbers = iter(range(1, 6))
    return [
        Job(f"job-{number}", role.value, tuple(next(numbers) for _ in pods), number)
        for number, (role, pods) in enumerate(zip(ROLES, PODS, strict=True))
    ]


class System:
    """The FaultManager of a world and the baseline beside it; each event happens to both."""

    def __init__(self, world: World, baseline: Baseline) -> None:
        self.world = world
        self.baseline = baseline
        self.adapter = FakeAdapter(world)
        self.started: Counter[tuple[str, str]] = Counter()

    def pods(self, job: Job) -> list[FakePod]:
        return [self.world.pod(number) for number in job.pods]

    def fault(self, job: Job, kind: str) -> HardwareFault:
        level, code, name = HARDWARE[kind]
        return card(None, job.pods[0], level=level, code=code, name=name)

    # --- events ---

    async def engine(self, job: Job, how: str) -> None:
        self.baseline.engine(job)
        pod = self.pods(job)[-1]
        rank = max(pod.engines)
        await (pod.exit(rank) if how == "exit" else pod.see(rank, {"U": U, "D": D}[how]))

    async def hardware(self, job: Job, kind: str, clears: bool) -> None:
        self.baseline.hardware(job, kind, clears=clears)
        await self.adapter.tell(self.fault(job, kind))
        if clears:
            await asyncio.sleep(SOON)
            await self.adapter.clear(self.fault(job, kind))

    async def cleared(self, job: Job, kind: str) -> None:
        self.baseline.cleared(job, kind)
        await self.adapter.clear(self.fault(job, kind))

    async def lost(self, job: Job) -> None:
        self.baseline.lost(job)
        pod = self.pods(job)[-1]
        await self.cut([pod])
        pod.boot()
        await pod.connect()

    async def away(self, job: Job) -> None:
        """Nobody can be reached, and everybody comes back as he was: nothing."""
        await self.cut(self.pods(job))
        for pod in self.pods(job):
            await pod.connect()

    async def cut(self, pods: list[FakePod]) -> None:
        for pod in pods:
            await pod.disconnect()
            pod.silent = True
        await asyncio.sleep(AWAY)
        for pod in pods:
            pod.silent = False

    async def endpoint(self, job: Job, abnormal: bool) -> None:
        job.abnormal = abnormal
        pod = self.pods(job)[0]
        pod.normal = {0: EndpointStatus.ABNORMAL} if abnormal else {}
        await pod.beat()

    async def beat(self, job: Job, ranks: frozenset[int]) -> None:
        """Accepted is the complete set, as every pod sends it all the time, and nothing else."""
        pod = self.pods(job)[0]
        if ranks != {endpoint.rank for endpoint in pod.registration.endpoints}:
            with pytest.raises(FtError, match=Reason.TOPOLOGY_MISMATCH):
                await pod.tell(Heartbeat(tuple(EndpointState(rank, EndpointStatus.NORMAL) for rank in sorted(ranks))))

    # --- what a history is made of ---

    async def restart(self) -> None:
        """SIGKILL of the Controller, and another one."""
        self.baseline.restarted()
        self.collect()
        await self.world.kill()
        await self.world.restart(connect=False)
        broken = [self.fault(job, kind) for job in self.baseline.jobs for kind in job.present]
        await self.adapter.connect(*broken)
        await self.world.connect()
        await asyncio.sleep(SETTLED)

    async def round(self, events: dict[int, tuple[str, Any]], *, coordinator_up: bool) -> None:
        up = self.world.coordinator.up
        if not coordinator_up:
            up.clear()
        happening = [getattr(self, name)(self.baseline.jobs[number], *rest) for number, (name, *rest) in events.items()]
        await asyncio.gather(*happening)
        await asyncio.sleep(SETTLED)
        if not coordinator_up:
            up.set()
            self.world.controller.publisher.kick()

    def collect(self) -> None:
        self.started.update(self.world.controller.launched)
        self.world.controller.launched.clear()

    def check(self) -> None:
        """No difference."""
        self.collect()
        world, baseline = self.world, self.baseline
        assert self.started == baseline.started
        assert self.views() == baseline.views
        numbers = {pod.address: number for job in baseline.jobs for number in job.pods for pod in [world.pod(number)]}
        told = Counter((method, numbers[address]) for method, address in world.calls())
        asked = {method for method, _ in told}
        assert asked <= {"stop", "restart", "ask"}, "no FT command"
        assert Counter({call: count for call, count in told.items() if call[0] != "ask"}) == baseline.commands
        for event, instance_id, ranks in world.coordinator.sent:
            assert ranks in (frozenset(), frozenset({0, 1}), frozenset({0, 1, 2, 3})), (event, instance_id, ranks)
        for number in numbers.values():
            assert [e for e in world.pod(number).rejected if e.reason is not Reason.STALE_INCARNATION] == []
            assert all(
                engine.applies == [] and engine.completions == 0 for engine in world.pod(number).engines.values()
            )

    def views(self) -> dict[str, str]:
        held = self.world.coordinator.held.values()
        assert len({view.job_name for view in held}) == len(held), "one instance of each job"
        return {view.job_name: "paused" if view.paused else "served" for view in held}


Event = tuple[Any, ...]
"""A method of ``System`` and what it takes after the job."""

FAULTS: list[Event] = [
    *(("engine", how) for how in ("U", "D", "exit")),
    *(("hardware", kind, clears) for kind in HARDWARE for clears in (True, False)),
    *(("cleared", kind) for kind in HARDWARE),
    *(("endpoint", abnormal) for abnormal in (True, False)),
    *(("beat", frozenset(ranks)) for ranks in ((), (0,), (0, 1), (0, 1, 2, 3))),
    ("lost",),
    ("away",),
]
Round = tuple[dict[int, Event], bool, bool]
"""What happens to jobs at the same time; whether Coordinators are up meanwhile, and the Controller ends then."""

EVERY_ONE: list[Round] = [(dict.fromkeys(both, fault), True, False) for fault in FAULTS for both in ((0, 1), (2, 3))]


def apart(events: dict[int, Event]) -> dict[int, Event]:
    """Which prefill instance gives way depends on all of them, so then nothing happens to them at the same time."""
    name, *rest = events.get(1, ("",))
    taking = name == "hardware" and rest[0] in GRAVE and not rest[1]
    return {job: event for job, event in events.items() if job < 2 or not taking}


EVENTS = st.dictionaries(st.integers(0, 3), st.sampled_from(FAULTS), min_size=1, max_size=3).map(apart)
ROUNDS = st.lists(st.tuples(EVENTS, st.booleans(), st.sampled_from([False, False, True])), min_size=2, max_size=8)


@pytest.mark.parametrize("switches", [OFF, ALL_OFF], ids=["no scale-down", "no fault tolerance"])
@settings(max_examples=5, phases=[Phase.explicit, Phase.generate])
@example(rounds=EVERY_ONE)
@given(rounds=ROUNDS)
async def test_no_history_tells_it_from_the_baseline(switches: Settings, rounds: list[Round]) -> None:
    """Strategies, commands, views and accepted heartbeats of four jobs; with Coordinators and Controllers that end."""
    registered = [
        replace(with_cards(registration(number, ranks, job=f"job-{index}", dp_size=sum(map(len, pods)))), role=role)
        for index, (role, pods) in enumerate(zip(ROLES, PODS, strict=True))
        for number, ranks in zip(jobs()[index].pods, pods, strict=True)
    ]
    async with World(*registered, settings=switches) as world:
        system = System(world, Baseline(jobs()))
        await system.adapter.connect()
        await world.connect()
        await world.until(lambda: system.views() == system.baseline.views)
        for events, coordinator_up, restart in rounds:
            await system.round(events, coordinator_up=coordinator_up)
            system.check()
            if restart:
                await system.restart()
                system.check()
