"""Configuration files: read once at start, strictly."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import inspect

from motor_ft.wire.decoding import NOT_JSON

T = TypeVar("T", bound=msgspec.Struct)


class ConfigError(ValueError):
    """A configuration that cannot be used; the text names file, key path and what is wrong.

    A ValueError, so that one raised in ``__post_init__`` gets its key path from msgspec.
    """


def check(condition: bool, key: str, what: str) -> None:
    """Raise ConfigError for ``key`` unless ``condition`` holds; made for ``__post_init__``, ``key`` relative to it."""
    if not condition:
        raise ConfigError(f"{key}: {what}")


def numbered(key: str, values: Iterable[object]) -> dict[str, object]:
    """Return the values of a list by their key paths."""
    return {f"{key}[{number}]": value for number, value in enumerate(values)}


def check_once(values: Mapping[str, object]) -> None:
    """Raise ConfigError for a key whose value an earlier key has."""
    first: dict[object, str] = {}
    for key, value in values.items():
        other = first.setdefault(value, key)
        check(other == key, key, f"{value!r} is {other} already: each can be there once")


def load(path: Path, schema: type[T]) -> T:
    """Read a ``.toml`` or ``.json`` file into ``schema``, a frozen Struct with ``forbid_unknown_fields``.

    Raises ConfigError.
    """
    if path.suffix not in (".toml", ".json"):
        raise ConfigError(f"{path}: must end in .toml or .json")
    try:
        text = path.read_bytes()
        if path.suffix == ".toml":
            return msgspec.toml.decode(text, type=schema)
        return msgspec.json.decode(text, type=schema)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read it: {error.strerror}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_describe(str(error), schema)}") from error
    except (*NOT_JSON, ValueError) as error:  # the last for a number of TOML that is too long
        raise ConfigError(f"{path}: not valid {path.suffix[1:].upper()}: {error}") from error


def _describe(error: str, schema: type[msgspec.Struct]) -> str:
    """Put the key path first: ``Expected `int`, got `str` - at `$.store.size` `` → ``store.size: expected …``."""
    what, _, at = error.partition(" - at `$")
    path = at.rstrip("`").lstrip(".")
    if found := re.fullmatch(r"Object (contains unknown|missing required) field `(.*)`", what, re.DOTALL):
        problem = f"unknown key{_meant(schema, path, found[2])}" if "unknown" in found[1] else "is missing"
        return f"{path}.{found[2] or repr('')}: {problem}".lstrip(".")
    if not path:
        return what  # a check() of the outermost struct, or the file as a whole
    if found := re.match(r"[a-z_.\[\]0-9]+: ", what):
        return f"{path}.{what}"  # a check() of an inner struct
    if what.startswith("Invalid enum value") and (values := _values(schema, path)):
        what = f"{what}, must be one of {', '.join(map(repr, values))}"
    return f"{path}: {what[0].lower()}{what[1:]}"


def _meant(schema: type[msgspec.Struct], path: str, name: str) -> str:
    """A key that has this name in another section, or a similar one in the same."""
    keys = list(_keys(inspect.type_info(schema)))
    section = re.sub(r"\[\d+\]", "", path)
    here = [key.rpartition(".")[2] for key in keys if key.rpartition(".")[0] == section]
    meant = [key for key in keys if key.endswith(f".{name}")] or get_close_matches(name, here, n=1)
    return f"; did you mean {' or '.join(meant)}?" if meant else ""


def _keys(node: inspect.Type, at: str = "") -> Iterator[str]:
    """Key paths of the sections below ``node``, without the numbers of lists."""
    match node:
        case inspect.UnionType(types=inner):
            for each in inner:
                yield from _keys(each, at)
        case inspect.StructType(fields=fields):
            for field in fields:
                key = f"{at}.{field.encode_name}".lstrip(".")
                yield key
                yield from _keys(field.type, key)
        case inspect.CollectionType(item_type=item):
            yield from _keys(item, at)


def _values(schema: type[msgspec.Struct], path: str) -> Sequence[object]:
    """What the enum or the literal at ``path`` allows."""
    node = inspect.type_info(schema)
    for key in re.findall(r"[^.\[\]]+", path):
        if isinstance(node, inspect.UnionType):  # a section that may be left out
            node = node.types[0]
        if isinstance(node, inspect.StructType):
            node = next(field.type for field in node.fields if field.encode_name == key)
        elif isinstance(node, inspect.CollectionType):
            node = node.item_type
    match node:
        case inspect.EnumType():
            return [member.value for member in node.cls]
        case inspect.LiteralType():
            return node.values
        case _:
            return ()
