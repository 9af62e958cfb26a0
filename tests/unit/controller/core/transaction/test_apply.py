"""Apply once, and poll until every survivor has recovered (recovery.md section 5, steps 8 and 9)."""

from dataclasses import replace

import pytest

from controller.core import effects as fx
from controller.core.errors import FailureCode
from controller.core.phases import Phase
from controller.core.transaction import Outcome, Step
from motor_ft.model.engine import ApplyOutcome, EngineStatus, EvidenceSource, FtState, Instruction, RankOutcome
from tests.unit.controller.core.fleet import pod, read, unread
from tests.unit.controller.core.transaction.world import POD_1, POD_2, START, Run, spec

HEALTHY, UNHEALTHY, DEAD, DIAGNOSING, UNKNOWN = EngineStatus
ACCEPTED = ApplyOutcome.ACCEPTED

# --- apply ---


def test_every_survivor_group_gets_the_same_order_once_and_at_once() -> None:
    run = Run(spec()).to(Step.APPLYING)
    first, second = run.take(fx.Apply)
    assert (first.address, first.order.ranks) == (POD_1, (0,))
    assert (second.address, second.order.ranks) == (POD_2, (2, 3))
    assert replace(first.order, ranks=()) == replace(second.order, ranks=())
    assert first.order.instruction is Instruction.SCALE_DOWN
    assert first.order.removed == (1,)


@pytest.mark.parametrize(("dead", "master"), [(1, "10.0.0.1"), (0, "10.0.0.2")], ids=["rank 0 stays", "rank 0 goes"])
def test_the_lowest_survivor_is_the_master_and_its_node_manager_names_the_port(dead: int, master: str) -> None:
    """Nothing is renumbered when rank 0 dies."""
    run = Run(spec({dead: EvidenceSource.PROCESS_EXIT}, pods=(pod(1, [0]), pod(2, [1]), pod(3, [2]))))
    run.ends(Outcome.SUCCEEDED)
    for effect in run.of(fx.Apply):
        assert (effect.order.dp_master_ip, effect.order.dp_store_port) == (master, 29600)


def test_the_master_moves_again_in_round_two() -> None:
    """Rank 0 is gone, then rank 1: derived from all that is gone, not from rank 0."""
    start = spec(
        {1: EvidenceSource.PROCESS_EXIT},
        pods=(pod(1, [0]), pod(2, [1]), pod(3, [2])),
        dead_committed=[0],
        previous_phase=Phase.SCALED_DOWN_RUNNING,
    )
    run = Run(start)
    run.ends(Outcome.SUCCEEDED)
    (apply,) = run.of(fx.Apply)
    assert (apply.order.dp_master_ip, apply.order.removed, apply.order.ranks) == ("10.0.0.3", (0, 1), (2,))


def test_without_a_reserved_port_every_node_manager_computes_it() -> None:
    run = Run(spec()).to(Step.FREEZING)
    for guard in run.take(fx.Guard):
        answer = run.good(guard, run.now)
        assert isinstance(answer, fx.Guarded)
        assert answer.grant is not None
        run.feed(replace(answer, grant=replace(answer.grant, dp_store_port=None)))
    run.to(Step.APPLYING)
    assert [effect.order.dp_store_port for effect in run.take(fx.Apply)] == [None, None]


@pytest.mark.parametrize("outcome", [outcome for outcome in ApplyOutcome if outcome is not ACCEPTED])
def test_anything_but_accepted_from_every_rank_ends_it_without_a_second_apply(outcome: ApplyOutcome) -> None:
    run = Run(spec()).to(Step.APPLYING)
    first, second = run.take(fx.Apply)
    run.feed(fx.Applied(second.address, (RankOutcome(2, ACCEPTED), RankOutcome(3, outcome, "why"))))
    assert run.at(Step.APPLYING)
    run.reply(first)
    run.fails(FailureCode.APPLY_NOT_ACCEPTED, f"not accepted by ranks [3]: rank 3 {outcome}: why")
    assert run.of(fx.Finalize) == [fx.Finalize(POD_1, commit=False), fx.Finalize(POD_2, commit=False)]


def test_an_ambiguous_apply_is_never_sent_again() -> None:
    """Sent, reply lost: what became of it is not known (pitfall 7)."""
    run = Run(spec()).to(Step.APPLYING)
    first, second = run.take(fx.Apply)
    run.drop(first)
    run.reply(second)
    run.fails(FailureCode.APPLY_NOT_ACCEPTED, f"not accepted by ranks [0]: {POD_1}: OUTCOME_UNKNOWN")


def test_an_answer_without_one_of_its_ranks_is_no_acceptance() -> None:
    run = Run(spec()).to(Step.APPLYING)
    first, second = run.take(fx.Apply)
    run.reply(first)
    run.feed(fx.Applied(second.address, (RankOutcome(2, ACCEPTED),)))
    run.fails(FailureCode.APPLY_NOT_ACCEPTED, "not accepted by ranks [3]")


def test_a_survivor_that_dies_while_apply_is_under_way_ends_it_once_all_have_answered() -> None:
    run = Run(spec()).to(Step.APPLYING)
    run.die(2)
    run.fails(FailureCode.ENGINE_FAILED, "rank 2 died (process_exit) after the plan was frozen")
    assert run.never(fx.Publish)


# --- poll ---


def polling() -> Run:
    """Every survivor has accepted and hangs; its first reading is on the way."""
    return Run(spec()).hang().to(Step.POLLING)


def test_survivors_are_read_at_once_and_then_every_poll_interval() -> None:
    run = polling()
    assert run.take(fx.Query) == [fx.Query(POD_1, (0,)), fx.Query(POD_2, (2, 3))]
    assert run.state.wake_at == START + 1


def test_a_node_manager_that_owes_an_answer_is_not_asked_again() -> None:
    run = polling()
    first, second = run.take(fx.Query)
    run.reply(first)
    run.tick()
    assert run.take(fx.Query) == [fx.Query(POD_1, (0,))]
    run.tick()
    assert run.take(fx.Query) == []
    run.reply(second)
    run.tick()
    assert run.take(fx.Query) == [fx.Query(POD_2, (2, 3))]


def test_a_stale_healthy_is_not_success() -> None:
    """Read before the 202: the same bare healthy as after a success (pitfall 1)."""
    run = polling()
    run.take(fx.Query)
    for rank in (0, 2, 3):
        run.feed(fx.Pushed(read(rank, HEALTHY, observation=run.state.accepted[rank].observation)))
    assert run.at(Step.POLLING)
    for rank in (0, 2, 3):
        assert run.at(Step.POLLING)
        run.feed(fx.Pushed(read(rank, HEALTHY, observation=run.state.accepted[rank].observation + 1)))
    assert run.at(Step.RENEWING)


def test_recovering_missed_between_polls_does_not_matter() -> None:
    run = polling()
    for rank in (0, 2, 3):
        run.reading(rank, HEALTHY)
    run.ends(Outcome.SUCCEEDED)


def test_unhealthy_and_recovering_keep_polling_and_a_push_ends_it_without_a_poll() -> None:
    run = polling()
    run.reading(0, UNHEALTHY, FtState.RECOVERING, "request-1")
    for _ in range(6):
        run.answer(run.owed[0]) if run.owed else run.tick()
    for rank in (0, 2, 3):
        run.reading(rank, HEALTHY)
        run.push(rank)
    assert run.at(Step.RENEWING)


def test_a_late_answer_never_undoes_a_later_reading() -> None:
    """The push overtook the poll that had started before it."""
    run = polling()
    older = [run.good(query, run.now) for query in run.take(fx.Query)]
    for rank in (0, 2):
        run.reading(rank, HEALTHY)
        run.push(rank)
    for answer in older:
        run.feed(answer)
    run.reading(3, HEALTHY)
    run.push(3)
    assert run.at(Step.RENEWING)


def test_a_stale_failed_of_an_earlier_id_is_ignored() -> None:
    run = polling()
    run.reading(2, UNHEALTHY, FtState.FAILED, "an earlier request")
    for _ in range(6):
        run.answer(run.owed[0]) if run.owed else run.tick()
    for rank in (0, 2, 3):
        run.reading(rank, HEALTHY)
    run.ends(Outcome.SUCCEEDED)


@pytest.mark.parametrize(
    ("status", "ft_state", "text"),
    [
        (UNHEALTHY, FtState.FAILED, "rank 2 failed"),
        (DEAD, FtState.NONE, "rank 2 is dead"),
        (UNKNOWN, FtState.NONE, "rank 2 could not be read"),
    ],
)
@pytest.mark.parametrize("by_push", [True, False])
def test_failed_with_our_id_dead_or_unreadable_ends_it(
    status: EngineStatus, ft_state: FtState, text: str, by_push: bool
) -> None:
    run = polling()
    run.reading(2, status, ft_state, "request-1")
    if by_push:
        run.push(2)
    run.fails(FailureCode.ENGINE_FAILED, text)
    assert all(not effect.commit for effect in run.of(fx.Finalize))


def test_a_reading_that_never_reached_the_engine_ends_it_although_it_has_no_counter() -> None:
    run = polling()
    run.feed(fx.Pushed(unread(2)))
    run.fails(FailureCode.ENGINE_FAILED, "rank 2 could not be read")


def test_an_engine_restarted_behind_our_back_ends_it_although_its_counter_starts_anew() -> None:
    run = polling()
    while run.owed:
        run.answer(run.owed[0])
    run.feed(fx.Pushed(read(2, HEALTHY, observation=1, incarnation="restarted")))
    run.fails(FailureCode.ENGINE_FAILED, "rank 2 is another engine now (restarted)")


def test_a_query_error_ends_it() -> None:
    run = polling()
    run.drop(run.take(fx.Query)[0])
    run.fails(FailureCode.ENGINE_FAILED, f"{POD_1}: no answer")


@pytest.mark.parametrize("source", EvidenceSource)
def test_a_survivor_that_dies_after_apply_ends_it_at_once(source: EvidenceSource) -> None:
    run = polling()
    run.die(2, source)
    assert run.at(Step.ABORTING)
    run.fails(FailureCode.ENGINE_FAILED, f"rank 2 died ({source}) after apply")


def test_a_removed_rank_that_dies_or_speaks_again_changes_nothing() -> None:
    run = polling()
    run.die(1)
    run.feed(fx.Pushed(read(1, HEALTHY, observation=99)))
    assert run.at(Step.POLLING)
    for rank in (0, 2, 3):
        run.reading(rank, HEALTHY)
    run.ends(Outcome.SUCCEEDED)


def test_at_exactly_the_execution_deadline_after_the_last_acceptance_it_is_over() -> None:
    run = Run(spec()).hang().to(Step.APPLYING)
    first, second = run.take(fx.Apply)
    run.reply(first)
    run.now += 4
    run.reply(second)
    run.fails(FailureCode.RECOVERY_TIMEOUT, "rank 0 is unhealthy; rank 2 is unhealthy; rank 3 is unhealthy")
    assert run.now == START + 4 + 30


def test_the_last_poll_before_the_deadline_still_counts() -> None:
    run = polling()
    while run.now < START + 29:
        run.answer(run.owed[0]) if run.owed else run.tick()
    for rank in (0, 2, 3):
        run.reading(rank, HEALTHY)
    run.ends(Outcome.SUCCEEDED)


def test_silent_node_managers_do_not_keep_it_beyond_the_deadline() -> None:
    run = polling()
    run.take(fx.Query)
    while run.at(Step.POLLING):
        run.tick()
    assert run.now == START + 30
    run.fails(FailureCode.RECOVERY_TIMEOUT, "not read yet")
