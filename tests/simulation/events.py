"""Makes the events of a scenario happen, and ends them when it is calm."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from controller.store.codec import gather
from tests.simulation.damage import damage
from tests.simulation.engines import Seat
from tests.simulation.loop import Process
from tests.simulation.network import KEEPALIVE_SEC, Weather
from tests.simulation.scenario import Event
from tests.support.engine.injections import inject

if TYPE_CHECKING:
    from tests.simulation.controllers import SimController
    from tests.simulation.pods import SimPod
    from tests.simulation.world import World

HARDWARE = {"card": "Ascend910-{rank}", "node": "", "odd": "??{rank}", "spare": "Ascend910-99"}
CODE = "80E01801"
"""Of a fault that nothing special is known of."""
TERMINATION_SEC = 30.0
"""What Kubernetes waits between SIGTERM and SIGKILL."""
STORM = Weather(delay_sec=0.2, jitter_sec=1.5, loss=0.15, double=0.1)


class Happenings:
    """``moment`` is called at every point of a recovery; events that wait for one are started there."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.happened: list[Event] = []
        self._waiting: dict[Event, int] = {}
        self._seen: Counter[str] = Counter()
        self._calm = False

    def start(self) -> None:
        """Set the clocks of all events."""
        for event in self.world.scenario.events:
            if event.after:
                self._later(event.at, partial(self._wait, event))
            else:
                self._later(event.at, partial(self._happen, event))

    def moment(self, name: str, who: str) -> None:
        """A recovery has come to this point."""
        for event, left in list(self._waiting.items()):
            if event.after == name:
                self._waiting[event] = left - 1
                if left == 1:
                    del self._waiting[event]
                    self._later(event.delay, partial(self._happen, event))

    def calm(self) -> None:
        """Nothing happens any more, and everything that was disturbed works again; what is dead stays dead."""
        world = self.world
        self._calm = True
        self._waiting.clear()
        world.trace("event", "calm", "")
        world.network.heal_all()
        world.vault.down = False
        world.adapter.clear()
        world.people.calm()
        for process in world.processes:
            if process.alive and process.frozen:
                world.loop.thaw(process)
        for machine in world.machines.values():
            machine.disk_broken, machine.disk_slow_sec = False, 0.0
        for host in world.coordinators:
            host.start()
        for fleet in world.fleets:
            for group in fleet.groups:
                group.idle = False
            for seat in fleet.seats.values():
                seat.deaf, seat.listening, seat.slow_sec = False, True, 0.0
                if seat.rank is not None:
                    seat.rank.thaw()
                    for name in seat.rank.armed.names():
                        seat.rank.armed.clear(name)
                    seat.rank.group.reconsider()
        world.oracle.engines.changed()

    def _wait(self, event: Event) -> None:
        if not self._calm:
            self._waiting[event] = event.nth

    def _later(self, delay: float, act: Callable[[], None]) -> None:
        self.world.loop.call_later(delay, act, context=self.world.outside)

    def _happen(self, event: Event) -> None:
        if self._calm:
            return
        self.world.trace("event", event.who, f"{event.kind} {event.value:g} {event.text}")
        self.happened.append(event)
        getattr(self, f"_{event.kind}")(event)
        self.world.oracle.engines.changed()

    # --- engines ---

    def _seat(self, event: Event) -> Seat | None:
        job, rank = map(int, event.who.split("/"))
        return self.world.fleets[job].seats.get(rank)

    def _inject(self, event: Event, name: str, **params: object) -> None:
        seat = self._seat(event)
        if seat is not None and seat.rank is not None:
            inject(seat.rank.group, seat.engine.rank, name, params)

    def _worker_kill(self, event: Event) -> None:
        self._inject(event, "worker_kill")

    def _engine_kill(self, event: Event) -> None:
        self._inject(event, "engine_kill")

    def _root_kill(self, event: Event) -> None:
        if (seat := self._seat(event)) is not None:
            self.world.fleets[int(event.who.split("/")[0])].end(seat.engine)

    def _step_exception(self, event: Event) -> None:
        self._inject(event, "step_exception")

    def _freeze(self, event: Event) -> None:
        self._inject(event, "freeze")

    def _unfreeze(self, event: Event) -> None:
        self._inject(event, "unfreeze")

    def _restart(self, event: Event) -> None:
        seat = self._seat(event)
        if seat is not None and seat.rank is not None and seat.engine.root.alive:
            self._inject(event, "restart")

    def _frontend_kill(self, event: Event) -> None:
        if (seat := self._seat(event)) is not None:
            seat.listening = False

    def _frontend_restore(self, event: Event) -> None:
        if (seat := self._seat(event)) is not None:
            seat.listening, seat.deaf, seat.slow_sec = True, False, 0.0

    def _deaf(self, event: Event) -> None:
        if (seat := self._seat(event)) is not None:
            seat.deaf = True

    def _slow(self, event: Event) -> None:
        if (seat := self._seat(event)) is not None:
            seat.slow_sec = event.value

    def _idle(self, event: Event) -> None:
        seat = self._seat(event)
        if seat is not None and seat.rank is not None:
            seat.rank.group.idle = bool(event.value)

    def _engine_trouble(self, event: Event) -> None:
        params: dict[str, object] = {"seconds": event.value, "times": 3}
        if event.text == "detection_delay":
            params = {"seconds": event.value * 5}
        self._inject(event, event.text, **params)

    def _says(self, event: Event) -> None:
        """So many of its next readings have this status."""
        self._inject(event, "unknown_status", value=event.text, times=int(event.value))

    # --- hardware ---

    def _hardware(self, event: Event) -> None:
        """So many faults, one when it is not said."""
        job, rank = map(int, event.who.split("/"))
        level, what, *known = event.text.split()
        code, raw = [*known, *(CODE, level)[len(known) :]]
        node, card = self.world.owner(job, rank).node, HARDWARE[what].format(rank=rank)
        for number in range(int(event.value) or 1):
            self.world.adapter.fault(node, card, level, f"{int(code, 16) + number:X}" if number else code, raw)

    def _hardware_cleared(self, event: Event) -> None:
        job, rank = map(int, event.who.split("/"))
        self.world.adapter.cleared(self.world.owner(job, rank).node)

    # --- people ---

    def _order(self, event: Event) -> None:
        self.world.people.order(int(event.who), event.text)

    def _strange(self, event: Event) -> None:
        self.world.people.strange(self.world.pod(*map(int, event.who.split("/"))), event.text)

    # --- processes ---

    def _adapter_restart(self, event: Event) -> None:
        self.world.adapter.kill()
        self._later(event.value, self.world.adapter.start)

    def _controller_kill(self, event: Event) -> None:
        controller = self.world.controllers[int(event.who)]
        self._after_steps(controller.process, int(event.value), controller.kill)

    def _node_kill(self, event: Event) -> None:
        pod = self.world.pod(*map(int, event.who.split("/")))
        self._after_steps(pod.process, int(event.value), pod.kill)

    def _after_steps(self, process: Process | None, steps: int, kill: Callable[[], None]) -> None:
        if process is None or not process.alive:
            return
        if steps == 0:
            kill()
        else:
            process.die_after(steps, kill)

    def _terminate(self, event: Event) -> None:
        """SIGTERM, and SIGKILL when that does not end it in time."""
        host = self._daemon(event.who)
        process = host.process
        host.terminate()
        self._later(TERMINATION_SEC, lambda: host.kill() if host.process is process else None)

    def _stop_process(self, event: Event) -> None:
        """SIGSTOP for a while."""
        process = self._process(event.who)
        if process is not None and process.alive:
            self.world.loop.freeze(process)
            stop = process.stops
            self._later(KEEPALIVE_SEC, lambda: self._unanswered(process, stop))
            self._later(event.value, lambda: self.world.loop.thaw(process) if process.frozen else None)

    def _unanswered(self, process: Process, stop: int) -> None:
        """Nobody answers the pings of its peers."""
        if process.frozen and process.stops == stop:
            self.world.fabric.reset(process)

    def _process(self, who: str) -> Process | None:
        return self._daemon(who).process

    def _daemon(self, who: str) -> "SimController | SimPod":
        kind, number = who.split()
        if kind == "controller":
            return self.world.controllers[int(number)]
        return self.world.pod(*map(int, number.split("/")))

    def _host(self, who: str) -> str:
        if who == "store":
            return who
        if who == "adapter":
            return self.world.adapter.machine.name
        kind, number = who.split()
        if kind == "controller":
            return self.world.controllers[int(number)].machine.name
        if kind == "coordinator":
            return self.world.coordinators[int(number)].machine.name
        return self.world.pod(*map(int, number.split("/"))).machine.name

    def _reboot(self, event: Event) -> None:
        self.world.pod(*map(int, event.who.split("/"))).reboot()

    def _clock(self, event: Event) -> None:
        """The wall clock jumps, and the machine of a NodeManager has slept."""
        machine = self.world.machines[self._host(event.who)]
        machine.wall_sec -= 10 * event.value
        if event.who.startswith("node"):
            machine.slept_sec += event.value

    def _disk_broken(self, event: Event) -> None:
        machine = self.world.pod(*map(int, event.who.split("/"))).machine
        machine.disk_broken = True

        def repair() -> None:
            machine.disk_broken = False

        self._later(event.value, repair)

    def _disk_slow(self, event: Event) -> None:
        """Until it is calm every write takes so long."""
        self.world.pod(*map(int, event.who.split("/"))).machine.disk_slow_sec = event.value

    # --- network, store, Coordinators ---

    def _ends(self, event: Event) -> tuple[str, str]:
        one, other = event.who.split(" - ")
        return self._host(one), self._host(other)

    def _cut(self, event: Event) -> None:
        one, other = self._ends(event)
        pairs = {"both": [(one, other), (other, one)], "there": [(one, other)], "back": [(other, one)]}[event.text]
        for pair in pairs:
            self.world.network.cut(*pair)
            self._later(event.value, partial(self.world.network.heal, *pair))

    def _storm(self, event: Event) -> None:
        one, other = self._ends(event)
        for pair in ((one, other), (other, one)):
            path = self.world.network.between(*pair)
            fair, path.weather = path.weather, STORM
            self._later(event.value, partial(setattr, path, "weather", fair))

    def _lag(self, event: Event) -> None:
        """Messages take so much longer, both ways, until it is calm."""
        one, other = self._ends(event)
        for pair in ((one, other), (other, one)):
            path = self.world.network.between(*pair)
            path.weather = replace(path.weather, delay_sec=event.value)

    def _reset(self, event: Event) -> None:
        self.world.network.break_calls(*self._ends(event))

    def _store_down(self, event: Event) -> None:
        self.world.vault.down = True

        def up() -> None:
            self.world.vault.down = False

        self._later(event.value, up)

    def _damage(self, event: Event) -> None:
        """Of the newest instance of a job, while no Controller runs."""
        facts = self.world.oracle.facts
        mine = [key for key in facts.identities if facts.job_of(key) == int(event.who)]
        for controller in self.world.controllers if mine else ():
            controller.kill()
        if mine:
            damage(self.world.vault.shelf, max(mine), event.text)
            self.world.oracle.records.damaged(max(mine), gather(self.world.vault.shelf.rows.values()))

    def _coordinator_restart(self, event: Event) -> None:
        self.world.coordinators[int(event.who)].restart(event.value)
