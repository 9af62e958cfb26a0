"""From a decision to at most one strategy, and from its end to what comes next (recovery.md section 4)."""

from dataclasses import replace
from typing import TYPE_CHECKING

from controller.core.changes import Change, of_decision, of_evidence
from controller.core.decision import PASSIVE, Action, Decision, Snapshot, decide, faults_of
from controller.core.errors import Failure, FailureCode
from controller.core.evidence import forget, is_news, strategy_ended
from controller.core.history import EventKind
from controller.core.outcome import Outcome
from controller.core.phases import STABLE, WINDOW, Phase, restored
from controller.core.ports import StrategyResult
from controller.fault_manager.idle_probe import IdleProbe
from controller.fault_manager.inputs import case_of, snapshot_of
from controller.fault_manager.intake import judged, learn
from controller.fault_manager.runner import Runner
from controller.fault_manager.runtime import FtRuntime
from motor_ft.model.engine import EvidenceSource
from motor_ft.wire.log import get_logger
from motor_ft.wire.tasks import Tasks

if TYPE_CHECKING:
    from controller.fault_manager.instance import InstanceActor

log = get_logger(__name__)

TRANSACTIONS = frozenset({Action.DP_SCALE_DOWN, Action.FAST_RECOVERY})
"""What a Controller that ends in the middle of it leaves to be rebuilt; the next one goes on with everything else."""

Deaths = dict[int, EvidenceSource | None]


class Recovery:
    """What was decided last for one instance, what runs, and what has to follow it."""

    def __init__(self, actor: "InstanceActor", tasks: Tasks) -> None:
        self._actor = actor
        self._runner = Runner(actor.instance_id, tasks, actor.wake)
        self._idle_probe = IdleProbe(actor, tasks)
        self.decision: Decision | None = None
        self.tried: frozenset[Action] = frozenset()
        self.fallback_due: Failure | None = None
        self.ordered: Failure | None = None
        self._makes_way = False
        self.paused = ""
        self.automation_stopped = False
        self.draining = False

    @property
    def strategy(self) -> str | None:
        """Name of the strategy that runs."""
        return self._runner.name

    @property
    def held(self) -> bool:
        """The instance may not be forgotten: something is done about it, or a person has to look at it."""
        return self.strategy is not None or bool(self.paused) or self.automation_stopped

    def deaths(self) -> Deaths:
        """Ranks that are D, with the strongest source."""
        evidence = self._actor.evidence
        return {rank: evidence.slot(rank).dead_source for rank in evidence.dead}

    def tell(self, before: Deaths) -> None:
        """What a report has changed since ``before``."""
        dead = self.deaths()
        for rank, source in dead.items():
            if source is not None and before.get(rank) is not source:
                self._runner.died(rank, source)
        if (back := sorted(before.keys() - dead.keys())) and self.strategy == Action.DP_SCALE_DOWN:
            self._runner.stop(f"ranks {back} are not DEAD any more")

    def stop(self, reason: str) -> None:
        """Ask what runs to end where that is still safe."""
        self._runner.stop(reason)

    async def drain(self) -> None:
        """Start nothing any more; return when no transaction runs, which ends early where that is still safe."""
        self.draining = True
        if self.strategy in TRANSACTIONS:
            self._runner.stop("this Controller hands over")
            await self._runner.ended()

    def reap(self, now: float) -> None:
        """A finished strategy is taken in before anything new is judged; raises NOT_LEADER."""
        if (ended := self._runner.reap()) is not None:
            self._take_in(*ended, now)

    def _take_in(self, name: str, result: StrategyResult, now: float) -> None:
        actor = self._actor
        actor.env.observer.strategy(name, result.outcome)
        why = f": {result.failure}" if result.failure else ""
        actor.note(
            Change(EventKind.STRATEGY, f"{name} {result.outcome}{why}", {"strategy": name, "outcome": result.outcome})
        )
        actor.evidence = strategy_ended(actor.evidence, now)
        known = actor.evidence
        for observation in result.learned:
            if is_news(actor.evidence, observation):
                learn(actor, judged(observation))
        actor.note(*of_evidence(known, actor.evidence))
        if result.outcome is Outcome.CANCELLED and self._makes_way:
            self.tried = frozenset(each for each in self.tried if each != name)
        if result.outcome is not Outcome.CANCELLED:
            actor.hardware.carried_out(faults_of(name, actor.hardware.correlation, actor.active) or ())
        if name == Action.PARTIAL_LOSS:
            actor.life.told(now, obeyed=result.outcome is Outcome.SUCCEEDED)
        if result.outcome is Outcome.SUCCEEDED:
            actor.evidence = forget(actor.evidence, result.removed, now)
        elif result.outcome is Outcome.FAILED:
            self._failed(name, result.failure)

    def _failed(self, name: str, failure: Failure | None) -> None:
        failure = failure or Failure(FailureCode.INTERRUPTED, f"strategy {name} ended without saying why")
        if self._actor.runtime is not None:
            self._actor.runtime.show(failure=failure)
        if name == Action.INSTANCE_RECONFIGURATION or failure.code is FailureCode.RECONFIGURATION_FAILED:
            self.stop_automation(failure)
        else:
            self.fallback_due = failure

    def stop_automation(self, failure: Failure) -> None:
        """A person has to act; nothing is started for this instance any more."""
        if self._actor.runtime is not None:
            self._actor.runtime.show(failure=failure)
        if self.automation_stopped:
            return
        self.automation_stopped = True
        instance_id = self._actor.instance_id
        self._actor.env.observer.automation_stopped(instance_id, True)
        log.error("automation stopped, a person has to act", instance_id=instance_id, failure=str(failure))

    def resume(self) -> None:
        """A person has acted: decisions are taken again, and what the last one said is over."""
        self.decision = None
        self.paused = ""
        self.automation_stopped = False
        self._actor.env.observer.automation_stopped(self._actor.instance_id, False)

    async def settle(self, runtime: FtRuntime) -> None:
        """A transaction that failed, or did not outlive its Controller, leaves its phase behind.

        One that had committed is published again, from the SCALED_DOWN_RUNNING write on.
        """
        if self.strategy is None and runtime.record.phase in WINDOW:
            phase = restored(runtime.record.phase)
            if phase is Phase.RECONFIGURING:
                runtime.show(withdrawn=True)  # on entry: nobody is routed to it from the moment that it is written
            await runtime.persist(phase)
            if phase in STABLE:
                runtime.show(withdrawn=False)
                self._actor.env.publisher.kick()

    def decide(self, runtime: FtRuntime, now: float) -> None:
        """Take the decision that is due, and start what it asks for."""
        if self.draining:
            return
        if (due := self.due) is not None:
            self.ordered = self.fallback_due = None
            self._reconfigure(runtime, due)
            return
        if self._actor.evidence.collecting_since is None:
            self.tried = frozenset()
        snapshot = snapshot_of(self._actor, now)
        decision = decide(snapshot, now)
        self._note(decision, snapshot)
        if decision.stop:
            self._runner.stop(decision.reason)
            self._makes_way = decision.action not in PASSIVE
        elif decision.action is Action.WAIT:
            self._idle_probe.look(now)
        elif decision.action is Action.INSTANCE_RECONFIGURATION:
            self._reconfigure(runtime, Failure(FailureCode.RECONFIGURATION_REQUIRED, decision.reason))
        elif decision.action not in PASSIVE:
            self._launch(decision.action, runtime, decision.reason)

    @property
    def due(self) -> Failure | None:
        """Why the instance is to be rebuilt now, whatever the evidence: an order, or a fallback that may start.

        A rebuild withdraws the instance before the store has answered. An order may be for one that serves, so it waits
        for a store that is known not to answer.
        """
        if self.strategy is not None or self._actor.superseded:
            return None
        ordered = None if self._actor.env.store_problem() else self.ordered
        held = self.automation_stopped or self.paused
        return ordered or (None if held else self.fallback_due)

    def _note(self, decision: Decision, snapshot: Snapshot) -> None:
        last, self.decision = self.decision, decision
        if last is not None and replace(decision, look_again=last.look_again) == last:
            return
        log.info(
            "decision",
            instance_id=self._actor.instance_id,
            action=str(decision.action),
            row=decision.row,
            reason=decision.reason,
            isolate=decision.isolate,
        )
        self._actor.env.observer.decision(decision.action)
        self._actor.note(of_decision(decision, snapshot))

    def _reconfigure(self, runtime: FtRuntime, failure: Failure) -> None:
        runtime.show(failure=failure)
        self._launch(Action.INSTANCE_RECONFIGURATION, runtime, str(failure))

    def _launch(self, action: Action, runtime: FtRuntime, reason: str) -> None:
        case = case_of(self._actor, runtime, reason)
        said = {"strategy": action, "request_id": case.spec.request_id, "generation": case.spec.generation}
        self._actor.note(Change(EventKind.STRATEGY, f"{action} starts: {reason}", said))
        self._runner.start(self._actor.env.strategies[action](case))
        self._makes_way = False
        self.tried |= {action}
