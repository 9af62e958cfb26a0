"""A configuration that cannot be used names file, key path and what is wrong."""

from pathlib import Path
from typing import Literal

import msgspec
import pytest

from motor_ft.model.topology import Role
from motor_ft.wire.config import ConfigError, check, load

ROLES = ", ".join(repr(str(role)) for role in Role)


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    request_sec: float = 5.0
    engine_sec: float = 4.0

    def __post_init__(self) -> None:
        check(self.engine_sec < self.request_sec, "engine_sec", f"{self.engine_sec} is not below {self.request_sec}")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kinds: tuple[Literal["a", "b"], ...] = ()


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int = 1


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    timeouts: Timeouts = Timeouts()
    ports: list[int] = []
    kinds: tuple[Literal["a", "b"], ...] = ()
    role: Role = Role.UNION
    section: Section | None = None
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        check(self.name != "bad", "name", "is bad")


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.toml", 'name = "x"\n[timeouts]\nrequest_sec = 9.0'), ("a.json", '{"name":"x","timeouts":{"request_sec":9}}')],
)
def test_toml_and_json_read_the_same(tmp_path: Path, name: str, text: str) -> None:
    assert load(write(tmp_path, name, text), Config) == Config("x", Timeouts(request_sec=9.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "name: is missing"),
        ('{"name":"x","colour":1}', "colour: unknown key"),
        ('{"name":"x","nam":1}', "nam: unknown key; did you mean name?"),
        ('{"name":"x","engine_sec":1}', "engine_sec: unknown key; did you mean timeouts.engine_sec?"),
        ('{"name":"x","section":{"kind":["a"]}}', "section.kind: unknown key; did you mean kinds?"),
        ('{"name":"x","parts":[{"sise":1}]}', "parts[0].sise: unknown key; did you mean size?"),
        ('{"name":"x","":1}', "'': unknown key"),
        ('{"name":"x","timeouts":{"foo":1}}', "timeouts.foo: unknown key"),
        ('{"name":1}', "name: expected `str`, got `int`"),
        ('{"name":"x","timeouts":{"engine_sec":"4"}}', "timeouts.engine_sec: expected `float`, got `str`"),
        ('{"name":"x","ports":[1,"2"]}', "ports[1]: expected `int`, got `str`"),
        ('{"name":"x","timeouts":{"engine_sec":6}}', "timeouts.engine_sec: 6.0 is not below 5.0"),
        ('{"name":"bad"}', "name: is bad"),
        ('{"name":"x","kinds":["a","c"]}', "kinds[1]: invalid enum value 'c', must be one of 'a', 'b'"),
        ('{"name":"x","section":{"kinds":["c"]}}', "section.kinds[0]: invalid enum value 'c', must be one of 'a', 'b'"),
        ('{"name":"x","role":"r"}', f"role: invalid enum value 'r', must be one of {ROLES}"),
        ("[]", "Expected `object`, got `array`"),
    ],
)
def test_a_wrong_key_is_named_with_its_path(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, "a.json", text)
    with pytest.raises(ConfigError) as refused:
        load(path, Config)
    assert str(refused.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "not valid JSON"),
        ("a.toml", "name = \n", "not valid TOML"),
        ("a.yaml", "name: x", "must end in .toml or .json"),
    ],
)
def test_a_file_that_is_not_what_it_seems_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(ConfigError) as refused:
        load(path, Config)
    assert str(refused.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_a_file_that_is_not_utf8_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b'{"name": "\xff"}')
    with pytest.raises(ConfigError, match="not valid"):
        load(path, Config)


@pytest.mark.parametrize("value", [5000 * "9", 5000 * "["], ids=["too long", "too deep"])
def test_a_file_with_a_value_that_no_decoder_takes_is_named(tmp_path: Path, value: str) -> None:
    path = write(tmp_path, "a.toml", f"name = {value}")
    with pytest.raises(ConfigError) as refused:
        load(path, Config)
    assert str(refused.value).startswith(f"{path}: not valid TOML: ")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone.toml: cannot read it: No such file"):
        load(tmp_path / "gone.toml", Config)
