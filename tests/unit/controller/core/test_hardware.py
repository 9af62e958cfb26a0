"""A hardware fault names ranks only where its node, its card and the instance's own devices say so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core.hardware import HardwarePolicy, LinkDown, PreSeparate, effective_level, is_transient, map_fault
from motor_ft.model.hardware import FaultLevel, HardwareFault
from motor_ft.model.topology import Device, Endpoint, Registration
from tests.unit.controller.core.fleet import pod

CARDS = {0: ["0"], 1: ["1"], 2: ["2"], 3: ["3"]}


def on_node(node: str, cards: dict[int, list[str]], *, number: int = 1, headless: tuple[int, ...] = ()) -> Registration:
    """A pod on a node whose ranks use these cards."""
    endpoints = [
        Endpoint(rank, f"10.0.0.{number}", 8000 + rank, rank in headless, tuple(map(Device, ids)))
        for rank, ids in cards.items()
    ]
    base = pod(number, [])
    return Registration(
        **{name: getattr(base, name) for name in Registration.__slots__}
        | {"node_name": node, "endpoints": tuple(endpoints)}
    )


def fault(npu_name: str, *, node: str = "node-a", node_ip: str = "", code: str = "80E18402") -> HardwareFault:
    return HardwareFault(node, npu_name, code, FaultLevel.L6, "SeparateNPU", node_ip=node_ip)


def mapped(fault: HardwareFault, pods: list[Registration]) -> set[int] | None:
    ranks = map_fault(fault, pods)
    return None if ranks is None else set(ranks)


@pytest.mark.parametrize(
    ("npu_name", "ranks"),
    [
        ("Ascend910-0", {0}),
        ("Ascend910-0, Ascend910-2", {0, 2}),
        ("npu-3", {3}),
        ("Ascend910-3,", {3}),
        ("switch0", None),
        ("Ascend910-0,switch0", None),
        ("-1", None),
        ("", {0, 1, 2, 3}),
        (" ", {0, 1, 2, 3}),
        ("Ascend910-15", set()),
        ("Ascend910-1,Ascend910-15", {1}),
    ],
)
def test_cards_become_the_ranks_that_use_them(npu_name: str, ranks: set[int] | None) -> None:
    """Card 15 belongs to another instance; a name in an unknown format is unmappable, alone and in a list."""
    assert mapped(fault(npu_name), [on_node("node-a", CARDS)]) == ranks


def test_the_ranks_of_all_pods_on_the_node_count_and_no_others() -> None:
    """Two pods of the instance share card 1 and node-a; the pod on node-b has a card 1 of its own."""
    pods = [
        on_node("node-a", {0: ["0"], 1: ["1"]}),
        on_node("node-a", {2: ["1", "2"]}, number=2),
        on_node("node-b", {3: ["1"]}, number=3),
    ]
    assert mapped(fault("Ascend910-1"), pods) == {1, 2}
    assert mapped(fault(""), pods) == {0, 1, 2}


def test_a_headless_endpoint_stands_for_its_rank() -> None:
    assert mapped(fault("Ascend910-1"), [on_node("node-a", {0: ["0"], 1: ["1"]}, headless=(1,))]) == {1}


def test_a_fault_elsewhere_touches_nothing_whatever_its_card_is_called() -> None:
    pods = [on_node("node-b", CARDS), on_node("", CARDS, number=2)]
    for npu_name in ("", "Ascend910-0", "switch0"):
        assert mapped(fault(npu_name), pods) == set()


def test_a_pod_may_name_its_node_by_address() -> None:
    assert mapped(fault("Ascend910-2", node_ip="192.0.2.1"), [on_node("192.0.2.1", CARDS)]) == {2}


@pytest.mark.parametrize("devices", [[], ["gpu:one"], ["0", "gpu:one"]])
def test_a_card_that_may_be_of_an_endpoint_with_unknown_cards_is_unmappable(devices: list[str]) -> None:
    pods = [on_node("node-a", {0: devices, 1: ["1"]})]
    assert mapped(fault("Ascend910-15"), pods) is None
    assert mapped(fault("Ascend910-1"), pods) == {1}


def test_a_slice_of_a_card_hits_that_slice_and_a_card_hits_all_its_slices() -> None:
    slices = {0: ["Ascend910-2c-100-0"], 1: ["Ascend910-2c-101-0"], 2: ["0"]}
    pods = [on_node("node-a", slices)]
    assert mapped(fault("Ascend910-2c-100-0"), pods) == {0, 2}
    assert mapped(fault("Ascend910-0"), pods) == {0, 1, 2}


@given(st.sets(st.integers(0, 15)), st.text(max_size=12))
def test_a_mapping_names_only_ranks_of_the_node(cards: set[int], noise: str) -> None:
    names = ",".join([*(f"Ascend910-{card}" for card in cards), noise])
    ranks = mapped(fault(names), [on_node("node-a", CARDS), on_node("node-b", {7: ["0"]}, number=2)])
    assert ranks is None or ranks <= {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("hardware_type", "link_down", "level"),
    [
        ("", LinkDown.AUTO, FaultLevel.L6),
        ("800I-A2", LinkDown.AUTO, FaultLevel.L6),
        ("800I-A3", LinkDown.AUTO, FaultLevel.L1),
        ("800I-A3-64G", LinkDown.AUTO, FaultLevel.L1),
        ("800I-A2-32G", LinkDown.AUTO, FaultLevel.L6),
        ("a5", LinkDown.AUTO, FaultLevel.L1),
        ("800I-A3", LinkDown.COUNT, FaultLevel.L6),
        ("800I-A2", LinkDown.IGNORE, FaultLevel.L1),
    ],
)
def test_link_down_counts_where_the_hardware_means_it(
    hardware_type: str, link_down: LinkDown, level: FaultLevel
) -> None:
    policy = HardwarePolicy(hardware_type, link_down)
    assert effective_level(fault("npu-0", code="081078603"), policy, working=True) is level
    assert effective_level(fault("npu-0"), policy, working=True) is FaultLevel.L6


@pytest.mark.parametrize("raw_level", ["PreSeparateNPU", "PreSeparate", "PreSeparateFault"])
def test_isolation_after_the_current_work_waits_for_an_instance_that_works(raw_level: str) -> None:
    pre = HardwareFault("node-a", "npu-0", "110001024", FaultLevel.L6, raw_level)
    hard = HardwarePolicy(pre_separate=PreSeparate.HARD)
    assert effective_level(pre, HardwarePolicy(), working=True) is FaultLevel.L2
    assert effective_level(pre, HardwarePolicy(), working=False) is FaultLevel.L6
    assert effective_level(pre, hard, working=True) is FaultLevel.L6


@pytest.mark.parametrize(
    ("code", "known"),
    [
        ("0x00F1FEF5", True),
        ("f1fef5", True),
        ("[0x00f1fef5,155914,npu,na]", True),
        ("[0x08520003,na,L2,na]", True),
        ("[155914,0x00f1fef5,npu,na]", False),
        ("80E18402", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("level", FaultLevel)
def test_listed_codes_of_l2_are_waited_for_a_switch_is_known_by_its_alarm(
    code: str, known: bool, level: FaultLevel
) -> None:
    """The level is the one of the message: never of the alarm alone."""
    assert is_transient(fault("", code=code), level, HardwarePolicy()) is (known and level is FaultLevel.L2)


def test_the_codes_that_are_waited_for_are_configurable() -> None:
    policy = HardwarePolicy(transient_codes=frozenset({"80E18402"}))
    assert is_transient(fault("", code="0x80e18402"), FaultLevel.L2, policy)
    assert not is_transient(fault("", code="0x00F1FEF5"), FaultLevel.L2, policy)
