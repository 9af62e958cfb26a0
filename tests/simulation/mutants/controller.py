"""In the Controller: decisions, transactions, records and what is published."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import controller.core.gate
import controller.core.transaction as transaction
import controller.core.transaction.apply
import controller.core.transaction.prepare
import controller.core.transaction.state
import controller.fault_manager.inputs
import controller.fault_manager.instance
import controller.fault_manager.intake
import controller.fault_manager.manager
import controller.fault_manager.recovery
from controller.core import effects as fx
from controller.core.evidence import Evidence, on_death, on_fault, on_healthy
from controller.core.phases import Phase
from controller.core.reports import EngineFault, EngineHealthy, ProcessDeath
from controller.core.serving import project
from controller.core.topology import endpoint_ip
from controller.core.transaction import Step
from controller.core.verdict import Judgement, Verdict, judge_recovery
from controller.fault_manager.isolation import Isolation
from controller.fault_manager.manager import PodAttachment
from controller.strategies.transaction import TransactionStrategy
from motor_ft.model.engine import EngineObservation, EngineStatus, EvidenceSource
from tests.simulation.mutants.mutant import ADOPTED, CONFIG, DEATH, SECOND, Mutant, Patch, at, engine, scene
from tests.simulation.rpc import SimChannel
from tests.simulation.scenario import Config, Event, Job, Pod, Scenario

TABLE = transaction.TABLE
prepare, apply, state = (
    controller.core.transaction.prepare,
    controller.core.transaction.apply,
    controller.core.transaction.state,
)
intake, inputs, recovery = (
    controller.fault_manager.intake,
    controller.fault_manager.inputs,
    controller.fault_manager.recovery,
)


def _handler(patch: Patch, step: Step, event: type[fx.Event], wrap: Callable[[Any], Any]) -> None:
    """Replace one entry of the transaction's table."""
    patch.setitem(TABLE, step, TABLE[step] | {event: wrap(TABLE[step][event])})


def publish_before_commit(patch: Patch) -> None:
    """The survivors are healthy: so the instance is not withdrawn any more."""
    guard_all = state.guard_all
    patch.setattr(apply, "guard_all", lambda known: guard_all(replace(known, withdrawn=False)))


def try_again_after_a_failure(patch: Patch) -> None:
    """A transaction that failed after apply is followed by another one."""

    def failed(self: Any, name: str, failure: Any) -> None:
        self.fallback_due = None

    async def settle(self: Any, runtime: Any) -> None:
        if self.strategy is None and runtime.record.phase is Phase.SCALING_DOWN:
            await runtime.persist(Phase.RECONFIGURING)
            await runtime.persist(Phase.NORMAL)

    patch.setattr(recovery.Recovery, "_failed", failed)
    patch.setattr(recovery.Recovery, "settle", settle)


def count_a_mask_as_evidence(patch: Patch) -> None:
    """Whom an engine suspects is DEAD."""

    def masked(evidence: Evidence, fault: EngineFault, now: float) -> Evidence:
        evidence = on_fault(evidence, fault, now)
        for rank, suspected in enumerate(fault.observation.mask):
            if suspected:
                evidence = on_death(evidence, ProcessDeath(rank, "", 0, "suspected"), now)
        return evidence

    patch.setattr(intake, "on_fault", masked)


def forget_the_abort(patch: Patch) -> None:
    """A transaction that ends leaves its guards to their lease."""
    patch.setattr(state, "_abort", lambda known: state._after_abort(replace(known, wake_at=None)))  # noqa: SLF001


def a_crash_that_still_sends_abort(patch: Patch) -> None:
    """What runs on the way out of a killed Controller gets through."""
    execute = TransactionStrategy.execute

    async def cleaned_up(self: Any) -> Any:
        addresses = [pod.node_manager_address for pod in self._spec.pods]
        try:
            return await execute(self)
        except BaseException:
            for address in addresses:
                await self._nodes.finalize(address, self._command, commit=False, retired=())
            raise

    patch.setattr(TransactionStrategy, "execute", cleaned_up)
    patch.setattr(SimChannel, "_alive", lambda _: None)


def a_stale_healthy_cancels_a_process_exit(patch: Patch) -> None:
    """The engine said that it was healthy: so nothing has ended."""

    def forgetful(evidence: Evidence, healthy: EngineHealthy, now: float) -> Evidence:
        rank = healthy.observation.rank
        cleared = {**evidence.ranks, rank: replace(evidence.slot(rank), exited=False)}
        return on_healthy(replace(evidence, ranks=cleared), healthy, now)

    patch.setattr(intake, "on_healthy", forgetful)


def apply_while_routed(patch: Patch) -> None:
    """A withdrawal that was not confirmed is none."""
    _handler(
        patch,
        Step.WITHDRAWING,
        fx.Withdrawn,
        lambda handle: lambda known, event, now: handle(known, fx.Withdrawn(confirmed=True), now),
    )


def apply_without_all_guards(patch: Patch) -> None:
    """Who refused the guard is not asked again."""

    def deaf(handle: Any) -> Any:
        return lambda known, event, now: handle(known, replace(event, error=""), now)

    _handler(patch, Step.GUARDING, fx.Guarded, deaf)
    _handler(patch, Step.FREEZING, fx.Guarded, deaf)


def commit_what_is_unhealthy(patch: Patch) -> None:
    """U counts as recovered."""

    def generous(seen: EngineObservation, *rest: Any) -> Judgement:
        return Judgement(Verdict.GO) if seen.status is EngineStatus.UNHEALTHY else judge_recovery(seen, *rest)

    patch.setattr(apply, "judge_recovery", generous)


def forget_earlier_removals(patch: Patch) -> None:
    """The second round knows nothing of the first."""
    patch.setattr(transaction.Transaction, "cumulative", property(lambda self: tuple(sorted(self.removed))))


def the_first_rank_is_the_master(patch: Patch) -> None:
    """The store stays where it was, whoever is gone."""
    patch.setattr(apply, "endpoint_ip", lambda pods, _: endpoint_ip(pods, 0))


def do_not_ask_the_unreachable_again(patch: Patch) -> None:
    """A socket that was silent once is a dead rank for good."""
    patch.setattr(prepare, "_apply_ready", prepare._freeze)  # noqa: SLF001


def go_on_where_the_dead_controller_was(patch: Patch) -> None:
    """An interrupted transaction is as if it had not been."""
    patch.setattr(recovery, "restored", lambda _: Phase.NORMAL)


def forget_the_isolation(patch: Patch) -> None:
    """What another Controller has withdrawn is published until the hardware is heard of."""
    patch.setattr(Isolation, "restored", lambda *_: None)


def a_new_node_manager_is_a_new_pod(patch: Patch) -> None:
    """Whoever has started again since is not what was to be stopped."""
    patch.setattr(controller.fault_manager.manager, "engines_of", lambda _: frozenset())


def hardware_names_ranks_to_remove(patch: Patch) -> None:
    """What a hardware fault is mapped to goes as well."""
    spec_of = inputs._spec_of  # noqa: SLF001

    def mapped(actor: Any, runtime: Any) -> Any:
        spec = spec_of(actor, runtime)
        known = actor.hardware.correlation.concerns.values()
        named = {rank for each in known for rank in each.ranks or ()} & spec.active
        return replace(spec, candidates={**dict.fromkeys(named, EvidenceSource.PROCESS_EXIT), **spec.candidates})

    patch.setattr(inputs, "_spec_of", mapped)


def lose_deaths(patch: Patch) -> None:
    """Process exits are acknowledged, and that is all."""
    deliver = PodAttachment.deliver

    async def lossy(self: Any, sequence: int, report: Any) -> None:
        if not isinstance(report, ProcessDeath):
            await deliver(self, sequence, report)

    patch.setattr(PodAttachment, "deliver", lossy)


def no_fallback(patch: Patch) -> None:
    """A transaction that failed is followed by nothing."""

    def failed(self: Any, name: str, failure: Any) -> None:
        self._actor.runtime.show(failure=failure)

    patch.setattr(recovery.Recovery, "_failed", failed)


def a_lease_of_an_hour(patch: Patch) -> None:
    """Guards outlive their transaction by far."""
    patch.setattr(transaction.Limits, "lease", property(lambda _: 3600.0))


def command_what_is_only_read(patch: Patch) -> None:
    """The gate takes the word of a capability."""
    patch.setattr(controller.core.gate, "_CLOSED", frozenset())


def publish_what_is_rebuilt(patch: Patch) -> None:
    """RECONFIGURING is a phase as any other."""

    def careless(identity: Any, phase: Phase, dead: Any, *, paused: bool, **_: Any) -> Any:
        return project(identity, Phase.NORMAL, dead, withdrawn=False, paused=paused)

    patch.setattr(controller.fault_manager.instance, "project", careless)


def publish_the_removed(patch: Patch) -> None:
    """Every endpoint that there ever was."""
    patch.setattr(
        controller.fault_manager.instance,
        "project",
        lambda identity, phase, _, **rest: project(identity, phase, (), **rest),
    )


def command_with_the_feature_off(patch: Patch) -> None:
    """What an operator has switched off is on."""
    snapshot_of, spec_of = inputs.snapshot_of, inputs._spec_of  # noqa: SLF001
    patch.setattr(recovery, "snapshot_of", lambda *known: replace(snapshot_of(*known), scale_down_enabled=True))
    patch.setattr(inputs, "_spec_of", lambda *known: replace(spec_of(*known), scale_down_enabled=True))


MUTANTS = (
    Mutant(
        publish_before_commit,
        scene(DEATH, at("arrive Finalize", "cut", "controller 0 - node 0/1", 8.0, "both")),
        "nothing in the window",
    ),
    Mutant(
        try_again_after_a_failure,
        scene(*(engine(rank, "drop_after_202") for rank in (0, 2, 3)), DEATH),
        "no second attempt",
    ),
    Mutant(count_a_mask_as_evidence, scene(Event(10.0, "freeze", "0/1")), "only DEAD is removed"),
    Mutant(forget_the_abort, scene(engine(0, "apply_error"), DEATH), "every guard is ended"),
    Mutant(
        a_crash_that_still_sends_abort,
        scene(DEATH, at("answer Guard", "controller_kill", "0", 5.0)),
        "the dead are silent",
    ),
    Mutant(
        a_stale_healthy_cancels_a_process_exit,
        scene(Event(10.0, "engine_kill", "0/1"), Event(10.5, "reset", "controller 0 - node 0/0")),
        "nothing acknowledged is lost",
    ),
    Mutant(
        apply_while_routed,
        scene(DEATH, at("store DECIDING", "cut", "controller 0 - coordinator 0", 20.0, "both")),
        "withdrawn before apply",
    ),
    Mutant(
        apply_without_all_guards,
        scene(DEATH, at("store DECIDING", "disk_broken", "0/1", 20.0)),
        "guarded everywhere",
    ),
    Mutant(
        commit_what_is_unhealthy,
        scene(DEATH, config=Config(store_lease=4.0, probe="off")),
        "commit after recovery",
    ),
    Mutant(forget_earlier_removals, scene(DEATH, SECOND), "gone for good"),
    Mutant(the_first_rank_is_the_master, scene(DEATH, Event(10.0, "worker_kill", "0/0")), "master"),
    Mutant(
        do_not_ask_the_unreachable_again,
        scene(DEATH, Event(10.0, "frontend_kill", "0/2"), at("store DECIDING", "frontend_restore", "0/2")),
        "only DEAD is removed",
    ),
    Mutant(
        go_on_where_the_dead_controller_was,
        scene(DEATH, at("store DECIDING", "controller_kill", "0")),
        "nothing is replayed",
    ),
    Mutant(
        forget_the_isolation,
        scene(
            Event(10.0, "hardware", "0/2", text="L5 card"),
            Event(14.0, "controller_kill", "0"),
            config=Config(store_lease=4.0, ttl=8.0, scale_down=False),
        ),
        "withdrawn through a failover",
    ),
    Mutant(
        a_new_node_manager_is_a_new_pod,
        Scenario(
            0,
            (ADOPTED,),
            (Event(10.0, "hardware", "0/2", text="L5 odd"), at("arrive Stop", "node_kill", "0/1")),
            CONFIG,
            1,
            calm_at=60.0,
        ),
        "gone stays gone",
    ),
    Mutant(
        hardware_names_ranks_to_remove,
        scene(DEATH, Event(10.5, "hardware", "0/2", text="L5 card")),
        "only DEAD is removed",
    ),
    Mutant(lose_deaths, scene(Event(10.0, "engine_kill", "0/1")), "nothing acknowledged is lost"),
    Mutant(no_fallback, scene(engine(0, "apply_error"), DEATH), "every incident ends"),
    Mutant(a_lease_of_an_hour, scene(DEATH), "lease"),
    Mutant(command_what_is_only_read, scene(DEATH, job=Job(pods=(Pod((0, 1, 2)),), dialect="sglang")), "only read"),
    Mutant(publish_what_is_rebuilt, scene(engine(0, "apply_error"), DEATH), "withdrawn while rebuilt"),
    Mutant(publish_the_removed, scene(DEATH), "no dead rank"),
    Mutant(command_with_the_feature_off, scene(DEATH, config=Config(scale_down=False)), "feature off"),
)
