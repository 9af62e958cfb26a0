"""Names of cards, codes and levels: what is the same is found to be the same, what is not known is not guessed."""

import pytest

from motor_ft.model.hardware import (
    Card,
    FaultLevel,
    HardwareFault,
    canonical_code,
    fault_key,
    parse_card,
    parse_cards,
)


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("Ascend910-3", Card(3)),
        ("Ascend310P-3", Card(3)),
        ("npu-15", Card(15)),
        ("foo-3", Card(3)),
        (" Ascend910-3 ", Card(3)),
        ("3", Card(3)),
        ("Ascend910-2c-100-0", Card(0, "100")),
        ("Ascend310P-4c.3cpu-100-1", Card(1, "100")),
        ("Ascend910-5c.1cpu.16g-180-5", Card(5, "180")),
        ("Ascend310P-V-0", Card(0)),
        ("Ascend310P-VPro-1", Card(1)),
        ("Ascend310P-IPro-2", Card(2)),
        ("Ascend310P-0-99", Card(0)),
        *((name, None) for name in ("switch0", "-1", "", "Ascend910", "Ascend910-", "npu-x", "2c", "a-b-c-d", "n-1")),
    ],
)
def test_a_card_is_read_by_the_format_of_its_name(name: str, card: Card | None) -> None:
    assert parse_card(name) == card


def test_a_list_is_read_whole_or_not_at_all() -> None:
    assert parse_cards("Ascend910-0, npu-2") == frozenset({Card(0), Card(2)})
    assert parse_cards("Ascend910-0,switch0") is None
    assert parse_cards("") is None


def test_annotations_and_rank_tables_name_cards_by_the_numbers_that_names_carry() -> None:
    """`huawei.com/AscendReal` of a pod beside the device ids of its rank table: text before v2.0, numbers since."""
    real = "Ascend910-4,Ascend910-5"
    assert parse_cards(real) == frozenset(Card(int(device_id)) for device_id in ("4", "5"))
    assert [parse_card(device_id) for device_id in ("4", str(5))] == [Card(4), Card(5)]


def test_two_slices_of_a_card_do_not_touch() -> None:
    whole, one, other = Card(0), Card(0, "100"), Card(0, "101")
    assert whole.touches(one)
    assert one.touches(whole)
    assert one.touches(one)
    assert not one.touches(other)
    assert not whole.touches(Card(1))


@pytest.mark.parametrize(
    ("code", "same_as"),
    [("00000011", "11"), ("0x1001", "1001"), ("80e18402", "80E18402"), ("020001002", "20001002"), (" 11 ", "11")],
)
def test_codes_are_the_same_however_they_are_written(code: str, same_as: str) -> None:
    assert canonical_code(code) == canonical_code(same_as)


def test_a_code_of_zeros_is_not_an_absent_code() -> None:
    assert canonical_code("00000000") == "0"
    assert canonical_code("") == ""


def test_codes_of_nine_digits_stay_text() -> None:
    assert canonical_code("110001024") == "110001024"


def test_a_fault_is_the_same_under_every_name_of_its_card_and_another_one_on_another_card() -> None:
    one = HardwareFault("node-a", "Ascend910-4", "80E18402", FaultLevel.L6)
    assert one.key == fault_key("node-a", "npu-4", "080e18402")
    for other in (("node-b", "npu-4"), ("node-a", "npu-5"), ("node-a", ""), ("node-a", "Ascend910-2c-100-4")):
        assert one.key != fault_key(*other, "80E18402")


def test_levels_are_ordered_and_an_unknown_one_acts_as_the_lowest() -> None:
    assert [level.severity for level in FaultLevel] == [1, 2, 3, 4, 5, 6, 1]
