"""Who speaks, whose heartbeat is believed, and what that makes of the instance (recovery.md sections 4 and 8)."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.liveness import (
    PodLiveness,
    Service,
    check_heartbeat,
    heard_since,
    instance_state,
    needed,
    serving_complete,
)
from controller.core.reports import EndpointState
from controller.core.status import InstanceState
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.topology import Endpoint, EndpointStatus
from tests.unit.controller.core.fleet import pod

NORMAL, ABNORMAL = EndpointStatus.NORMAL, EndpointStatus.ABNORMAL
TTL = 10.0


def states(*ranks: int, headless: tuple[int, ...] = ()) -> tuple[EndpointState, ...]:
    return (
        *(EndpointState(rank, NORMAL) for rank in ranks),
        *(EndpointState(rank, NORMAL, headless=True) for rank in headless),
    )


def test_a_pod_is_silent_at_exactly_the_ttl_and_when_it_never_spoke() -> None:
    never = PodLiveness(pod(1, [0]))
    heard = never.heard(states(0), 100.0)
    assert never.silent(0.0, TTL)
    assert not heard.silent(109.9, TTL)
    assert heard.silent(110.0, TTL)


def test_who_has_only_said_hello_is_there_but_tells_nothing_yet() -> None:
    hello = replace(PodLiveness(pod(1, [0])), there_at=100.0)
    assert not hello.gone(109.9, TTL)
    assert hello.gone(110.0, TTL)
    assert hello.silent(100.0, TTL)
    heard = hello.heard(states(0), 105.0)
    assert not heard.gone(114.9, TTL)
    assert PodLiveness(pod(1, [0])).gone(0.0, TTL)


def test_a_pod_is_needed_while_an_endpoint_of_it_has_an_active_rank_headless_or_not() -> None:
    pods = {"1": PodLiveness(pod(1, [0])), "2": PodLiveness(pod(2, [1])), "3": PodLiveness(pod(3, [], headless=[1]))}
    one, two, three = pods.values()
    assert needed(pods, frozenset({0, 1})) == [one, two, three]
    assert needed(pods, frozenset({0})) == [one]
    assert needed(pods, frozenset({1})) == [two, three]


def test_a_heartbeat_replaces_what_was_known_of_the_endpoints() -> None:
    heard = PodLiveness(pod(1, [0, 1])).heard(states(0, 1), 100.0).heard(states(1), 101.0)
    assert heard.serving() == {1}
    assert heard.last_heard == 101.0


def test_a_pod_has_the_engines_that_it_has_named_and_any_while_it_has_named_none() -> None:
    """A headless process of a rank has an incarnation of its own; who names no engine means the present one."""
    engines = (
        Endpoint(0, "10.0.0.1", 8000, incarnation="e0"),
        Endpoint(0, "10.0.0.1", 0, incarnation="h0", headless=True),
    )
    named = replace(PodLiveness(pod(1, [0, 1])), registered=(*engines, Endpoint(1, "10.0.0.1", 8001)))
    assert [named.has(0, each) for each in ("e0", "h0", "", "former")] == [True, True, True, False]
    assert named.has(1, "first")
    assert PodLiveness(pod(1, [0])).has(0, "e0")


def test_a_pod_is_present_with_the_engines_that_it_has_now() -> None:
    brought = PodLiveness(pod(1, [0, 1]))
    named = replace(brought, registered=(Endpoint(0, "10.0.0.9", 1, incarnation="newer"),))
    first, second = brought.registration.endpoints
    assert named.present == replace(brought.registration, endpoints=(replace(first, incarnation="newer"), second))


def test_only_a_normal_routable_endpoint_serves() -> None:
    heard = PodLiveness(pod(1, [0], headless=[1])).heard(
        (EndpointState(0, ABNORMAL), EndpointState(1, NORMAL, headless=True)), 100.0
    )
    assert not heard.serving()


def test_serving_is_complete_when_every_active_rank_is_normal_in_a_pod_that_speaks() -> None:
    pods = {
        "1": PodLiveness(pod(1, [0, 1])).heard(states(0, 1), 100.0),
        "2": PodLiveness(pod(2, [2])).heard(states(2), 95.0),
    }
    assert serving_complete(pods, frozenset({0, 1, 2}), 104.9, TTL)
    assert not serving_complete(pods, frozenset({0, 1, 2}), 105.0, TTL)
    assert serving_complete(pods, frozenset({0, 1}), 105.0, TTL)
    assert not serving_complete(pods, frozenset({0, 3}), 100.0, TTL)


def test_a_pod_is_well_when_it_speaks_was_ready_and_every_endpoint_is_normal() -> None:
    heard = replace(PodLiveness(pod(1, [0], headless=[1])).heard(states(0, headless=(1,)), 100.0), ready=True)
    well = replace(heard, connected=True)
    assert well.well(109.9, TTL)
    assert not well.well(110.0, TTL)
    assert not heard.well(100.0, TTL)
    assert not replace(well, ready=False).well(100.0, TTL)
    assert not well.heard((EndpointState(0, NORMAL), EndpointState(1, ABNORMAL, headless=True)), 100.0).well(100.0, TTL)


def test_what_a_pod_said_is_from_before_until_it_speaks_again_or_is_silent() -> None:
    pods = {"1": PodLiveness(pod(1, [0])).heard(states(0), 100.0), "2": PodLiveness(pod(2, [1]))}
    assert heard_since(pods, 99.9, 100.0, TTL)
    assert not heard_since(pods, 100.0, 109.9, TTL)
    assert heard_since(pods, 100.0, 110.0, TTL)


RANKS = st.frozensets(st.integers(0, 3))


@given(RANKS, st.booleans(), RANKS, RANKS, st.booleans())
def test_a_heartbeat_is_believed_only_with_exactly_the_expected_set(
    told: frozenset[int], told_headless: bool, committed: frozenset[int], pending: frozenset[int], enabled: bool
) -> None:
    """Feature off: the complete set. On: less the committed ranks, and inside the window also less the pending."""
    registration = pod(1, [0, 1], headless=[2])
    own = {(0, False), (1, False), (2, True)}
    left = {key for key in own if key[0] not in committed}
    expected = [left, {key for key in left if key[0] not in pending}] if enabled else [own]
    heartbeat = states(*(told - {2}), headless=(2,) if told_headless else ())
    named = {(rank, False) for rank in told - {2}} | ({(2, True)} if told_headless else set())
    refused = pytest.raises(FtError, check=lambda error: error.reason is Reason.TOPOLOGY_MISMATCH)
    with nullcontext() if named in expected else refused:
        check_heartbeat(registration, heartbeat, committed=committed, pending=pending, scale_down_enabled=enabled)


def test_an_empty_heartbeat_is_believed_only_when_all_own_ranks_are_gone() -> None:
    registration = pod(1, [0, 1])
    everything = frozenset({0, 1})
    check_heartbeat(registration, (), committed=everything, pending=frozenset(), scale_down_enabled=True)
    with pytest.raises(FtError, match=r"names ranks \[\], expected \[1\] or \[1\]"):
        check_heartbeat(registration, (), committed=frozenset({0}), pending=frozenset(), scale_down_enabled=True)
    with pytest.raises(FtError, match=r"names ranks \[\], expected \[0, 1\]$"):
        check_heartbeat(registration, (), committed=everything, pending=frozenset(), scale_down_enabled=False)


INITIAL, ACTIVE, INACTIVE, _ = InstanceState


@pytest.mark.parametrize(
    ("current", "complete", "suppressed", "becomes"),
    [
        (INITIAL, False, False, INITIAL),
        (INITIAL, True, False, ACTIVE),
        (ACTIVE, True, True, ACTIVE),
        (ACTIVE, False, False, INACTIVE),
        (ACTIVE, False, True, ACTIVE),
        (INACTIVE, False, False, INACTIVE),
        (INACTIVE, False, True, INACTIVE),
        (INACTIVE, True, False, ACTIVE),
    ],
)
def test_states_move_only_between_active_and_inactive(
    current: InstanceState, complete: bool, suppressed: bool, becomes: InstanceState
) -> None:
    """The way to INACTIVE is suppressed while faults are judged or a transaction runs."""
    assert instance_state(current, complete=complete, suppressed=suppressed) is becomes


def test_an_instance_counts_as_active_until_exactly_one_window_after_it_was_that() -> None:
    left = Service().at(100.0, active=True, judging=False, window_sec=5.0)
    for now, counts in ((104.9, True), (105.0, False)):
        assert left.at(now, active=False, judging=False, window_sec=5.0) == Service(counts, 100.0)
    assert not Service().at(100.0, active=False, judging=False, window_sec=5.0).counts


@pytest.mark.parametrize(("begun", "counts"), [(104.9, True), (105.0, False)])
def test_what_it_counts_as_when_faults_come_to_be_judged_holds_until_they_are(begun: float, counts: bool) -> None:
    judged = Service(left_at=100.0).at(begun, active=False, judging=True, window_sec=5.0)
    assert judged.at(1000.0, active=False, judging=True, window_sec=5.0).counts is counts
    assert judged.at(1000.0, active=True, judging=True, window_sec=5.0).counts
    assert not judged.at(1000.0, active=False, judging=False, window_sec=5.0).counts
