"""The serving view is a pure projection: nothing that is sent ever names a dead rank (RFC section 3.2)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.phases import STABLE, Phase
from controller.core.records import IdentityRecord
from controller.core.serving import can_serve, project
from motor_ft.model.topology import Role
from tests.unit.controller.core.fleet import pod

IDENTITY = IdentityRecord(
    instance_id=7,
    job_name="job",
    model_name="model",
    engine_type="vllm",
    role=Role.DECODE,
    dp_size=4,
    tp_size=1,
    pods=(pod(1, [0, 1]), pod(2, [2, 3], headless=[0])),
    ready=True,
)


def test_the_whole_instance_is_published_while_nothing_is_gone() -> None:
    view = project(IDENTITY, Phase.NORMAL, (), withdrawn=False)
    assert view is not None
    assert [(p.ip, p.node_manager_port, p.endpoints) for p in view.pods] == [
        ("10.0.0.1", 9000, IDENTITY.pods[0].endpoints),
        ("10.0.0.2", 9000, IDENTITY.pods[1].endpoints),
    ]
    assert (view.instance_id, view.job_name, view.model_name, view.engine_type) == (7, "job", "model", "vllm")
    assert (view.role, view.dp_size, view.tp_size) == (Role.DECODE, 4, 1)


def test_a_committed_rank_vanishes_with_its_headless_endpoint_and_the_others_keep_their_numbers() -> None:
    view = project(IDENTITY, Phase.SCALED_DOWN_RUNNING, (0,), withdrawn=False)
    assert view is not None
    assert view.ranks() == {1, 2, 3}
    assert [[e.rank for e in p.endpoints] for p in view.pods] == [[1], [2, 3]]


def test_an_emptied_pod_vanishes() -> None:
    view = project(IDENTITY, Phase.SCALED_DOWN_RUNNING, (2, 3, 0), withdrawn=False)
    assert view is not None
    assert [p.ip for p in view.pods] == ["10.0.0.1"]


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.RECONFIGURING])
def test_a_phase_alone_withdraws_nothing(phase: Phase) -> None:
    """A SET in DECIDING changes nothing: only the withdrawal does."""
    assert project(IDENTITY, phase, (), withdrawn=False) == project(IDENTITY, Phase.NORMAL, (), withdrawn=False)


def test_nothing_is_published_when_withdrawn_reconfiguring_or_not_ready() -> None:
    assert project(IDENTITY, Phase.NORMAL, (), withdrawn=True) is None
    assert project(IDENTITY, Phase.RECONFIGURING, (), withdrawn=False) is None
    assert project(replace(IDENTITY, ready=False), Phase.NORMAL, (), withdrawn=False) is None


def test_a_pause_is_carried_by_the_view_and_changes_nothing_else_in_it() -> None:
    view = project(IDENTITY, Phase.NORMAL, (1,), withdrawn=False)
    assert view is not None
    paused = project(IDENTITY, Phase.NORMAL, (1,), withdrawn=False, paused=True)
    assert paused == replace(view, paused=True) != view


@given(st.sampled_from(Phase), st.frozensets(st.integers(0, 3)), st.booleans())
def test_no_view_names_a_dead_rank_or_misses_a_living_one(phase: Phase, dead: frozenset[int], withdrawn: bool) -> None:
    view = project(IDENTITY, phase, dead, withdrawn=withdrawn)
    assert view is None or view.ranks() == {0, 1, 2, 3} - dead


def test_topology_is_never_edited() -> None:
    before = IDENTITY.pods
    project(IDENTITY, Phase.SCALED_DOWN_RUNNING, (0, 1), withdrawn=False)
    assert IDENTITY.pods == before


@given(st.sampled_from(Phase), st.booleans())
def test_it_can_serve_only_in_a_stable_phase_and_published(phase: Phase, published: bool) -> None:
    assert can_serve(phase, serving_published=published) is (published and phase in STABLE)
