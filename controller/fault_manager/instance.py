"""The actor of one instance: what is reported → evidence → decision → at most one strategy (RFC section 4).

Reports change the actor's state at once and wake its one task; the task looks at everything that has come in since,
decides, and starts or reaps a strategy. It sleeps until the next report or the next time that a decision named.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from controller.core import assembly, changes
from controller.core.changes import Change
from controller.core.errors import Failure, FailureCode, defect
from controller.core.evidence import Evidence, as_baseline, last_exit, on_incarnation, recalled, relaunching
from controller.core.history import EventKind
from controller.core.liveness import heard_since, serving_complete
from controller.core.phases import INTERRUPTED, STABLE, Phase
from controller.core.ports import Stored
from controller.core.records import IdentityRecord, RuntimeRecord
from controller.core.reports import Directive, Hello, Report, Welcome
from controller.core.serving import ServingInstance, project
from controller.core.snapshot import Action
from controller.core.status import InstanceState
from controller.core.topology import with_engines
from controller.fault_manager.concerns import Concerns
from controller.fault_manager.environment import Environment
from controller.fault_manager.hardware import HardwareDesk
from controller.fault_manager.identity import StoredIdentity
from controller.fault_manager.intake import take
from controller.fault_manager.isolation import Isolation
from controller.fault_manager.life import Life
from controller.fault_manager.pods import Pods, Send, Session
from controller.fault_manager.recovery import Recovery
from controller.fault_manager.runtime import FtRuntime
from controller.fault_manager.standstill import Standstill
from controller.fault_manager.view import status_of
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import Registration, Role
from motor_ft.wire.log import get_logger
from motor_ft.wire.tasks import Tasks

log = get_logger(__name__)


class InstanceActor:
    """One instance, from the first Hello of its first pod until it is replaced, or its pods never came to serve."""

    def __init__(
        self,
        instance_id: int,
        env: Environment,
        epoch: Callable[[], int],
        *,
        desk: HardwareDesk,
        standstill: Standstill,
        on_ready: Callable[["InstanceActor"], None],
        on_gone: Callable[["InstanceActor"], Awaitable[None]],
        spare_prefill: Callable[["InstanceActor"], Awaitable[object] | None],
    ) -> None:
        self.instance_id = instance_id
        self.env = env
        self.epoch = epoch
        self._standstill = standstill
        self._awake_since = standstill.ended_at()
        self._on_ready = on_ready
        self._on_gone = on_gone
        self.spare_prefill = partial(spare_prefill, self)
        self.pods = Pods(quiet=env.settings.quiet)
        self._stored = StoredIdentity(env.store)
        self.runtime: FtRuntime | None = None
        self.evidence = Evidence()
        self.hardware = Concerns(desk, env.settings, self._hardware_changed)
        self.life = Life(self)
        self.isolation = Isolation(self)
        self.superseded = False
        self.replaced = asyncio.Event()
        self._tasks = Tasks(f"instance-{instance_id}")
        self.recovery = Recovery(self, self._tasks)
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._gone = False

    # --- what the registry and the streams call ---

    @property
    def job_name(self) -> str:
        """Job of its first pod."""
        return next((pod.registration.job_name for pod in self.pods.all.values()), "")

    @property
    def model_name(self) -> str:
        """Model of its first pod."""
        return next((pod.registration.model_name for pod in self.pods.all.values()), "")

    @property
    def identity(self) -> IdentityRecord | None:
        """Who the instance is, once all its pods have come; stored once it is READY."""
        return self._stored.record

    @property
    def role(self) -> Role:
        """Role of its first pod."""
        return next((pod.registration.role for pod in self.pods.all.values()), Role.UNION)

    @property
    def assembled(self) -> bool:
        """All pods have come and are ready; the topology is fixed from then on."""
        return self.identity is not None

    @property
    def ready(self) -> bool:
        """Every endpoint was normal once: a fact of the instance, stored, that outlives this process."""
        return self.identity is not None and self.identity.ready

    @property
    def registrations(self) -> tuple[Registration, ...]:
        """What its pods brought, with the addresses of their last Hello."""
        return tuple(pod.registration for pod in self.pods.all.values())

    @property
    def present(self) -> tuple[Registration, ...]:
        """The same, with the engines that they have now."""
        return tuple(pod.present for pod in self.pods.all.values())

    @property
    def phase(self) -> Phase:
        """The stored phase; NORMAL while the pods are still coming."""
        return self.runtime.record.phase if self.runtime else Phase.NORMAL

    @property
    def generation(self) -> int:
        """0 until the instance is assembled."""
        return self.runtime.record.generation if self.runtime else 0

    @property
    def committed(self) -> frozenset[int]:
        """Ranks that are gone for good."""
        return frozenset(self.runtime.record.dead_committed) if self.runtime else frozenset()

    @property
    def active(self) -> frozenset[int]:
        """Ranks that are not gone."""
        return frozenset(self.runtime.record.original_dp_ranks) - self.committed if self.runtime else frozenset()

    def restore(
        self, stored: Stored[IdentityRecord], runtime: Stored[RuntimeRecord], now: float, *, unreadable: str = ""
    ) -> None:
        """Go on after a restart of the Controller: apply is never replayed (RFC section 5)."""
        self._stored, identity = StoredIdentity(self.env.store, stored), stored.record
        self.pods = Pods(identity.pods, now, quiet=self.env.settings.quiet)
        self.runtime = self._runtime(runtime)
        endpoints = (endpoint for pod in identity.pods for endpoint in pod.endpoints)
        self.evidence = recalled((e for e in endpoints if e.rank in self.active), identity.baseline)
        self.hardware.restore(identity)
        self.recovery.paused = identity.paused
        self.hardware.follow(self.registrations)
        self.life.restored(now, isolated=identity.isolated, dissolved=identity.dissolved)
        self.isolation.restored(identity, now)
        phase = runtime.record.phase
        self.runtime.show(withdrawn=phase not in STABLE)
        if phase in INTERRUPTED or phase is Phase.RECONFIGURING:
            ended = f"the Controller ended in phase {phase}; nothing of it is replayed"
            text = f"cannot be read: {unreadable}" if unreadable else ended
            self.recovery.fallback_due = Failure(FailureCode.INTERRUPTED, text)
            self.runtime.show(failure=self.recovery.fallback_due)
        self.show()  # whoever asks right after the start sees every instance that is stored

    def _runtime(self, stored: Stored[RuntimeRecord]) -> FtRuntime:
        patience = self.env.settings.limits.request_timeout
        return FtRuntime(self.instance_id, stored, self.env.store, self.show, patience_sec=patience)

    def start(self) -> None:
        """Begin to run."""
        self._tasks.spawn("actor", self._run())

    async def close(self) -> None:
        """End the actor and its strategy; what was stored goes on after the next start."""
        await self._tasks.close()

    def admit(self, hello: Hello, send: Send) -> Session:
        """A pod says Hello."""
        if self.identity is None:
            self._admit_to_assembly(hello)
        session = self.pods.admit(hello, send, self.env.clock.now())
        self.env.connect(hello.registration.node_manager_address)
        if self.identity is not None:
            self.hardware.follow(self.registrations)
        self.wake()
        return session

    def _admit_to_assembly(self, hello: Hello) -> None:
        others = [pod for uid, pod in self.pods.all.items() if uid != hello.reporter_id]
        assembly.check_fits(hello.registration, [pod.registration for pod in others if pod.connected])
        for uid, pod in list(self.pods.all.items()):
            if uid != hello.reporter_id and not pod.connected:
                self.pods.drop(uid)

    def welcome(self) -> Welcome:
        """Answer to Hello."""
        return self.env.settings.welcome(self.epoch(), self.instance_id, self.generation)

    def report(self, uid: str, report: Report) -> None:
        """Take one report; raises FtError when it is refused."""
        known, before = self.evidence, self.recovery.deaths()
        take(self, uid, report)
        self.note(*changes.of_evidence(known, self.evidence))
        self.recovery.tell(before)
        self._correlate()
        self.wake()

    def _hardware_changed(self, happened: Iterator[Change]) -> None:
        self.note(*happened)
        self._correlate()
        self.wake()

    def _correlate(self) -> None:
        """At every change, with its time; after a restart all that is told until the pods are heard counts as one."""
        now = self._now()
        if self.runtime is not None and self.life.settled(now):
            unhealthy, dead = self.evidence.unhealthy & self.active, self.evidence.dead & self.active
            self.hardware.correlate(active=self.active, unhealthy=unhealthy, dead=dead, now=now)

    def relaunching(self, engines: Mapping[int, frozenset[str]]) -> None:
        """``ports.Engines``: all engines are about to be ended and started anew."""
        self.evidence = relaunching(self.evidence, engines)

    async def relaunched(self, engines: Mapping[int, str]) -> None:
        """``ports.Engines``: any other engine has been restarted behind our back, also for the next Controller."""
        now = self.env.clock.now()
        for rank, incarnation in engines.items():
            slot = self.evidence.slot(rank)
            if slot.status is not None or slot.incarnation not in ("", incarnation):
                text = f"the new engine of rank {rank}, {incarnation}, has failed or gone already: {slot.detail}"
                raise FtError(Reason.ENGINE_IDENTITY_MISMATCH, text)
            self.evidence = on_incarnation(self.evidence, rank, incarnation, now)
        self.evidence = replace(self.evidence, relaunching=False)
        for uid, pod in self.pods.all.items():
            self.pods.update(uid, replace(pod, registration=with_engines(pod.registration, engines)))
        await self._stored.change(
            lambda identity: replace(identity, pods=tuple(with_engines(pod, engines) for pod in identity.pods))
        )

    async def dissolve(self) -> Sequence[str]:
        """``Case.dissolve``: until the strategy has ended, what is stored is its own."""
        await self._stored.change(lambda identity: replace(identity, dissolved=True))
        self.isolation.settle()
        return self.life.dissolve(self.env.clock.now())

    def supersede(self) -> None:
        """A newer instance of the job is READY."""
        self.superseded = True
        self.replaced.set()
        self.recovery.stop("superseded by a newer instance of the job")
        self.env.publisher.kick()
        self.wake()

    @property
    def well(self) -> bool:
        """Every active rank serves, and no fault of it is known."""
        now, ttl = self.env.clock.now(), self.env.settings.heartbeat_ttl
        faulty = (self.evidence.unhealthy | self.evidence.dead) & self.active
        broken = self.hardware.correlation.unhandled(self.active)
        return not faulty and not broken and serving_complete(self.pods.all, self.active, now, ttl)

    @property
    def in_service(self) -> bool:
        """It serves, and nothing is being done about it."""
        idle = self.phase in STABLE and not self.recovery.held and self.recovery.due is None
        away = self.superseded or self.life.dissolved or self.isolation.held
        return self.life.state is InstanceState.ACTIVE and idle and not away

    @property
    def lasts(self) -> bool:
        """It is whole, and nothing has begun to end it."""
        ending = self.superseded or self.life.dissolved or self.life.state is InstanceState.DELETED
        return self.ready and not ending and self.phase is not Phase.RECONFIGURING

    def give_way(self, needy: int) -> Awaitable[None]:
        """Be rebuilt so that a decode instance gets the hardware; returns what to await until the pods have ended.

        Who waits no longer needs it no more: where it could not be begun by then, it is not begun.
        """
        freed = Failure(FailureCode.FREED_FOR_DECODE, f"decode instance {needy} needs its hardware")
        self.recovery.fallback_due = freed
        self.wake()
        return self._given_way(freed)

    async def _given_way(self, freed: Failure) -> None:
        try:
            await self.until(lambda: not any(pod.connected for pod in self.pods.all.values()))
        except asyncio.CancelledError:
            if self.recovery.fallback_due is freed:
                self.recovery.fallback_due = None
            raise

    def wake(self) -> None:
        """Something has changed that may ask for a decision."""
        self._wake.set()
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when a condition holds that a report, or what is shown, brings about."""
        while not condition():
            await self._changed.wait()

    def projection(self) -> ServingInstance | None:
        """What may be published now."""
        if self.identity is None or self.runtime is None:
            return None
        record = self.runtime.record
        withdrawn = self.runtime.volatile.withdrawn or self.superseded or self.isolation.held
        identity = replace(self.identity, pods=self.registrations)
        return project(identity, record.phase, record.dead_committed, withdrawn=withdrawn, paused=self.life.resting)

    def confirmed(self, view: ServingInstance | None) -> None:
        """All Coordinators hold this view."""
        if self.runtime is not None:
            held = view is not None and view == self.projection()
            self.runtime.published(held=held, paused=view is not None and view.paused)

    def show(self) -> None:
        """Put the present status on the board."""
        status, before = status_of(self), self.env.board.get(self.instance_id)
        if self.env.board.put(status):
            self._tell()
            self.note(*changes.of_status(before, status))
            self.env.observer.phase(self.instance_id, status.phase)
            self.env.observer.serving(self.instance_id, status.serving_published)
            self.env.observer.degraded(self.instance_id, len(status.degraded))
            was = before.degraded if before else ()
            if status.degraded and status.degraded != was:
                log.warning("degraded", instance_id=self.instance_id, what=status.degraded)
            elif was and not status.degraded:
                log.info("not degraded any more", instance_id=self.instance_id)

    def note(self, *happened: Change) -> None:
        """Put events into the history."""
        for kind, text, attributes in happened:
            self.env.histories.record(self.instance_id, kind, text, **attributes)

    def alert(self, text: str, **attributes: object) -> None:
        """Put something that a person should look at into the history, once."""
        self.env.histories.record_once(self.instance_id, EventKind.ALERT, text, **attributes)

    # --- the task ---

    async def _run(self) -> None:
        while not self._gone:
            self._wake.clear()
            try:
                look_again = await self._step()
            except FtError as error:  # the store: nothing was decided on what is not written, so look again later
                if error.reason is Reason.NOT_LEADER:
                    log.error("another Controller decides now", instance_id=self.instance_id, error=str(error))
                    return
                log.error("step not finished", instance_id=self.instance_id, error=str(error))
                look_again = self.env.clock.now() + self.env.settings.limits.poll_interval
            except Exception as error:  # a defect of ours: the actor stays, but nothing is left to its decisions
                log.exception("step crashed", instance_id=self.instance_id)
                self.recovery.stop_automation(defect("the instance's actor", error))
                look_again = self.env.clock.now() + self.env.settings.strategy_center_check_interval
            self.show()
            if not self._gone:
                await self._sleep_until(look_again)

    async def _sleep_until(self, look_again: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, look_again - self.env.clock.now())):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _now(self) -> float:
        """The time, before anything is judged by it.

        After a standstill everybody who could not be heard meanwhile has all its time again. What others count down by
        themselves went on: leases, and the timeouts of engines.
        """
        now = self.env.clock.now()
        if (awake_since := self._standstill.ended_at()) > self._awake_since:
            self._awake_since = awake_since
            self.pods.stood_still(now)
            self.life.stood_still(now)
            self.isolation.stood_still(now)
            self.hardware.stood_still(now)
        return now

    async def _step(self) -> float:
        """Everything that is due now; returns when to look again without a report."""
        now = self._now()
        if self.life.state is InstanceState.DELETED:  # what was to be stored was not
            await self._leave(self.life.ending)
            return now
        self.recovery.reap(now)
        if self.identity is None:
            self._assemble(now)
        if self.identity is not None and not self.identity.ready:
            await self._become_ready(self.identity)
        if self.runtime is not None and self.identity is not None:
            self.life.watch(now)
            await self.isolation.follow(now)
            await self.recovery.settle(self.runtime)
            if self.life.settled(now):
                self._correlate()
                self.recovery.decide(self.runtime, now)
            self._watch_closely()
        if why := self.life.over(now):
            await self._leave(why)
        return self._look_again(now)

    def _look_again(self, now: float) -> float:
        times = [now + self.env.settings.strategy_center_check_interval, self.isolation.doubted_until]
        times += self.life.times()
        if self.recovery.decision is not None and self.recovery.decision.look_again is not None:
            times.append(self.recovery.decision.look_again)
        return min(at for at in times if at > now)

    def _assemble(self, now: float) -> None:
        """Every rank has come, and everything that has come is ready: what fails from now on is a fault.

        What ended before that was replaced, if its pod has said since then that all is well.
        """
        ttl, pods = self.env.settings.heartbeat_ttl, self.pods.all
        if not assembly.complete(self.registrations) or not all(pod.well(now, ttl) for pod in pods.values()):
            return
        if not heard_since(pods, last_exit(self.evidence), now, ttl):
            return
        self.evidence = as_baseline(self.evidence, now)
        self.hardware.follow(self.registrations)
        self.hardware.settle()
        self._stored.record = self._present(assembly.identity(self.instance_id, self.registrations))

    def _present(self, identity: IdentityRecord) -> IdentityRecord:
        return replace(
            identity,
            baseline=tuple(sorted(self.evidence.ignored)),
            hardware_baseline=self.hardware.baseline,
            hardware_spent=self.hardware.spent,
            paused=self.recovery.paused,
            isolated=self.isolation.asked,
            dissolved=identity.dissolved if self.recovery.strategy == Action.PARTIAL_LOSS else self.life.dissolved,
        )

    async def _become_ready(self, identity: IdentityRecord) -> None:
        """READY is durable before anything is published or decided; earlier attempts may have been written."""
        store = self.env.store
        stored = await store.runtime(self.instance_id)
        if stored is None:
            record = RuntimeRecord(Phase.NORMAL, 1, tuple(range(identity.dp_size)))
            stored = Stored(record, await store.save_runtime(self.instance_id, record, 0))
        await self._stored.change(lambda identity: replace(identity, ready=True))
        self.runtime = self._runtime(stored)
        log.info("instance ready", instance_id=self.instance_id, job=identity.job_name, pods=len(identity.pods))
        self._on_ready(self)
        timeout = self.env.settings.limits.request_timeout
        self._tasks.spawn("publish", self.env.publisher.publish(self.instance_id, timeout))

    async def settle_identity(self) -> None:
        """For the next Controller too, a fault of the baseline that has cleared is new when it returns, and automation
        is paused or not."""
        if self.ready and self.identity is not None and self._present(self.identity) != self.identity:
            await self._stored.change(self._present)

    # --- pods ---

    def _watch_closely(self) -> None:
        """Have the pods read their engines ten times a second while the instance is under suspicion."""
        suspicious = self.life.judging or self.recovery.strategy is not None
        freeze = self.env.settings.fault_collection_timeout if suspicious else 0.0
        self.pods.direct(Directive(self.epoch(), fast_poll=suspicious, freeze_suicide_sec=freeze))

    async def _leave(self, why: str) -> None:
        """Forget everything. Nobody is admitted to a DELETED instance, also not while the store is at work."""
        self.life.state, self.life.ending = InstanceState.DELETED, why
        if self.ready:
            await self._stored.bury(self.present, self.env.clock.wall())
        else:
            await self.env.store.remove(self.instance_id)
        self._gone = True
        self.pods.close()
        await self._on_gone(self)
        log.info("instance gone", instance_id=self.instance_id, why=why)
        await self._tasks.close()
