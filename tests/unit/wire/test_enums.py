"""Both sides of every enum have the same members."""

from enum import StrEnum

import pytest

from motor_ft.model.errors import FieldError
from motor_ft.v1 import common_pb2
from motor_ft.wire import enums

MAPS = {name: value for name, value in vars(enums).items() if isinstance(value, enums.EnumMap)}


@pytest.mark.parametrize("name", MAPS)
def test_every_member_comes_back_equal(name: str) -> None:
    both = MAPS[name]
    for value in range(1, 10):
        try:
            member = both.from_pb(value, "field")
        except FieldError:
            continue
        assert both.to_pb(member) == value


def test_a_member_that_only_the_wire_has_is_found_at_import() -> None:
    class Role(StrEnum):
        PREFILL = "prefill"

    with pytest.raises(ValueError, match="ROLE_DECODE"):
        enums.EnumMap(Role, common_pb2.Role)


def test_a_member_that_only_the_model_has_is_found_at_import() -> None:
    class Role(StrEnum):
        ENCODE = "encode"

    with pytest.raises(ValueError, match="ROLE_ENCODE"):
        enums.EnumMap(Role, common_pb2.Role)
