"""Participants of a transaction: each pod gets exactly what is its own, and a topology with a hole is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.topology import Participant, TopologyError, endpoint_ip, resolve, with_engines
from motor_ft.model.topology import Registration
from tests.unit.controller.core.fleet import pod


def test_two_routable_and_one_headless_over_three_pods() -> None:
    """The headless endpoint of a rank that goes is retired in its own pod; that pod gets no status and no apply."""
    pods = [pod(1, [0]), pod(2, [1]), pod(3, [], headless=[1])]
    assert resolve(pods, frozenset({0, 1}), frozenset({1})) == (
        Participant("pod-1", "10.0.0.1:9000", survivors=(0,), removed=()),
        Participant("pod-2", "10.0.0.2:9000", survivors=(), removed=(1,)),
        Participant("pod-3", "10.0.0.3:9000", survivors=(), removed=(1,)),
    )


def test_a_headless_endpoint_of_a_survivor_is_guarded_only() -> None:
    headless = resolve([pod(1, [0, 1]), pod(2, [], headless=[0])], frozenset({0, 1}), frozenset({1}))[1]
    assert headless == Participant("pod-2", "10.0.0.2:9000", survivors=(), removed=())


def test_a_pod_whose_ranks_are_all_gone_takes_no_part() -> None:
    pods = [pod(1, [0, 1]), pod(2, [2, 3])]
    assert [p.pod_name for p in resolve(pods, frozenset({0, 1}), frozenset({1}))] == ["pod-1"]


def test_a_committed_rank_is_neither_a_survivor_nor_retired_twice() -> None:
    """Round 2 in a pod that has lost rank 1 before."""
    (only,) = resolve([pod(1, [0, 1, 2])], frozenset({0, 2}), frozenset({2}))
    assert (only.survivors, only.removed) == ((0,), (2,))


@pytest.mark.parametrize(
    ("pods", "text"),
    [
        ([pod(1, [0])], r"ranks \[1\] have no routable endpoint"),
        ([pod(1, [0]), pod(2, [], headless=[1])], r"ranks \[1\] have no routable endpoint"),
        ([], r"ranks \[0, 1\] have no routable endpoint"),
        ([pod(1, [0, 1]), pod(2, [1])], r"ranks \[1\] have no routable endpoint, or more"),
        ([pod(1, [0, 0, 1])], r"ranks \[0\] have no routable endpoint, or more"),
        ([pod(1, [0]), pod(2, [1], address="10.0.0.1:9000")], "'10.0.0.1:9000'.* used by several pods"),
        ([pod(1, [0, 1], address="")], r"addresses \[''\] are missing"),
    ],
)
def test_a_hole_in_the_topology_is_refused(pods: list[Registration], text: str) -> None:
    with pytest.raises(TopologyError, match=text):
        resolve(pods, frozenset({0, 1}), frozenset({1}))


def test_a_hole_that_only_concerns_gone_ranks_is_none() -> None:
    pods = [pod(1, [0, 1]), pod(2, [3], address=""), pod(3, [3])]
    assert len(resolve(pods, frozenset({0, 1}), frozenset({1}))) == 1


def test_the_address_of_a_rank_is_that_of_its_routable_endpoint() -> None:
    pods = [pod(1, [], headless=[1]), pod(2, [0, 1])]
    assert endpoint_ip(pods, 1) == "10.0.0.2"


@given(
    owners=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    doubles=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=4),
    gone=st.frozensets(st.integers(0, 5)),
    dead=st.frozensets(st.integers(0, 5)),
)
def test_survivors_are_asked_once_and_every_endpoint_of_a_removed_rank_is_retired(
    owners: list[int], doubles: list[tuple[int, int]], gone: frozenset[int], dead: frozenset[int]
) -> None:
    ranks = range(len(owners))
    active = frozenset(ranks) - gone
    removed = active & dead
    pods = [
        pod(number, [r for r in ranks if owners[r] == number], headless=[r for r, at in doubles if at == number])
        for number in range(1, 5)
    ]
    pods = [candidate for candidate in pods if candidate.endpoints]
    found = resolve(pods, active, removed)
    assert sorted(rank for p in found for rank in p.survivors) == sorted(active - removed)
    by_address = {p.address: p for p in found}
    for candidate in pods:
        own = {endpoint.rank for endpoint in candidate.endpoints}
        if own & active:
            assert by_address[candidate.node_manager_address].removed == tuple(sorted(own & removed))
        else:
            assert candidate.node_manager_address not in by_address


def test_other_engines_are_behind_the_routable_endpoints_that_are_named() -> None:
    renewed = with_engines(pod(1, [0, 1], headless=[2]), {1: "new", 2: "elsewhere"})
    assert [endpoint.incarnation for endpoint in renewed.endpoints] == ["", "new", ""]
    assert with_engines(pod(1, [0]), {}) == pod(1, [0])
