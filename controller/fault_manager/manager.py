"""The FaultManager: which instance a reporter belongs to, one actor for each, and the views of all of them."""

import asyncio
from collections.abc import Awaitable, Sequence

from controller.core import assembly
from controller.core.explain import Explanation, explain
from controller.core.phases import Phase
from controller.core.ports import Loaded, Order, Stored
from controller.core.records import IdentityRecord, RuntimeRecord
from controller.core.reports import AdapterHello, Hello, Report, SoftwareFault, Welcome
from controller.core.serving import ServingInstance
from controller.core.status import InstanceState, InstanceStatus
from controller.fault_manager.environment import Environment
from controller.fault_manager.hardware import AdapterAttachment, HardwareDesk
from controller.fault_manager.inputs import facts_of
from controller.fault_manager.instance import InstanceActor
from controller.fault_manager.intake import judged
from controller.fault_manager.orders import obey
from controller.fault_manager.pods import Send, Session
from controller.fault_manager.view import status_of
from motor_ft.model.command import OperatorCommand
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import Registration, Role
from motor_ft.wire.log import get_logger

log = get_logger(__name__)

RETRIES_SEC = (0.2, 0.5, 1.0, 2.0, 4.0)
"""Pauses before a store is asked again that failed right after the election."""
BEHIND_SEC = 5.0
"""How often to look whether an operator has raised the epoch above the fleet's."""

KEPT_REPLACED = 10_000
"""Incarnations of replaced pods that are remembered, so that a late one is turned away."""


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
        self._replaced: dict[str, str] = {}
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
        for instance_id, why in loaded.unreadable.items():
            log.error("stored instance cannot be read and is not served", instance_id=instance_id, error=why)
        for instance_id, identity in sorted(loaded.identities.items()):
            actor = self._new_actor(instance_id)
            actor.restore(
                identity,
                loaded.runtimes[instance_id],
                self._env.clock.now(),
                unreadable=loaded.unreadable.get(instance_id, ""),
            )
            self._places |= {_place(pod): actor for pod in actor.registrations}
        for actor in list(self._actors.values()):
            self._supersede(actor)  # the Controller ended before the older one was forgotten
        for actor in list(self._actors.values()):
            actor.start()
        self._begun_at = self._env.clock.now()
        self._leading = True
        log.info("leading", epoch=self._epoch, instances=len(self._actors))

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
        for instance_id in loaded.identities.keys() - loaded.runtimes.keys():
            identity = loaded.identities[instance_id].record
            loaded.identities[instance_id], loaded.runtimes[instance_id] = await self._rebuilt(identity)
        return loaded

    async def _rebuilt(self, identity: IdentityRecord) -> tuple[Stored[IdentityRecord], Stored[RuntimeRecord]]:
        """New records for an instance whose own cannot be read: all that is left to do is to reconfigure it.

        The epoch stands in for the lost generation: no NodeManager has seen it in an earlier term.
        """
        store, instance_id = self._env.store, identity.instance_id
        await store.remove(instance_id)
        stored = Stored(identity, await store.save_identity(identity, 0))
        record = RuntimeRecord(Phase.RECONFIGURING, self._epoch, tuple(range(identity.dp_size)))
        return stored, Stored(record, await store.save_runtime(instance_id, record, 0))

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

    # --- ports.Reports ---

    async def attach(self, hello: Hello, send: Send) -> PodAttachment:
        """Admit a NodeManager to its instance, or to the instance of its job that is being assembled."""
        assembly.check_registration(hello.registration)
        async with self._admission:  # two pods of one job must not open two instances
            self._check_leading()
            if self._replaced.get(hello.reporter_id) == hello.incarnation:
                raise _replaced(hello)
            await self._raise_epoch(hello)
            actor = self._instance_of(hello) or self._assembling(hello)
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
        """The instance that the pod was in, unless its pods were stopped and this one has started anew since."""
        actor = self._actors.get(hello.previous_instance_id or 0)
        pod = actor.pods.all.get(hello.reporter_id) if actor else None
        if actor is None or pod is None:
            return None
        if actor.life.lets_go(pod) and 0 < pod.incarnation_number < hello.incarnation_number:
            return None
        if actor.superseded:
            raise _replaced(hello)
        if actor.life.state is InstanceState.DELETED:
            return None
        if actor.assembled and _ranks(hello) != {(e.rank, e.headless) for e in pod.registration.endpoints}:
            raise FtError(
                Reason.TOPOLOGY_MISMATCH,
                f"pod {hello.reporter_id} comes back to instance {actor.instance_id} with other ranks; "
                "the topology of an instance is fixed",
            )
        return actor

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
            raise FtError(Reason.UNKNOWN_INSTANCE, f"there is no instance {instance_id} now", instance_id=instance_id)
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
        settled = bool(self._actors) or self._env.clock.now() >= self._begun_at + self._env.settings.heartbeat_ttl
        return settled and self.refusal() is None

    # --- life of actors ---

    def _new_actor(self, instance_id: int) -> InstanceActor:
        self._env.histories.open(instance_id)
        actor = InstanceActor(
            instance_id,
            self._env,
            lambda: self._epoch,
            desk=self._hardware,
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

    def _bury(self, actor: InstanceActor) -> None:
        actor.show()
        actor.hardware.leave()
        self._actors.pop(actor.instance_id, None)
        self._places = {place: other for place, other in self._places.items() if other is not actor}
        for uid, pod in actor.pods.all.items():
            if actor.superseded and not self._welcomed(uid):
                self._replaced[uid] = pod.incarnation
        while len(self._replaced) > KEPT_REPLACED:
            self._replaced.pop(next(iter(self._replaced)))
        self._env.observer.forget(actor.instance_id)
        self._env.publisher.update(actor.instance_id)
        self._env.histories.bury(actor.instance_id)


def _replaced(hello: Hello) -> FtError:
    text = f"the instance of pod {hello.reporter_id} was replaced by a newer one; restart the pod"
    return FtError(Reason.STALE_INCARNATION, text)


def _place(registration: Registration) -> tuple[str, int]:
    """Where its NodeManager is, as the route for single faults names it."""
    return registration.pod_ip, int(registration.node_manager_address.rpartition(":")[2])


def _ranks(hello: Hello) -> set[tuple[int, bool]]:
    return {(endpoint.rank, endpoint.headless) for endpoint in hello.registration.endpoints}
