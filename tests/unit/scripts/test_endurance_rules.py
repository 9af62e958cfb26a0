"""The rules of ``scripts/soak``: each one fires on what breaks it, and only then."""

from __future__ import annotations

from typing import Any

import pytest

from motor_ft.v1 import controller_pb2 as pb
from scripts.endurance.incidents import Ending, Incident, ending
from scripts.endurance.report import Result
from scripts.endurance.rules import Orders, Views, defects, wrong_change

Json = dict[str, Any]


def push(at: float, rank: int, status: str) -> Json:
    """The engine shows this."""
    return {"at": at, "generation": 1, "rank": rank, "kind": "push", "detail": {"status": status}}


CHANGES = [
    push(0, 0, "healthy"),
    {"at": 1, "generation": 1, "rank": 1, "kind": "process", "detail": "core_exited"},
    push(1, 0, "unhealthy"),
    push(1, 2, "unhealthy"),
]


def apply(rank: int, removed: list[int], *, at: float = 2, name: str = "a") -> Json:
    """One order as it reached an engine."""
    body = {"instruction": "scale_down", "request_id": name, "params": {"removed_dp_ranks": removed}}
    return {"at": at, "generation": 1, "rank": rank, "incarnation": f"i{rank}", "body": body}


def test_a_scale_down_as_it_should_be_breaks_nothing() -> None:
    assert Orders().wrong([apply(0, [1]), apply(2, [1])], CHANGES) == []


@pytest.mark.parametrize(
    ("applies", "text"),
    [
        ([apply(0, [1]), apply(0, [1])], "told scale_down a twice"),
        ([apply(0, [1]), apply(2, [])], "for others"),
        ([apply(3, [1])], "while it was healthy"),
        ([apply(0, [1], at=0.5)], "while it was healthy"),
        ([apply(0, [0])], "remove itself"),
        ([apply(0, [2])], "nothing has ever been wrong with [2]"),
    ],
)
def test_an_order_that_must_not_be_is_told(applies: list[Json], text: str) -> None:
    """Also when it is seen later than the first one."""
    orders = Orders()
    wrong = [found for each in applies for found in orders.wrong([each], CHANGES)]
    assert any(text in each for each in wrong), wrong


def view(at: float, number: int, *ranks: int) -> Json:
    """One SET as the Coordinator got it."""
    endpoints = {"10.0.0.1": {str(rank): {"id": rank} for rank in ranks}}
    return {
        "at": at,
        "event": "set",
        "status": 200,
        "instances": [{"id": number, "job_name": "j", "endpoints": endpoints}],
    }


def test_a_view_with_a_removed_rank_is_told() -> None:
    """Whenever it comes, of the same instance only."""
    views = Views("j")
    assert views.wrong([view(1, 7, 0, 1)], []) == []
    assert views.wrong([view(3, 7, 0)], [apply(0, [1])]) == []
    assert views.wrong([view(4, 8, 0, 1)], []) == []
    (text,) = views.wrong([view(5, 7, 0, 1)], [])
    assert "instance 7 names [1]" in text


def instance(**fields: Any) -> pb.Instance:
    """Three ranks, one removed, serving."""
    shown = {"instance_id": 1, "generation": 3, "original_dp_ranks": [0, 1, 2], "dead_committed": [1]}
    shown |= {"alive_dp_ranks": [0, 2], "phase": pb.PHASE_SCALED_DOWN_RUNNING}
    return pb.Instance(**{**shown, "can_serve": True, "serving_published": True, **fields})


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (instance(generation=2), "falls from generation 3 to 2"),
        (instance(dead_committed=[], alive_dp_ranks=[0, 1, 2]), "ranks [1] were removed and are back"),
        (instance(alive_dp_ranks=[0]), "are alive of"),
        (instance(phase=pb.PHASE_SCALING_DOWN), "can serve in PHASE_SCALING_DOWN"),
        (instance(serving_published=False), "published: False"),
    ],
)
def test_a_status_that_must_not_be_shown_is_told(after: pb.Instance, text: str) -> None:
    (found,) = wrong_change(instance(), after)
    assert text in found


def test_a_status_that_may_follow_breaks_nothing() -> None:
    assert wrong_change(None, instance()) == []
    assert wrong_change(instance(), instance(generation=4, dead_committed=[1, 2], alive_dp_ranks=[0])) == []


def test_exceptions_in_logs_are_told() -> None:
    """An error without one is known to the daemon: a store that does not answer, a pod that cannot be stopped."""
    crash = '{"event":"task crashed","level":"error","exception":"Traceback (most …"}'
    log = ['{"event":"step not finished","level":"error"}', "READY", crash, "Traceback (most …"]
    crashed, traceback = defects(log)
    assert "task crashed" in crashed
    assert traceback.startswith("Traceback")


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        (instance(), Ending.UNHURT),
        (instance(generation=4), Ending.RECOVERED),
        (instance(generation=4, dead_committed=[1, 2]), Ending.SCALED_DOWN),
        (instance(instance_id=2, generation=1, dead_committed=[]), Ending.REBUILT),
    ],
)
def test_an_incident_is_named_by_what_it_left(after: pb.Instance, wanted: Ending) -> None:
    assert ending(instance(), after) is wanted


def result(**found: Any) -> Result:
    """A soak in which nothing went wrong."""
    incident = Incident("j", "worker killed", 0.0, 1.0, Ending.SCALED_DOWN)
    nothing: Json = {"incidents": [incident], "disturbances": {}, "answers": {}, "judgements": [], "broken": []}
    return Result(**{"seconds": 1.0, "cycles": 1, **nothing, **found})


def test_a_soak_passes_only_if_it_has_recovered_and_found_nothing() -> None:
    assert result().passed
    assert not result(cycles=0).passed
    assert not result(broken=["a rule"]).passed
    assert not result(incidents=[Incident("j", "worker killed", 0.0, 1.0, Ending.STUCK)]).passed
