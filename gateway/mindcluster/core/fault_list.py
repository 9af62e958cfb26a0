"""Entries of ``<resource>-Fault``, and the names-only lists beside them (mindcluster.md section 2.3)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from gateway.mindcluster.core.observed import Observed
from gateway.mindcluster.core.vocabulary import (
    MANUALLY_SEPARATED,
    PayloadError,
    as_list,
    as_object,
    decode,
    is_health_flag,
    level_of,
    names_of,
    read_time,
    shown,
    text_of,
)
from motor_ft.model.hardware import canonical_code, parse_card

MAX_FAULTS = 1024
"""Of one node; an entry may name many cards and many codes."""
_LEVEL_FIELDS = ("fault_handling", "fault_level", "large_model_fault_level")


@dataclass(frozen=True, slots=True)
class DeviceList:
    """All of a node's device list. ``recovering`` are the numbers of cards in a hot reset."""

    faults: tuple[Observed, ...]
    recovering: frozenset[int]
    has_fault_key: bool
    problems: tuple[str, ...]


def read_device_list(devices: Mapping[str, object], node: str, now: float) -> DeviceList:
    """Read a device list by the suffixes of its keys, whatever the resource is called; good entries are never lost."""
    faults: list[Observed] = []
    recovering: set[int] = set()
    problems: list[str] = []
    has_fault_key = False
    for key, value in devices.items():
        if key.endswith("-Fault"):
            has_fault_key = True
            found, bad = read_fault_list(value, key, node, now, room=MAX_FAULTS - len(faults))
            faults += found
            problems += bad
        elif key.endswith("-Recovering"):
            numbers, bad = card_numbers(value, key)
            recovering |= numbers
            problems += bad
    return DeviceList(tuple(faults), frozenset(recovering), has_fault_key, tuple(problems))


def read_fault_list(value: object, what: str, node: str, now: float, room: int) -> tuple[list[Observed], list[str]]:
    """Read a list of entries, an array or the text of one; returns ``room`` faults at most and what was not read."""
    faults: list[Observed] = []
    problems: list[str] = []
    try:
        entries = as_list(decode(value or "[]", what), what)
    except PayloadError as error:
        return [], [str(error)]
    for index, entry in enumerate(entries):
        try:
            found = _read_entry(as_object(entry, f"{what}[{index}]"), node, now, problems)
            faults += islice(found, room - len(faults))
            if next(found, None) is not None:
                return faults, [*problems, f"{what}: a node has more than {MAX_FAULTS} faults"]
        except PayloadError as error:
            problems.append(str(error))
    return faults, problems


def card_numbers(value: object, what: str) -> tuple[frozenset[int], list[str]]:
    """Read a list of names as card numbers; a name in an unknown format is a problem."""
    try:
        names = names_of(value)
    except PayloadError as error:
        return frozenset(), [f"{what}: {error}"]
    cards = {name: parse_card(name) for name in names}
    bad = [f"{what}: unknown card name {name!r:.80}" for name, card in cards.items() if card is None]
    return frozenset(card.number for card in cards.values() if card is not None), bad


def _read_entry(entry: Mapping[str, object], node: str, now: float, problems: list[str]) -> Iterator[Observed]:
    """One fault per card and code, each with its own level where the entry states it."""
    names = names_of(entry.get("npu_name"))
    if not names:
        raise PayloadError(f"entry without npu_name: {shown(entry, 120)}")
    entry_level = next(filter(None, (text_of(entry.get(name)) for name in _LEVEL_FIELDS)), "")
    details = _read_details(entry, problems)
    codes = {canonical_code(code): code for code in names_of(entry.get("fault_code"))}
    codes |= {canonical_code(code): code for code in details if canonical_code(code) not in codes}
    if not codes:
        codes = {"": MANUALLY_SEPARATED if entry_level == MANUALLY_SEPARATED else ""}
    by_code = {canonical_code(code): detail for code, detail in details.items()}
    for name in names:
        for canonical, code in codes.items():
            raw_level, time = by_code.get(canonical, ("", None))
            raw_level = raw_level or entry_level
            if not is_health_flag(raw_level, code):
                yield Observed(
                    node,
                    name,
                    code,
                    level_of(raw_level),
                    raw_level,
                    fault_type=text_of(entry.get("fault_type")),
                    since=read_time(time, now),
                )


def _read_details(entry: Mapping[str, object], problems: list[str]) -> dict[str, tuple[str, object]]:
    """Level name (empty when not stated) and time by code; the map of 6.0.RC3 has times only."""
    details: dict[str, tuple[str, object]] = {}
    for field in ("fault_time_map", "fault_time_and_level_map"):
        try:
            for code, detail in as_object(entry.get(field) or {}, field).items():
                if isinstance(detail, dict):
                    details[code] = (text_of(detail.get("fault_level")), detail.get("fault_time"))
                else:
                    details[code] = ("", detail)
        except PayloadError as error:
            problems.append(f"entry of {text_of(entry.get('npu_name'))}: {error}")
    return details
