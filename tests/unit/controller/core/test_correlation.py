"""Which came first, the hardware or the engines, and did the engines notice in time (RFC section 4.4)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.correlation import (
    Concern,
    Correlation,
    at_ready,
    carried_out,
    cleared,
    concern_of,
    correlate,
    seen,
)
from controller.core.hardware import HardwarePolicy, PreSeparate
from motor_ft.model.hardware import FaultKey, FaultLevel, HardwareFault
from motor_ft.model.topology import Device
from tests.unit.controller.core.fleet import pod

NOBODY: frozenset[int] = frozenset()
ACTIVE = frozenset({0, 1, 2, 3})


def concern(*ranks: int, level: FaultLevel = FaultLevel.L6, code: str = "80E18402", mapped: bool = True) -> Concern:
    """A fault of some ranks, or of a card whose name says nothing."""
    fault = HardwareFault("node-a", f"Ascend910-{min(ranks, default=0)}", code, level)
    return Concern(fault, level, frozenset(ranks) if mapped else None)


class Incident:
    """Things happen to an instance of four ranks one after the other; the window is 5 s."""

    def __init__(self, known: Correlation | None = None) -> None:
        self.known = known or Correlation()
        self.active, self.unhealthy, self.dead = ACTIVE, NOBODY, NOBODY

    def hardware(self, at: float, *concerns: Concern, new: bool = True) -> "Incident":
        for each in concerns:
            self.known = seen(self.known, each.fault.key, each, new=new)
        return self.look(at)

    def over(self, at: float, each: Concern) -> "Incident":
        self.known = cleared(self.known, each.fault.key)
        return self.look(at)

    def engines(self, at: float, *, unhealthy: set[int] | None = None, dead: set[int] | None = None) -> "Incident":
        self.unhealthy, self.dead = frozenset(unhealthy or ()), frozenset(dead or ())
        return self.look(at)

    def commit(self, at: float, *ranks: int) -> "Incident":
        self.active -= frozenset(ranks)
        return self.look(at)

    def look(self, at: float) -> "Incident":
        self.known = correlate(
            self.known, active=self.active, unhealthy=self.unhealthy, dead=self.dead, window_sec=5.0, now=at
        )
        return self

    @property
    def opened(self) -> float | None:
        return self.known.hardware_first

    @property
    def matched(self) -> bool:
        return self.known.matched(self.active, self.dead)


def test_a_hardware_fault_before_any_engine_opens_the_window_with_its_time() -> None:
    assert Incident().hardware(10, concern(1)).opened == 10


def test_nothing_that_comes_later_extends_the_window() -> None:
    incident = Incident().hardware(10, concern(1)).hardware(12, concern(2)).engines(13, unhealthy={0}).engines(14)
    incident.hardware(14.5, replace(concern(1), level=FaultLevel.L5)).look(14.8)
    assert incident.opened == 10
    assert not incident.matched


def test_when_engines_were_first_no_window_is_opened() -> None:
    assert Incident().engines(9, unhealthy={0}).hardware(10, concern(1)).look(11).opened is None


@pytest.mark.parametrize("order", ["hardware then engines", "engines then hardware"])
def test_equal_times_count_as_software_first(order: str) -> None:
    incident = Incident()
    if order == "hardware then engines":
        incident.hardware(10, concern(1)).engines(10, dead={1})
    else:
        incident.engines(10, dead={1}).hardware(10, concern(1))
    assert incident.look(11).opened is None


@pytest.mark.parametrize(
    ("unhealthy", "dead", "fits"),
    [
        ({0, 1, 2, 3}, set(), True),
        ({0, 2, 3}, {1}, True),
        ({0, 3}, {1, 2}, True),
        ({0, 1, 3}, {2}, False),
        ({0, 2}, {1}, False),
        ({0}, set(), False),
        (set(), {1}, False),
        (set(), {0, 1, 2, 3}, False),
    ],
)
@pytest.mark.parametrize(("at", "in_time"), [(14.9, True), (15.0, False)])
def test_engines_match_with_all_u_or_u_and_d_around_the_hardware_before_the_deadline(
    unhealthy: set[int], dead: set[int], fits: bool, at: float, in_time: bool
) -> None:
    """At exactly the deadline it is over."""
    incident = Incident().hardware(10, concern(1)).engines(at, unhealthy=unhealthy, dead=dead)
    assert incident.opened == 10
    assert incident.matched is (fits and in_time)


def test_a_match_in_time_is_latched_and_the_d_that_follows_may_be_late() -> None:
    incident = Incident().hardware(10, concern(1)).engines(12, unhealthy={0, 1, 2, 3}).look(60)
    assert incident.matched
    assert incident.engines(70, unhealthy={0, 2, 3}, dead={1}).matched


def test_all_u_is_no_match_for_a_d_without_the_hardware() -> None:
    incident = Incident().hardware(10, concern(1)).engines(12, unhealthy={0, 1, 2, 3})
    assert not incident.engines(13, unhealthy={0, 1, 3}, dead={2}).matched


def test_every_rank_of_the_hardware_that_is_left_has_to_be_dead() -> None:
    incident = Incident().commit(1, 2).hardware(10, concern(1), concern(2, 3))
    assert not incident.engines(11, unhealthy={0, 3}, dead={1}).matched
    assert incident.engines(12, unhealthy={0}, dead={1, 3}).matched


def test_a_fault_whose_ranks_are_gone_is_handled_and_asks_for_nothing() -> None:
    incident = Incident().hardware(10, concern(1)).engines(11, unhealthy={0, 2, 3}, dead={1}).commit(12, 1)
    assert incident.opened is None
    assert incident.known.unhandled(incident.active) == ()
    assert incident.known.handled(incident.active) == (concern(1),)
    incident.over(20, concern(1)).hardware(21, concern(1))
    assert (incident.opened, incident.known.unhandled(incident.active)) == (None, ())


def test_a_fault_of_a_rank_that_is_left_and_of_one_that_is_gone_is_not_handled() -> None:
    incident = Incident().commit(1, 1).hardware(10, concern(1, 2))
    assert incident.known.handled(incident.active) == ()
    assert incident.known.unhandled(incident.active) == (concern(1, 2),)


def test_a_fault_that_clears_and_returns_is_new() -> None:
    incident = Incident().hardware(10, concern(1)).over(12, concern(1))
    assert incident.opened is None
    assert incident.hardware(13, concern(1)).opened == 13


def test_a_match_does_not_outlive_the_fault() -> None:
    incident = Incident().hardware(10, concern(1)).engines(11, unhealthy={0, 1, 2, 3}).over(12, concern(1)).engines(13)
    assert not incident.hardware(14, concern(1)).matched


@pytest.mark.parametrize("first", ["hardware", "engines"])
def test_hardware_that_outlives_what_the_engines_said_stands_for_itself(first: str) -> None:
    """They serve on broken hardware: one more window, from the time that U and D were gone."""
    incident = Incident()
    if first == "hardware":
        incident.hardware(10, concern(1)).engines(11, unhealthy={0, 1, 2, 3})
    else:
        incident.engines(10, unhealthy={0}).hardware(11, concern(1))
    incident.engines(20)
    assert (incident.opened, incident.matched) == (20, False)


def test_one_more_window_for_hardware_that_outlives_its_match_is_never_moved() -> None:
    """Engines that fail and recover inside it, without a match, change nothing of it."""
    incident = Incident().hardware(10, concern(1)).engines(11, unhealthy={0, 1, 2, 3})
    assert incident.matched
    assert incident.engines(20).opened == 20
    assert incident.engines(21, unhealthy={0}).opened == 20
    assert incident.engines(22).opened == 20
    assert not incident.matched


def test_engines_that_recover_without_having_matched_leave_the_window_as_it_is() -> None:
    incident = Incident().hardware(10, concern(1)).engines(11, unhealthy={0}).engines(12)
    assert (incident.opened, incident.matched) == (10, False)


def test_a_fault_for_which_all_was_done_asks_no_more_until_it_clears_and_returns() -> None:
    """It still stands, and is not what a window is opened for."""
    each, other = concern(1), concern(2)
    incident = Incident().hardware(10, each)
    incident.known = carried_out(incident.known, [each])
    incident.look(11)
    assert incident.known.standing(ACTIVE) == (each,)
    assert (incident.known.unhandled(ACTIVE), incident.opened) == ((), None)
    assert incident.hardware(12, each, new=False).known.unhandled(ACTIVE) == ()
    assert incident.hardware(13, other).known.unhandled(ACTIVE) == (other,)
    assert incident.over(14, each).hardware(15, each).known.unhandled(ACTIVE) == (other, each)


def test_it_asks_again_when_it_becomes_graver() -> None:
    incident = Incident().hardware(10, concern(1, level=FaultLevel.L4))
    incident.known = carried_out(incident.known, incident.known.standing(ACTIVE))
    assert incident.hardware(11, concern(1, level=FaultLevel.L4), new=False).known.unhandled(ACTIVE) == ()
    graver = concern(1, level=FaultLevel.L5)
    assert incident.hardware(12, graver, new=False).known.unhandled(ACTIVE) == (graver,)


def test_a_transient_fault_that_was_waited_for_and_becomes_grave_is_unhandled() -> None:
    transient = replace(concern(1, level=FaultLevel.L2), transient=True)
    incident = Incident().hardware(10, transient)
    assert (incident.known.transient(ACTIVE), incident.opened) == ((transient,), None)
    incident.known = carried_out(incident.known, incident.known.transient(ACTIVE))
    assert incident.known.transient(ACTIVE) == ()
    assert incident.hardware(12, concern(1), new=False).opened == 12


@pytest.mark.parametrize("level", [FaultLevel.L1, FaultLevel.L2, FaultLevel.L3, FaultLevel.UNKNOWN])
def test_below_l4_nothing_is_asked_for_until_the_level_rises(level: FaultLevel) -> None:
    incident = Incident().hardware(10, concern(1, level=level))
    assert (incident.opened, incident.known.unhandled(ACTIVE)) == (None, ())
    assert incident.hardware(12, concern(1, level=FaultLevel.L4), new=False).opened == 12


def test_the_baseline_of_ready_asks_for_nothing_until_it_clears_and_returns() -> None:
    """A level that rises leaves it the same fault; an unmappable one is of the baseline too."""
    grave, strange = concern(1, level=FaultLevel.L4), concern(code="1", mapped=False)
    known = at_ready(Incident().hardware(1, grave, strange).known)
    incident = Incident(known).look(2).hardware(3, concern(1), new=False)
    assert (incident.opened, incident.known.unhandled(ACTIVE)) == (None, ())
    assert incident.hardware(4, concern(2)).opened == 4
    assert incident.over(5, concern(2)).over(6, concern(1)).hardware(7, concern(1)).opened == 7
    assert incident.known.baseline == {strange.fault.key}


@pytest.mark.parametrize("level", [FaultLevel.L1, FaultLevel.L2, FaultLevel.L3, FaultLevel.UNKNOWN])
def test_what_asked_for_nothing_at_ready_is_new_when_it_becomes_grave(level: FaultLevel) -> None:
    """MindCluster raises levels of what it knows, by frequency and duration."""
    known = at_ready(Incident().hardware(1, concern(1, level=level)).known)
    assert known.baseline == set()
    assert Incident(known).hardware(3, concern(1), new=False).opened == 3


def test_a_stored_baseline_holds_for_a_fault_that_may_be_older_than_this_controller() -> None:
    known = Correlation(baseline=frozenset({concern(1).fault.key}))
    assert Incident(known).hardware(10, concern(1), new=False).opened is None
    assert Incident(known).hardware(10, concern(1), new=True).opened == 10


def test_an_unmappable_fault_is_unhandled_and_a_fault_that_touches_nobody_is_not_kept() -> None:
    incident = Incident().hardware(10, concern(mapped=False))
    assert incident.known.unhandled(NOBODY) == (concern(mapped=False),)
    key = FaultKey("node-b", "1.", "80E18402", "", "")
    assert seen(Correlation(), key, None, new=True).concerns == {}


def test_a_concern_is_what_a_fault_is_to_the_instance() -> None:
    """Its ranks by its devices, its level by the policy; None elsewhere."""
    base = pod(1, [0, 1])
    devices = tuple(replace(endpoint, devices=(Device(str(endpoint.rank)),)) for endpoint in base.endpoints)
    own = [replace(base, endpoints=devices)]
    soft, hard = HardwarePolicy(), HardwarePolicy(pre_separate=PreSeparate.HARD)
    fault = HardwareFault("node-1", "Ascend910-1", "80E18402", FaultLevel.L6, "PreSeparateNPU")
    assert concern_of(fault, own, soft) == Concern(fault, FaultLevel.L2, frozenset({1}))
    assert concern_of(fault, own, hard) == Concern(fault, FaultLevel.L6, frozenset({1}))
    assert concern_of(replace(fault, npu_name="switch0"), own, hard) == Concern(
        replace(fault, npu_name="switch0"), FaultLevel.L6, None
    )
    assert concern_of(replace(fault, npu_name="Ascend910-7"), own, soft) is None
    assert concern_of(replace(fault, node="node-2"), own, soft) is None


@pytest.mark.parametrize(
    ("each", "text"),
    [
        (concern(1), "L6 80E18402 on Ascend910-1 of node-a (ranks [1])"),
        (
            Concern(HardwareFault("n", "", "", FaultLevel.L6, "NotReady", stale=True), FaultLevel.L6, ACTIVE),
            "L6 NotReady on the node of n (ranks [0, 1, 2, 3], not confirmed now)",
        ),
        (concern(mapped=False), "L6 80E18402 on Ascend910-0 of node-a (no rank to be told)"),
    ],
)
def test_a_concern_names_fault_place_and_ranks(each: Concern, text: str) -> None:
    assert str(each) == text


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["hardware", "over", "engines"]),
        st.floats(0.1, 3),
        st.frozensets(st.integers(0, 3)),
        st.frozensets(st.integers(0, 3)),
    ),
    max_size=12,
)


@given(EVENTS)
def test_the_window_of_an_incident_is_never_moved_and_hardware_without_engines_always_has_one(
    events: list[tuple[str, float, frozenset[int], frozenset[int]]],
) -> None:
    """Whatever comes in whatever order: no fault is forgotten, and a wait that was never matched ends when it said."""
    incident, now = Incident(), 0.0
    for what, after, first, second in events:
        now += after
        before = incident.known
        if what == "engines":
            incident.engines(now, unhealthy=set(first - second), dead=set(second))
        elif what == "hardware":
            incident.hardware(now, concern(min(first, default=0)))
        else:
            incident.over(now, concern(min(first, default=0)))
        silent = not (incident.unhealthy or incident.dead)
        if silent and incident.known.unhandled(ACTIVE):
            assert incident.opened is not None
            assert not incident.matched
        if before.hardware_first is not None and incident.opened is not None and not before.noticed:
            assert incident.opened == before.hardware_first
