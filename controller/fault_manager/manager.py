"""The FaultManager: which instance a reporter belongs to, one actor for each, and the views of all of them."""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence

from controller.core import assembly
from controller.core.explain import Explanation, explain
from controller.core.history import EventKind
from controller.core.phases import Phase
from controller.core.ports import Loaded, Order, Stored, Unreadable
from controller.core.records import IdentityRecord, RuntimeRecord
from controller.core.reports import AdapterHello, Hello, Report, SoftwareFault, Welcome
from controller.core.serving import ServingInstance
from controller.core.status import InstanceState, InstanceStatus
from controller.fault_manager.environment import Environment
from controller.fault_manager.graveyard import Grave, Graveyard, engines_of
from controller.fault_manager.hardware import AdapterAttachment, HardwareDesk
from controller.fault_manager.inputs import facts_of
from controller.fault_manager.instance import InstanceActor
from controller.fault_manager.intake import judged
from controller.fault_manager.orders import obey
from controller.fault_manager.pods import Send, Session
from controller.fault_manager.standstill import Standstill
from controller.fault_manager.view import status_of, unreadable
from motor_ft.model.command import Command, OperatorCommand
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import Registration, Role
from motor_ft.wire.log import get_logger
from motor_ft.wire.tasks import Tasks

log = get_logger(__name__)

RETRIES_SEC = (0.2, 0.5, 1.0, 2.0, 4.0)
"""Pauses before a store is asked again that failed right after the election."""
BEHIND_SEC = 5.0
"""How often to look whether an operator has raised the epoch above the fleet's."""


class PodAttachment:
    """``controller.core.ports.Attachment`` of one stream of one pod."""

    def __init__(self, actor: InstanceActor, uid: str, session: Session) -> None:
        self._actor = actor
        self._uid = uid
        self._session = session

    @property
    def welcome(self) -> Welcome:
        """What to answer to Hello."""
        return self._actor.welcome()

    async def deliver(self, sequence: int, report: Report) -> None:
        """Duplicates count as delivered; a stream that a newer one has replaced is refused."""
        if not self._actor.pods.current(self._uid, self._session):
            text = f"this stream of pod {self._uid} is over: a newer stream or a newer instance has taken over"
            raise FtError(Reason.STALE_INCARNATION, text)
        if sequence and sequence <= self._session.sequence:
            return
        self._session.sequence = max(self._session.sequence, sequence)
        self._actor.report(self._uid, report)

    def detach(self) -> None:
        """The stream has ended."""
        self._actor.pods.detach(self._uid, self._session)
        self._actor.wake()


class FaultManager:
    """``ports.Reports`` for reporters, ``ports.Operations`` for operators, ``ports.ServingViews`` for the publisher."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._epoch = 0
        self._actors: dict[int, InstanceActor] = {}
        self._hardware = HardwareDesk(env.observer)
        self._standstill = Standstill(env.clock, env.settings)
        self._tasks = Tasks("fault-manager")
        self._graves = Graveyard()
        self._places: dict[tuple[str, int], InstanceActor] = {}
        self._admission = asyncio.Lock()
        self._leading = False
        self._begun_at = 0.0
        self._behind: FtError | None = None
        self._draining = False
        self._closing = False

    @property
    def epoch(self) -> int:
        """Term of this Controller."""
        return self._epoch

    def refusal(self) -> FtError | None:
        """Why this Controller does not speak for the fleet now; None while it leads."""
        store = self._env.store
        if self._behind is not None:
            return FtError(self._behind.reason, self._behind.message, **self._behind.metadata)
        if not self._leading or not store.leads():
            leader = store.leader()
            text = f"this Controller does not lead; {leader or 'who does is not known'}; ask there, or later"
            return FtError(Reason.NOT_LEADER, text, leader=leader)
        if self._closing:
            return FtError(Reason.SHUTTING_DOWN, "this Controller is shutting down; connect again")
        return None

    async def start(self) -> None:
        """Begin a term and go on with every instance that is stored.

        While the epoch is behind the fleet's it waits for an operator to raise it.
        """
        loaded = await self._begun()
        self._tasks.spawn("standstill", self._standstill.watch())
        self._show_unreadable(loaded)
        for instance_id, identity in sorted(loaded.identities.items()):
            runtime = loaded.runtimes[instance_id]
            if gone_at := identity.record.gone_at:
                engines = engines_of(identity.record.pods)
                self._graves.dig(Grave(instance_id, runtime.record.generation, engines, gone_at))
                continue
            actor = self._new_actor(instance_id)
            unread = loaded.unreadable.get(instance_id)
            actor.restore(identity, runtime, self._env.clock.now(), unreadable=unread.why if unread else "")
            self._places |= {_place(pod): actor for pod in actor.registrations}
        for actor in list(self._actors.values()):
            self._supersede(actor)  # the Controller ended before the older one was forgotten
        for actor in list(self._actors.values()):
            actor.start()
        self._begun_at = self._env.clock.now()
        self._leading = True
        log.info("leading", epoch=self._epoch, instances=len(self._actors))
        await self._clear()

    def _show_unreadable(self, loaded: Loaded) -> None:
        """Where it is not known who an instance is, nothing of it is served, and its pods are stopped as they come."""
        self._env.observer.unreadable(len(loaded.unreadable.keys() - loaded.identities.keys()))
        for instance_id, unread in loaded.unreadable.items():
            log.error("stored instance cannot be read and is not served", instance_id=instance_id, error=unread.why)
            if instance_id in loaded.identities:
                continue
            runtime = loaded.runtimes.get(instance_id)
            generation = runtime.record.generation if runtime else self._epoch
            self._graves.dig(Grave(instance_id, generation, set()))
            self._env.histories.open(instance_id)
            self._env.histories.record_once(instance_id, EventKind.ALERT, unread.why)
            self._env.board.put(unreadable(instance_id, unread.why, self._env))

    async def _begun(self) -> Loaded:
        """A term is begun and everything read; a store that fails right after the election is asked again."""
        retries = iter(RETRIES_SEC)
        while True:
            try:
                loaded = await self._begin()
            except FtError as error:
                log.error("the term could not be begun", error=str(error))
                self._set_behind(error if error.reason is Reason.EPOCH_BEHIND_FLEET else None)
                pause_sec = BEHIND_SEC if self._behind else next(retries, None)
                if pause_sec is None:
                    raise
                await asyncio.sleep(pause_sec)
                if not self._env.store.leads():
                    raise
            else:
                self._set_behind(None)
                return loaded

    def _set_behind(self, behind: FtError | None) -> None:
        self._behind = behind
        self._env.observer.epoch_behind_fleet(behind is not None)

    async def _begin(self) -> Loaded:
        """Every identity has a runtime afterwards; what had no identity was never READY and is removed."""
        store = self._env.store
        self._epoch = await store.lead()
        loaded = await store.load()
        for instance_id in loaded.runtimes.keys() - loaded.identities.keys() - loaded.unreadable.keys():
            await store.remove(instance_id)
        for instance_id, identity in loaded.identities.items():
            ranks, runtime = tuple(range(identity.record.dp_size)), loaded.runtimes.get(instance_id)
            if runtime is not None and runtime.record.original_dp_ranks != ranks:
                why = f"runtime record is of ranks {runtime.record.original_dp_ranks}, the instance has {ranks}"
                loaded.unreadable[instance_id] = Unreadable(why, runtime.revision)
                runtime = None
            loaded.runtimes[instance_id] = runtime or await self._rebuilt(loaded, identity.record)
        return loaded

    async def _rebuilt(self, loaded: Loaded, identity: IdentityRecord) -> Stored[RuntimeRecord]:
        """A new record for an instance whose own cannot be read: all that is left to do is to reconfigure it.

        The epoch stands in for the lost generation: no NodeManager has seen it in an earlier term.
        """
        unread = loaded.unreadable.get(identity.instance_id)
        record = RuntimeRecord(Phase.RECONFIGURING, self._epoch, tuple(range(identity.dp_size)))
        expected = unread.revision if unread else 0
        return Stored(record, await self._env.store.save_runtime(identity.instance_id, record, expected))

    async def drain(self, timeout_sec: float) -> None:
        """Before another Controller takes over: decide nothing more, and give transactions so long to end."""
        self._draining = True
        drains = [asyncio.create_task(actor.recovery.drain(), name="drain") for actor in self._actors.values()]
        if drains:
            _, late = await asyncio.wait(drains, timeout=timeout_sec)
            for drain in late:
                drain.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def close(self) -> None:
        """End every actor; what they have stored goes on after the next start."""
        self._closing = True
        async with self._admission:  # who is being admitted is there by then
            for actor in list(self._actors.values()):
                await actor.close()
        await self._tasks.close()

    # --- ports.Reports ---

    async def attach(self, hello: Hello, send: Send) -> PodAttachment:
        """Admit a NodeManager to its instance, or to the instance of its job that is being assembled."""
        assembly.check_registration(hello.registration)
        async with self._admission:  # two pods of one job must not open two instances
            self._check_leading()
            await self._raise_epoch(hello)
            if (actor := self._instance_of(hello)) is None:
                self._lay(hello)
                actor = self._assembling(hello)
            if actor is None:
                actor = self._new_actor(await self._env.store.next_instance_id())
                actor.start()
            session = actor.admit(hello, send)
            self._places[_place(hello.registration)] = actor
        return PodAttachment(actor, hello.reporter_id, session)

    async def attach_adapter(self, hello: AdapterHello) -> AdapterAttachment:
        """Admit an adapter of hardware faults."""
        async with self._admission:
            self._check_leading()
            await self._raise_epoch(hello)
            return self._hardware.attach(hello, self._env.settings.welcome(self._epoch))

    def _check_leading(self) -> None:
        if (refusal := self.refusal()) is not None:
            raise refusal

    async def _raise_epoch(self, hello: Hello | AdapterHello) -> None:
        """A fleet that has seen this term from somebody else, or a later one: go above it."""
        seen = hello.highest_epoch
        if seen is None or seen < self._epoch or (seen == self._epoch and self._welcomed(hello.reporter_id)):
            return
        self._epoch = await self._env.store.lead(above=seen)
        log.warning("raised the epoch above the fleet's", epoch=self._epoch, seen=seen, reporter=hello.reporter_id)

    def _welcomed(self, uid: str) -> bool:
        """The reporter has heard our epoch from us."""
        return self._hardware.welcomed(uid) or any(actor.pods.welcomed(uid) for actor in self._actors.values())

    def _instance_of(self, hello: Hello) -> InstanceActor | None:
        """The instance that the pod was in, unless that has come to its end and the engines are others since."""
        actor = self._actors.get(hello.previous_instance_id or 0)
        pod = actor.pods.all.get(hello.reporter_id) if actor else None
        if actor is None or pod is None:
            return None
        anew = engines_of([pod.present]).isdisjoint(engines_of([hello.registration]))
        if anew and actor.life.lets_go(pod) and pod.incarnation_number < hello.incarnation_number:
            return None
        deleted = actor.life.state is InstanceState.DELETED
        if actor.superseded or (deleted and actor.ready):
            raise _gone(hello)
        if deleted:
            return None
        if actor.assembled and _ranks(hello) != {(e.rank, e.headless) for e in pod.registration.endpoints}:
            raise FtError(
                Reason.TOPOLOGY_MISMATCH,
                f"pod {hello.reporter_id} comes back to instance {actor.instance_id} with other ranks; "
                "the topology of an instance is fixed",
            )
        return actor

    def _lay(self, hello: Hello) -> None:
        """Refuse engines of an instance that is gone; the pod is stopped where its job needs it to start anew."""
        if (grave := self._graves.haunted(hello)) is None:
            return
        job = hello.registration.job_name
        if not any(actor.job_name == job and actor.lasts for actor in self._actors.values()):
            command = Command(grave.instance_id, self._env.new_id(), self._epoch, grave.generation + 1)
            self._env.recycle(hello.registration.node_manager_address, command)
        raise _gone(hello)

    def _assembling(self, hello: Hello) -> InstanceActor | None:
        """The instance of the job whose pods are still coming; a complete one takes no new pod."""
        for actor in self._actors.values():
            going = actor.life.state is InstanceState.DELETED
            if not actor.assembled and not going and actor.job_name == hello.registration.job_name:
                return actor
        return None

    async def report_software_fault(self, fault: SoftwareFault) -> None:
        """One fault of a registered pod's rank (RFC section 4.4); a pod that was rebuilt is in its newest instance."""
        place = (fault.pod_ip, fault.node_manager_port)
        actor = self._places.get(place) if fault.instance_id is None else self._actors.get(fault.instance_id)
        if actor is not None:
            for uid, pod in actor.pods.all.items():
                if _place(pod.registration) == place:
                    actor.report(uid, judged(fault.observation))
                    return
        raise FtError(
            Reason.UNKNOWN_INSTANCE,
            f"no instance has a pod at {fault.pod_ip}:{fault.node_manager_port}; it has to say Hello first",
        )

    def look_again(self) -> None:
        """Something that all instances need works again, or does no more."""
        for actor in self._actors.values():
            actor.wake()

    # --- ports.Operations ---

    def explain(self, instance_id: int) -> Explanation:
        """The decision that would be taken now; acts on nothing."""
        now = self._env.clock.now()
        return explain(facts_of(self._actor(instance_id), now), now)

    async def order(self, order: Order, command: OperatorCommand) -> InstanceStatus:
        """Carry out what an operator orders."""
        if (refusal := self.refusal()) is not None:
            raise refusal
        actor = self._actor(command.instance_id)
        await obey(actor, order, command)
        actor.show()
        return status_of(actor)

    def _actor(self, instance_id: int) -> InstanceActor:
        if (actor := self._actors.get(instance_id)) is None:
            text = f"there is no instance {instance_id} now; ListInstances shows which there are"
            raise FtError(Reason.UNKNOWN_INSTANCE, text, instance_id=instance_id)
        return actor

    # --- ports.ServingViews ---

    def view(self, instance_id: int) -> ServingInstance | None:
        """Projection of one instance now."""
        actor = self._actors.get(instance_id)
        return actor.projection() if actor else None

    def views(self) -> Sequence[ServingInstance]:
        """Projections of all instances now."""
        found = (actor.projection() for actor in self._actors.values())
        return [view for view in found if view is not None]

    def confirmed(self, instance_id: int, view: ServingInstance | None) -> None:
        """All Coordinators hold this view of the instance."""
        if actor := self._actors.get(instance_id):
            actor.confirmed(view)

    def may_publish(self) -> bool:
        """This Controller leads, and is not about to end.

        Nothing stored may mean that the store is lost: one TTL is left to the fleet to say that it has seen more,
        before an empty view takes from the Coordinators what still serves.
        """
        if self.refusal() is not None:
            return False
        since = max(self._begun_at, self._standstill.ended_at())
        return bool(self._actors) or self._env.clock.now() >= since + self._env.settings.heartbeat_ttl

    # --- life of actors ---

    def _new_actor(self, instance_id: int) -> InstanceActor:
        self._env.histories.open(instance_id)
        actor = InstanceActor(
            instance_id,
            self._env,
            lambda: self._epoch,
            desk=self._hardware,
            standstill=self._standstill,
            on_ready=self._supersede,
            on_gone=self._bury,
            spare_prefill=self._spare_prefill,
        )
        actor.recovery.draining = self._draining
        self._actors[instance_id] = actor
        return actor

    def _supersede(self, newer: InstanceActor) -> None:
        """READY of a newer instance of the job drops the older ones."""
        for actor in self._actors.values():
            if actor.job_name == newer.job_name and actor.instance_id < newer.instance_id:
                actor.supersede()

    def _spare_prefill(self, needy: InstanceActor) -> Awaitable[None] | None:
        """Free one prefill instance of the model, but never the last; one that gives way is counted no more."""
        serving = [
            actor
            for actor in self._actors.values()
            if actor.role is Role.PREFILL and actor.model_name == needy.model_name and actor.in_service and actor.well
        ]
        return serving[-1].give_way(needy.instance_id) if len(serving) > 1 and not needy.superseded else None

    async def _bury(self, actor: InstanceActor) -> None:
        actor.show()
        actor.hardware.leave()
        self._actors.pop(actor.instance_id, None)
        self._places = {place: other for place, other in self._places.items() if other is not actor}
        if actor.ready:
            wall, engines = self._env.clock.wall(), engines_of(actor.present)
            self._graves.dig(Grave(actor.instance_id, actor.generation, engines, wall))
        self._env.observer.forget(actor.instance_id)
        self._env.publisher.update(actor.instance_id)
        self._env.histories.bury(actor.instance_id)
        for address in sorted(_addresses([actor])):
            if address not in _addresses(self._actors.values()):  # asked each time: a pod may come back meanwhile
                await self._env.forget(address)
        await self._clear()

    async def _clear(self) -> None:
        """Instances that were gone for long, or are too many, are not remembered any more."""
        for instance_id in self._graves.overdue(self._env.clock.wall()):
            try:
                await self._env.store.remove(instance_id)
            except FtError as error:  # after the next one, or after the next start
                log.warning("a gone instance is still remembered", instance_id=instance_id, error=str(error))
                return
            self._graves.fill(instance_id)


def _addresses(actors: Iterable[InstanceActor]) -> set[str]:
    return {pod.node_manager_address for actor in actors for pod in actor.registrations}


def _gone(hello: Hello) -> FtError:
    text = f"the instance of pod {hello.reporter_id} is gone, or was replaced by a newer one; restart the pod"
    return FtError(Reason.STALE_INCARNATION, text)


def _place(registration: Registration) -> tuple[str, int]:
    """Where its NodeManager is, as the route for single faults names it."""
    return registration.pod_ip, int(registration.node_manager_address.rpartition(":")[2])


def _ranks(hello: Hello) -> set[tuple[int, bool]]:
    return {(endpoint.rank, endpoint.headless) for endpoint in hello.registration.endpoints}
