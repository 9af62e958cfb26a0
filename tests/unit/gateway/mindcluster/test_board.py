"""What absence means, when a source is believed, and that one fault is one fault whoever shows it."""

from dataclasses import replace

import pytest

from gateway.mindcluster.core.board import Board, Place
from gateway.mindcluster.core.node import Condition, read_node
from gateway.mindcluster.core.observed import Observed, Reading, Source
from gateway.mindcluster.core.slot import Times
from motor_ft.model.hardware import FaultLevel, HardwareFault, SourceState

DEVICE = Place(Source.CM_DEVICE, "node-a")
SWITCH = Place(Source.CM_SWITCH, "node-a")
CLUSTER = Place(Source.CM_CLUSTER, "node-a", "device")
NODE = Place(Source.NODE_READY, "node-a")
JOB = Place(Source.CLUSTERD_STREAM, part="job-1")
WALL = 1_800_000_000.0
WRITTEN = WALL - 10


def at(second: float) -> Times:
    return Times(1000.0 + second, WALL + second)


def card(
    code: str = "80E18402", level: FaultLevel = FaultLevel.L6, npu_name: str = "Ascend910-4", **change: object
) -> Observed:
    return replace(Observed("node-a", npu_name, code, level, level, fault_type="CardUnhealthy"), **change)  # type: ignore[arg-type]


def reading(*faults: Observed, written: float | None = WRITTEN, **change: object) -> Reading:
    return replace(Reading(faults, complete=True, update_time=written), **change)  # type: ignore[arg-type]


def board(*sources: Source, **debounce: object) -> Board:
    """A board whose sources work."""
    made = Board(sources or [Source.CM_DEVICE], **debounce)  # type: ignore[arg-type]
    for source in sources or [Source.CM_DEVICE]:
        made.working(source)
    return made


def only(made: Board, second: float = 0) -> HardwareFault:
    (fault,) = made.faults(at(second)).values()
    return fault


def problems(made: Board, second: float = 0) -> dict[tuple[str, str], str]:
    return {(state.source, state.node): state.problem for state in made.states(at(second)) if state.problem}


def test_a_fault_holds_until_an_accepted_reading_lacks_it() -> None:
    made = board()
    made.take(DEVICE, reading(card()), at(0))
    assert not only(made).stale
    made.take(DEVICE, reading(written=WRITTEN + 5), at(5))
    assert made.faults(at(5)) == {}


@pytest.mark.parametrize(
    "incomplete",
    [
        reading(complete=False, problem="CheckCode is wrong"),
        reading(complete=False, problem="no list of faults"),
        Reading(problem="DeviceInfoCfg is missing"),
        reading(written=WRITTEN - 1),
    ],
    ids=["check code", "plugin start", "missing", "older"],
)
def test_absence_from_what_is_not_accepted_is_not_recovery(incomplete: Reading) -> None:
    """The fault is kept, and the node shows as one that is not to be believed."""
    made = board()
    made.take(DEVICE, reading(card()), at(0))
    made.take(DEVICE, incomplete, at(5))
    assert only(made, 5).key == card().key
    assert ("cm-device", "node-a") in problems(made, 5)
    made.take(DEVICE, reading(written=WRITTEN + 10), at(10))
    assert made.faults(at(10)) == {}
    assert problems(made, 10) == {}


def test_a_reading_that_clears_nothing_still_adds_and_raises() -> None:
    made = board()
    made.take(DEVICE, reading(card(), card("A", FaultLevel.L1)), at(0))
    made.take(DEVICE, reading(card("A", FaultLevel.L5), card("B"), complete=False), at(5))
    found = {fault.fault_code: (fault.level, fault.stale) for fault in made.faults(at(5)).values()}
    assert found == {"80E18402": ("L6", True), "A": ("L5", False), "B": ("L6", False)}


def test_a_card_in_a_hot_reset_or_isolated_by_hand_keeps_its_faults() -> None:
    made = board()
    made.take(DEVICE, reading(card(), card(npu_name="Ascend910-5"), card(npu_name="switch0")), at(0))
    made.take(DEVICE, reading(held=frozenset({4})), at(5))
    kept = only(made, 5)
    assert (kept.npu_name, kept.stale) == ("Ascend910-4", False)
    made.take(DEVICE, reading(), at(10))
    assert made.faults(at(10)) == {}


def test_a_change_of_level_is_the_same_fault_and_a_return_is_a_new_one() -> None:
    """Link down: no action at first, isolation after 20 s, gone 60 s after recovery."""
    made = board()
    made.take(DEVICE, reading(card("81078603", FaultLevel.L1, since=WALL - 30)), at(0))
    made.take(DEVICE, reading(card("081078603", FaultLevel.L6, since=WALL + 19)), at(20))
    fault = only(made, 20)
    assert (fault.level, fault.first_seen, fault.age_sec) == ("L6", WALL - 30, 20)
    made.take(DEVICE, reading(), at(80))
    made.take(DEVICE, reading(card("81078603", FaultLevel.L1)), at(90))
    fault = only(made, 90)
    assert (fault.first_seen, fault.age_sec) == (WALL + 90, 0)


def test_an_occurrence_lasts_as_long_as_any_source_shows_the_fault() -> None:
    """Whoever showed it first; after it was nowhere the next one begins, also between two looks."""
    made = board(Source.CM_DEVICE, Source.CM_CLUSTER)
    made.take(DEVICE, reading(card(), card("B")), at(0))
    first = {key.code: fault.occurrence for key, fault in made.faults(at(0)).items()}
    made.take(CLUSTER, reading(card()), at(1))
    made.take(DEVICE, reading(), at(2))
    made.take(DEVICE, reading(card()), at(3))
    made.cleared(CLUSTER)
    assert only(made).occurrence == first["80E18402"] != first["B"]
    made.take(DEVICE, reading(), at(4))
    made.take(DEVICE, reading(card()), at(4))
    assert only(made).occurrence not in first.values()


def test_a_time_of_the_future_is_not_believed() -> None:
    made = board()
    made.take(DEVICE, reading(card(since=WALL + 3600)), at(0))
    assert only(made).first_seen == WALL


def test_the_gravest_of_repeated_entries_counts() -> None:
    made = board()
    made.take(DEVICE, reading(card(level=FaultLevel.L5), card(level=FaultLevel.L6), card(level=FaultLevel.L1)), at(0))
    assert only(made).level == "L6"


def test_a_source_is_not_believed_before_it_has_answered() -> None:
    made = Board([Source.CM_DEVICE, Source.NODE_READY])
    assert set(problems(made).values()) == {"has not answered yet"}
    made.working(Source.NODE_READY)
    assert made.states(at(0)) == (
        SourceState("cm-device", "", "has not answered yet"),
        SourceState("cm-switch", "", "has not answered yet"),
        SourceState("node-ready", "", ""),
    )


def test_a_broken_source_keeps_its_faults_stale_and_says_so_once() -> None:
    made = board()
    made.take(DEVICE, reading(card()), at(0))
    made.take(SWITCH, reading(card(npu_name="")), at(0))
    made.broken(Source.CM_DEVICE, "connection refused")
    assert [fault.stale for fault in made.faults(at(1)).values()] == [True, True]
    assert problems(made, 1) == dict.fromkeys([("cm-device", ""), ("cm-switch", "")], "connection refused")
    made.working(Source.CM_DEVICE)
    assert [fault.stale for fault in made.faults(at(2)).values()] == [False, False]


def test_a_plugin_that_stops_writing_is_stale_after_ten_minutes_by_our_clock() -> None:
    made = board()
    made.take(DEVICE, reading(card()), at(0))
    made.take(SWITCH, Reading(), at(0))
    made.take(DEVICE, reading(card(), written=WRITTEN + 1), at(5))
    made.take(DEVICE, reading(card(), written=WRITTEN + 1), at(300))
    assert not only(made, 605).stale
    assert only(made, 605.1).stale
    assert problems(made, 605.1) == {("cm-device", "node-a"): "nothing was written for 600 s"}
    made.take(DEVICE, reading(card(), written=WRITTEN + 2), at(700))
    assert not only(made, 700).stale


def test_a_payload_that_is_old_when_it_is_first_seen_is_stale_until_it_changes() -> None:
    """A plugin that died before this process started; or a node whose clock is behind, which its next write tells."""
    made = board()
    made.take(DEVICE, reading(card(), written=WALL - 3600), at(0))
    assert only(made).stale
    made.take(DEVICE, reading(card(), written=WALL - 3300), at(300))
    assert not only(made, 300).stale


def test_faults_of_the_switch_are_as_old_as_what_the_plugin_wrote() -> None:
    made = board()
    made.take(DEVICE, reading(), at(0))
    made.take(SWITCH, reading(card(npu_name=""), written=WRITTEN), at(0))
    made.take(DEVICE, reading(written=WRITTEN + 500), at(500))
    assert not only(made, 900).stale
    assert only(made, 1100.1).stale


def test_after_a_reboot_the_old_payload_is_not_believed() -> None:
    """Ready comes back while the ConfigMap still has what was written before."""
    made = board(Source.CM_DEVICE, Source.NODE_READY)
    made.take(DEVICE, reading(card()), at(0))
    made.node("node-a", "192.0.2.1", WALL + 60)
    assert only(made, 61).stale
    assert problems(made, 61) == {("cm-device", "node-a"): "nothing was written since the node became Ready"}
    made.take(DEVICE, reading(written=WALL + 70), at(70))
    assert (made.faults(at(70)), problems(made, 70)) == ({}, {})
    made.node("node-a", "192.0.2.1", None)
    assert problems(made, 71) == {}


def test_a_fault_has_the_address_of_its_node_whichever_source_knows_it() -> None:
    """Pods may name their node by address."""
    made = board(Source.CM_DEVICE, Source.NODE_READY)
    made.take(DEVICE, reading(card()), at(0))
    assert only(made).node_ip == ""
    made.node("node-a", "192.0.2.1", None)
    assert only(made).node_ip == "192.0.2.1"


def test_ready_clears_no_card_and_a_card_clears_no_node() -> None:
    made = board(Source.CM_DEVICE, Source.NODE_READY)
    not_ready = Observed("node-a", "", "0x0000001", FaultLevel.L6, "NotReady")
    made.take(NODE, reading(not_ready, written=None), at(0))
    made.take(DEVICE, reading(card()), at(0))
    made.take(NODE, reading(written=None), at(5))
    assert only(made, 5).npu_name == "Ascend910-4"
    made.take(NODE, reading(not_ready, written=None), at(6))
    made.take(DEVICE, reading(), at(7))
    assert only(made, 7).raw_level == "NotReady"


def test_a_deleted_payload_is_an_unknown_state_where_deletion_is_not_health() -> None:
    made = board(Source.CM_DEVICE, Source.CM_NODE)
    made.take(DEVICE, reading(card()), at(0))
    made.lost(DEVICE, "the ConfigMap was deleted")
    made.lost(Place(Source.CM_DEVICE, "never seen"), "the ConfigMap was deleted")
    assert only(made).stale
    assert problems(made) == {("cm-device", "node-a"): "the ConfigMap was deleted"}
    bmc = Place(Source.CM_NODE, "node-a")
    made.take(bmc, reading(card(npu_name=""), written=None), at(0))
    made.cleared(bmc)
    assert only(made).npu_name == "Ascend910-4"


def test_the_same_fault_in_two_sources_is_one_at_the_graver_level() -> None:
    made = board(Source.CM_DEVICE, Source.CM_CLUSTER)
    made.take(DEVICE, reading(card(level=FaultLevel.L1, since=WALL - 5)), at(0))
    made.take(CLUSTER, reading(card(npu_name="npu-4", fault_type="PublicFault")), at(3))
    fault = only(made, 3)
    assert (fault.level, fault.sources, fault.first_seen, fault.age_sec) == (
        "L6",
        ("cm-cluster", "cm-device"),
        WALL - 5,
        3,
    )


def test_a_source_that_is_not_believed_counts_only_where_no_other_has_the_fault() -> None:
    made = board(Source.CM_DEVICE, Source.CM_CLUSTER)
    made.take(CLUSTER, reading(card(level=FaultLevel.L6)), at(0))
    made.take(DEVICE, reading(card(level=FaultLevel.L1)), at(0))
    made.broken(Source.CM_CLUSTER, "forbidden")
    assert (only(made).level, only(made).sources) == ("L1", ("cm-device",))
    made.broken(Source.CM_DEVICE, "forbidden")
    assert (only(made).level, only(made).stale) == ("L6", True)


def test_an_inferred_level_counts_only_where_none_is_stated() -> None:
    """A stream gives every code of a switch the worst level of the node."""
    made = board(Source.CM_SWITCH, Source.CLUSTERD_STREAM)
    made.take(JOB, reading(card(npu_name="", level=FaultLevel.L6, level_inferred=True, node_ip="192.0.2.1")), at(0))
    assert (only(made).level, only(made).level_inferred) == ("L6", True)
    made.take(SWITCH, reading(card(npu_name="", level=FaultLevel.L1)), at(1))
    assert (only(made, 1).level, only(made, 1).level_inferred, only(made, 1).node_ip) == ("L1", False, "192.0.2.1")


def test_a_stream_replaces_the_state_of_its_job_and_of_no_other() -> None:
    made = board(Source.CLUSTERD_STREAM)
    other = Place(Source.CLUSTERD_STREAM, part="job-2")
    made.take(JOB, reading(card("A"), written=None), at(0))
    made.take(other, reading(card("B"), written=None), at(0))
    made.take(JOB, reading(written=None), at(1))
    assert only(made, 1).fault_code == "B"
    assert made.places(Source.CLUSTERD_STREAM) == {other}, "a job without faults is not remembered"


def test_a_query_ends_what_a_stream_could_not_tell() -> None:
    """A fault that cleared while the stream was down, or whose job is gone, is never announced."""
    made = board(Source.CLUSTERD_STREAM, Source.CLUSTERD_QUERY)
    made.take(JOB, reading(card("A"), card("B"), written=None), at(0))
    made.unconfirm(Source.CLUSTERD_STREAM)
    assert [fault.stale for fault in made.faults(at(1)).values()] == [True, True]
    made.answered(reading(card("A"), written=None), 1001.0, at(1))
    assert len(made.faults(at(1))) == 2, "the stream may be ahead of the answer"
    made.answered(reading(card("A"), written=None), 1005.1, at(6))
    assert (only(made, 6).fault_code, only(made, 6).stale) == ("A", False)
    made.answered(reading(written=None), 1010.0, at(10))
    assert (made.faults(at(10)), made.places(Source.CLUSTERD_STREAM)) == ({}, frozenset())


def test_a_flapping_code_counts_only_after_it_has_lasted() -> None:
    """Other codes and lower levels are not delayed."""
    made = board(debounce_codes=["81078603"], debounce_sec=15.0)
    flap = card("081078603")
    made.take(DEVICE, reading(flap, card("B"), card("C", FaultLevel.L5)), at(0))
    assert {fault.fault_code: fault.level.value for fault in made.faults(at(0)).values()} == {
        "081078603": "L1",
        "B": "L6",
        "C": "L5",
    }
    made.take(DEVICE, reading(flap), at(10))
    assert only(made, 14.9).level == "L1"
    assert only(made, 15).level == "L6"


@pytest.mark.parametrize("bad", [card(node=""), card(raw_level="x" * 3000)], ids=["no node", "too long"])
def test_a_fault_that_no_report_could_carry_is_left_out_and_said_to_be(bad: Observed) -> None:
    """The Controller would refuse it, and with it every snapshot that has it. Nothing is cleared meanwhile."""
    made = board()
    made.take(DEVICE, reading(card(), card("other")), at(0))
    made.take(DEVICE, reading(card(), bad), at(1))
    assert {fault.fault_code for fault in made.faults(at(1)).values()} == {"80E18402", "other"}
    (state,) = (state for state in made.states(at(1)) if state.node)
    assert state.problem.startswith("left out: 1 faults")


def test_an_adapter_of_other_nodes_does_not_read_the_same_source() -> None:
    """Else it would stand in for one that is gone, and clear the faults of nodes that it does not see."""
    made = board(Source.NODE_READY, node_selector="pool=a")
    made.take(NODE, reading(card(npu_name="")), at(0))
    assert only(made).sources == ("node-ready[pool=a]",)
    made.lost(NODE, "not there any more")
    assert {state.source for state in made.states(at(0))} == {"node-ready[pool=a]"}


def test_each_condition_is_a_source_of_its_own() -> None:
    """An adapter that does not read it would else clear it for one that is gone; it still stands in for the rest."""
    lost = Condition("NT_NPU_CARD_LOSE", "True", FaultLevel.L5)
    made = board(Source.NODE_READY, conditions=[lost])
    told = [{"type": "Ready", "status": "False"}, {"type": "NT_NPU_CARD_LOSE", "status": "True"}]
    made.take(NODE, read_node("node-a", {"status": {"conditions": told}}, [lost]).reading, at(0))
    assert {fault.fault_code: fault.sources for fault in made.faults(at(0)).values()} == {
        "0x0000001": ("node-ready",),
        "NT_NPU_CARD_LOSE": ("node-ready NT_NPU_CARD_LOSE=True",),
    }
    assert [state.source for state in made.states(at(0))] == ["node-ready", "node-ready NT_NPU_CARD_LOSE=True"]
