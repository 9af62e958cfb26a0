"""Levels and times as MindCluster writes them."""

import pytest

from gateway.mindcluster.core.vocabulary import (
    PayloadError,
    as_object,
    decode,
    is_health_flag,
    level_of,
    names_of,
    read_time,
    text_of,
)
from motor_ft.model.hardware import FaultLevel
from tests.support.mindcluster import NOW


@pytest.mark.parametrize(
    ("names", "level"),
    [
        (["NotHandleFault", "NotHandle", "SubHealthFault"], FaultLevel.L1),
        (["RestartRequest"], FaultLevel.L2),
        (["RestartBusiness"], FaultLevel.L3),
        (["FreeRestartNPU"], FaultLevel.L4),
        (["RestartNPU"], FaultLevel.L5),
        (["PreSeparateNPU", "PreSeparate", "PreSeparateFault"], FaultLevel.L6),
        (["SeparateNPU", "Separate", "SeparateFault", "ResetFault", "ManuallySeparateNPU"], FaultLevel.L6),
        (["", "Melted", "separatenpu"], FaultLevel.UNKNOWN),
    ],
)
def test_every_name_has_its_level_and_others_are_unknown(names: list[str], level: FaultLevel) -> None:
    assert {level_of(name) for name in names} == {level}


def test_a_health_flag_is_neither_a_fault_nor_an_unknown_level() -> None:
    """Healthy members of a ring carry one during a hot reset."""
    assert is_health_flag("NormalNPU", "")
    assert is_health_flag("NormalNetwork", "81078603")
    assert is_health_flag("", "")
    assert not is_health_flag("", "80E18402")
    assert not is_health_flag("SeparateNPU", "")


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (1_744_168_468_259, 1_744_168_468.259),
        (" 1744168468260 ", 1_744_168_468.26),
        (1_234_567_890, 1_234_567_890.0),
        (1_744_168_468_259.0, 1_744_168_468.259),
        (0, None),
        (-1, None),
        (100_000, None),
        (None, None),
        ("", None),
        ("soon", None),
        ("9" * 5000, None),
        ("9" * 400, None),
        (True, None),
        ([], None),
        (1e9 - 1, None),
        (NOW + 86_400, NOW + 86_400),
        (NOW + 86_401, None),
        ((NOW + 86_401) * 1000, None),
    ],
)
def test_times_are_ms_or_s_and_what_cannot_be_is_not_told(written: object, seconds: float | None) -> None:
    assert read_time(written, NOW) == seconds


def test_names_come_in_text_or_arrays_with_stray_spaces() -> None:
    assert names_of(" Ascend910-0, Ascend910-2,") == ("Ascend910-0", "Ascend910-2")
    assert names_of(["npu-1 ", None, 2]) == ("npu-1", "2")
    assert names_of(None) == names_of("") == ()
    with pytest.raises(PayloadError):
        names_of({"npu-1": 1})


def test_however_deeply_a_value_is_nested_it_is_shown_in_a_few_characters() -> None:
    deep = decode("[" * 1000 + "]" * 1000, "it")
    with pytest.raises(PayloadError, match="it must be an object"):
        as_object(deep, "it")
    assert len(text_of(deep)) < 100
