"""At most once for each request id and engine."""

from dataclasses import replace

import pytest

from motor_ft.model.command import Command, ScaleDownPlan, freeze_plan
from motor_ft.model.engine import ApplyOutcome, Instruction, RankOutcome
from motor_ft.model.errors import FieldError, FtError, Reason
from nodemanager.core.applies import (
    KEPT_RECORDS,
    ApplyOrder,
    Records,
    check_order,
    find,
    intend,
    lowest_survivor,
    settle,
)

COMMAND = Command(7, "a", 5, 3)
PLAN = freeze_plan(7, 3, frozenset({1}), {0: "e0", 2: "e2", 3: "e3"})
ORDER = ApplyOrder(Instruction.SCALE_DOWN, (2, 3), (1,), "10.0.0.1", 29600, PLAN.plan_hash)
NOBODY = freeze_plan(7, 3, frozenset(), {0: "e0", 2: "e2", 3: "e3"})
RETRY = ApplyOrder(Instruction.RETRY, (2, 3), plan_hash=NOBODY.plan_hash)


def test_an_intent_without_outcome_is_unknown() -> None:
    """What a restarted NodeManager answers: sent or perhaps sent."""
    record = find(intend((), COMMAND, ORDER), COMMAND, ORDER)
    assert record is not None
    assert [(outcome.rank, outcome.outcome) for outcome in record.answer()] == [
        (2, ApplyOutcome.UNKNOWN),
        (3, ApplyOutcome.UNKNOWN),
    ]


def test_outcomes_come_back_in_the_asked_order() -> None:
    outcomes = (RankOutcome(3, ApplyOutcome.REFUSED), RankOutcome(2, ApplyOutcome.ACCEPTED, observation=9))
    record = find(settle(intend((), COMMAND, ORDER), COMMAND, outcomes), COMMAND, ORDER)
    assert record is not None
    assert record.answer() == (outcomes[1], outcomes[0])


@pytest.mark.parametrize(
    "other",
    [
        replace(ORDER, ranks=(2,)),
        replace(ORDER, removed=(0, 1)),
        replace(ORDER, dp_master_ip="10.0.0.2"),
        replace(ORDER, dp_store_port=None),
        RETRY,
    ],
)
def test_the_same_id_with_another_payload_is_refused(other: ApplyOrder) -> None:
    with pytest.raises(FtError) as caught:
        find(intend((), COMMAND, ORDER), COMMAND, other)
    assert caught.value.reason is Reason.REQUEST_ID_REUSED


def test_records_are_bounded_and_the_newest_stay() -> None:
    records: Records = ()
    for number in range(KEPT_RECORDS + 5):
        records = intend(records, replace(COMMAND, request_id=str(number)), ORDER)
    assert [record.request_id for record in records] == [str(number) for number in range(5, KEPT_RECORDS + 5)]


def test_the_order_of_the_plan_is_accepted() -> None:
    check_order(ORDER, PLAN)
    check_order(RETRY, NOBODY)
    check_order(replace(ORDER, plan_hash=""), None)


@pytest.mark.parametrize(
    ("order", "plan"),
    [
        (replace(ORDER, removed=(1, 2), ranks=(3,)), PLAN),
        (replace(ORDER, ranks=(3, 4)), PLAN),
        (ORDER, NOBODY),
        (RETRY, PLAN),
        (replace(RETRY, ranks=(3, 4)), NOBODY),
    ],
)
def test_an_order_that_differs_from_the_plan_is_refused(order: ApplyOrder, plan: ScaleDownPlan) -> None:
    """A plan is for one instruction: under one that removes ranks nobody retries, and the other way round."""
    with pytest.raises(FtError) as caught:
        check_order(order, plan)
    assert caught.value.reason is Reason.PLAN_MISMATCH


@pytest.mark.parametrize(
    ("order", "field"),
    [
        (replace(ORDER, removed=()), "removed_dp_ranks"),
        (replace(ORDER, removed=(3, 1)), "removed_dp_ranks"),
        (replace(ORDER, removed=(2,)), "dp_ranks"),
        (replace(ORDER, dp_master_ip=""), "dp_master_ip"),
        (replace(RETRY, removed=(1,)), "instruction"),
        (replace(RETRY, dp_master_ip="10.0.0.1"), "instruction"),
        (replace(RETRY, dp_store_port=29600), "instruction"),
    ],
)
def test_a_malformed_order_names_its_field(order: ApplyOrder, field: str) -> None:
    with pytest.raises(FieldError) as caught:
        check_order(order, PLAN)
    assert list(caught.value.violations) == [field]


def test_a_retry_without_a_plan_does_not_say_which_engines_are_meant() -> None:
    with pytest.raises(FieldError) as caught:
        check_order(RETRY, None)
    assert list(caught.value.violations) == ["plan_hash"]


def test_the_lowest_survivor_comes_from_the_plan_or_from_what_is_not_removed() -> None:
    assert lowest_survivor(ORDER, PLAN, 4) == 0
    assert lowest_survivor(replace(ORDER, removed=(0, 1)), None, 4) == 2
