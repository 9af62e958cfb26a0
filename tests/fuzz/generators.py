"""Whatever somebody may send: JSON values, and damage to good ones."""

import copy
import json
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

EXAMPLES = 40
T = TypeVar("T")
E = TypeVar("E", bound=Exception)


def fuzz(factor: float = 1.0) -> settings:
    """Settings of one test: the same examples in every run, on one server that all of them meet.

    They are small, so what fails is shown as it is: to search for something smaller takes minutes.
    """
    return settings(
        max_examples=round(EXAMPLES * factor),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[*HealthCheck],
    )


NUMBERS = st.sampled_from([0, 1, 2, -1, 3, 65535, 65536, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**30, 0.5, -0.0, 1e300])
LONG = ["9" * 5000, "x" * 70_000]
TEXTS = st.sampled_from(["", "x", "0", "a,b", "é\u2028", "\0", "{", "[]", *LONG]) | st.text(max_size=8)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES: SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)
"""Any JSON value."""


def attempt(what: Callable[[], T], refusal: type[E]) -> T | E:
    """What comes of it: a result or this refusal."""
    try:
        return what()
    except refusal as error:
        return error


def encoded(value: Any) -> bytes:
    """JSON text."""
    return json.dumps(value).encode()


Slot = tuple[MutableMapping[str, Any] | MutableSequence[Any], Any]


def slots(tree: Any) -> Iterator[Slot]:
    """Every container in a JSON value with every key or index of it."""
    if isinstance(tree, MutableMapping | MutableSequence):
        keys = list(tree) if isinstance(tree, MutableMapping) else range(len(tree))
        for key in keys:
            yield tree, key
            yield from slots(tree[key])


@st.composite
def damaged(draw: DrawFn, good: Any, values: SearchStrategy[Any] = VALUES) -> Any:
    """A good JSON object in which up to three things were replaced, removed, doubled or added."""
    tree = {"": copy.deepcopy(good)}
    for _ in range(draw(st.integers(0, 3))):
        place, key = draw(st.sampled_from(list(slots(tree))))
        match draw(st.sampled_from(["replace", "replace", "remove", "add", "double"])):
            case "remove" if place is not tree:
                del place[key]
            case "add" if isinstance(place[key], MutableMapping):
                place[key][draw(TEXTS)] = draw(values)
            case "double" if isinstance(place, MutableSequence):
                place.insert(key, copy.deepcopy(place[key]))
            case "replace" if place is not tree:
                place[key] = draw(_like(place[key]) | values)
    return tree[""]


def _like(value: object) -> SearchStrategy[Any]:
    """Another value of the same kind gets further."""
    return NUMBERS if isinstance(value, int | float) else TEXTS if isinstance(value, str) else VALUES


@st.composite
def spoilt(draw: DrawFn, good: bytes) -> bytes:
    """Good bytes of which a stretch is gone, or is something else."""
    start = draw(st.integers(0, len(good)))
    end = draw(st.integers(start, min(len(good), start + 20)))
    return good[:start] + draw(st.binary(max_size=6) | st.sampled_from([b"", b"[" * 3000, b"9" * 5000])) + good[end:]
