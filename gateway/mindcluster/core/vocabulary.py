"""MindCluster's words: level names, times, and JSON that may be anything."""

import reprlib
from collections.abc import Mapping

import orjson

from motor_ft.model.hardware import FaultLevel

MANUALLY_SEPARATED = "ManuallySeparateNPU"
"""A level, and the code of an isolation that no code explains."""
NODE_NOT_READY = "0x0000001"
"""Code of a node that is not Ready, which the cluster itself gives none."""

_L1, _L2, _L3, _L4, _L5, _L6, _ = FaultLevel
_LEVELS = {
    "NotHandleFault": _L1,
    "NotHandle": _L1,
    "SubHealthFault": _L1,
    "RestartRequest": _L2,
    "RestartBusiness": _L3,
    "FreeRestartNPU": _L4,
    "RestartNPU": _L5,
    "PreSeparateNPU": _L6,
    "PreSeparate": _L6,
    "PreSeparateFault": _L6,
    "SeparateNPU": _L6,
    "Separate": _L6,
    "SeparateFault": _L6,
    "ResetFault": _L6,
    MANUALLY_SEPARATED: _L6,
}
_NO_FAULT = frozenset({"NormalNPU", "NormalNetwork"})
_DAY_SEC = 86_400.0
_MAX_TIME_LENGTH = 20
EARLIEST = 1e9
"""Seconds since the epoch; times before that are those of clocks and fields that were never set."""


class PayloadError(Exception):
    """A payload, or a part of one, that is not what MindCluster writes."""


def level_of(raw: str) -> FaultLevel:
    """Return the level of a name; what is in no table is kept as UNKNOWN. The level in the message always wins."""
    return _LEVELS.get(raw, FaultLevel.UNKNOWN)


def is_health_flag(raw_level: str, code: str) -> bool:
    """Return whether an entry says that its card is healthy, as for the members of a ring that is being reset."""
    return raw_level in _NO_FAULT or (not raw_level and not code)


def read_time(value: object, now: float) -> float | None:
    """Return seconds since the epoch from a number in ms or s; None for 0, -1 and other times that cannot be."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < _MAX_TIME_LENGTH:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < EARLIEST:
        return None
    seconds = value / 1000 if value >= 1e12 else float(value)
    return seconds if seconds <= now + _DAY_SEC else None


def text_of(value: object) -> str:
    """Return the text of a field that may be missing, null or a number."""
    if value is None or isinstance(value, bool):
        return ""
    return str(value).strip() if isinstance(value, str | int | float) else shown(value)


def shown(value: object, length: int = 80) -> str:
    """Return what a value is for people: not too long, and however deeply it is nested."""
    return reprlib.repr(value)[:length]


def names_of(value: object) -> tuple[str, ...]:
    """Return the names of a comma-separated list, or of an array of strings; raises PayloadError."""
    if value is None or isinstance(value, str):
        items: list[object] = list((value or "").split(","))
    elif isinstance(value, list):
        items = list(value)
    else:
        raise PayloadError(f"must be a list of names, not {shown(value)}")
    return tuple(name for item in items if (name := text_of(item)))


def decode(value: object, what: str) -> object:
    """Return what JSON text stands for, and anything else as it is: producers differ; raises PayloadError."""
    if not isinstance(value, str):
        return value
    try:
        decoded: object = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise PayloadError(f"{what} is not JSON: {error}") from None
    return decoded


def decode_object(value: object, what: str) -> Mapping[str, object]:
    """Like ``decode``, for objects."""
    return as_object(decode(value, what), what)


def as_object(value: object, what: str) -> Mapping[str, object]:
    """Return ``value``; raises PayloadError unless it is an object."""
    if not isinstance(value, dict):
        raise PayloadError(f"{what} must be an object, not {shown(value)}")
    return value


def as_list(value: object, what: str) -> list[object]:
    """Return ``value``, null as empty; raises PayloadError unless it is an array."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise PayloadError(f"{what} must be an array, not {shown(value)}")
    return value
