"""The ConfigMap that the device plugin of a node writes (mindcluster.md section 2)."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

import orjson

from gateway.mindcluster.core.fault_list import card_numbers, read_device_list
from gateway.mindcluster.core.observed import Observed, Reading, problems
from gateway.mindcluster.core.vocabulary import (
    MANUALLY_SEPARATED,
    PayloadError,
    as_list,
    as_object,
    decode_object,
    level_of,
    names_of,
    read_time,
    text_of,
)
from motor_ft.model.hardware import canonical_code, parse_card

_NO_FAULT_KEY = "no list of faults in DeviceList: the plugin has just started, or a simulator wrote it"


class CheckCode(StrEnum):
    """What a wrong or missing checksum means: ``WARN`` adds and raises faults but clears none, ``REJECT`` changes
    nothing, ``IGNORE`` is for simulators that write none."""

    WARN = "warn"
    REJECT = "reject"
    IGNORE = "ignore"


def read_device(data: Mapping[str, str], node: str, now: float, check: CheckCode = CheckCode.WARN) -> Reading:
    """Read the data of ``mindx-dl-deviceinfo-<node>`` apart from the switch; ``now`` in seconds since the epoch."""
    manual, held, bad = _read_manual(data, node, now)
    try:
        config = decode_object(data.get("DeviceInfoCfg") or "{}", "DeviceInfoCfg")
        if not config:
            raise PayloadError("DeviceInfoCfg is missing")
        info = as_object(config.get("DeviceInfo"), "DeviceInfo")
        wrong = check is not CheckCode.IGNORE and not _checked(info, text_of(config.get("CheckCode")))
        if wrong and check is CheckCode.REJECT:
            return Reading(problem="CheckCode is wrong")
        update_time = info.get("UpdateTime", config.get("UpdateTime"))
        reading = read_devices(info, update_time, node, now)
    except PayloadError as error:
        return Reading(manual, held=held, problem=problems([str(error), *bad]))
    reasons = _read_reasons(data, bad)
    return replace(
        reading,
        faults=(*(_explained(fault, reasons) for fault in reading.faults), *manual),
        complete=reading.complete and not wrong and not bad,
        held=reading.held | held,
        problem=problems([reading.problem, "CheckCode is wrong" if wrong else "", *bad]),
    )


def read_devices(info: Mapping[str, object], update_time: object, node: str, now: float) -> Reading:
    """Read an object with a ``DeviceList``; raises PayloadError when it has none."""
    listed = read_device_list(as_object(info.get("DeviceList"), "DeviceList"), node, now)
    return Reading(
        listed.faults,
        complete=listed.has_fault_key and not listed.problems,
        held=listed.recovering,
        update_time=read_time(update_time, now),
        problem=problems([*listed.problems, "" if listed.has_fault_key else _NO_FAULT_KEY]),
    )


def manually_separated(node: str, npu_name: str, since: float | None = None, detail: str = "") -> Observed:
    """Return the fault of a card that stays isolated until somebody releases it."""
    level = level_of(MANUALLY_SEPARATED)
    return Observed(node, npu_name, MANUALLY_SEPARATED, level, MANUALLY_SEPARATED, since=since, detail=detail)


def _read_manual(
    data: Mapping[str, str], node: str, now: float
) -> tuple[tuple[Observed, ...], frozenset[int], list[str]]:
    """Cards that stay isolated even when their faults are gone, with the reasons that are told."""
    names = names_of(data.get(MANUALLY_SEPARATED))
    held, bad = card_numbers(data.get(MANUALLY_SEPARATED), MANUALLY_SEPARATED)
    reasons = _read_reasons(data, [])
    faults = []
    for name in names:
        card = parse_card(name)
        told = {code: why for (number, code), why in reasons.items() if card and number == card.number}
        times = [time for _, raw in told.values() if (time := read_time(raw, now)) is not None]
        detail = ", ".join(f"{code}: {why}" for code, (why, _) in sorted(told.items()))
        faults.append(manually_separated(node, name, min(times, default=None), detail))
    return tuple(faults), held, bad


def _read_reasons(data: Mapping[str, str], bad: list[str]) -> dict[tuple[int, str], tuple[str, object]]:
    """Why and when a level was raised, by card number and canonical code."""
    reasons: dict[tuple[int, str], tuple[str, object]] = {}
    try:
        for name, entries in decode_object(data.get("UpgradeFaultReason") or "{}", "UpgradeFaultReason").items():
            for entry in as_list(entries, "UpgradeFaultReason"):
                fields, card = as_object(entry, "UpgradeFaultReason"), parse_card(name)
                if card is not None:
                    code = canonical_code(text_of(fields.get("fault_code")))
                    reasons[card.number, code] = (text_of(fields.get("upgrade_type")), fields.get("upgrade_time"))
    except PayloadError as error:
        bad.append(str(error))
    return reasons


def _explained(fault: Observed, reasons: Mapping[tuple[int, str], tuple[str, object]]) -> Observed:
    card = parse_card(fault.npu_name)
    why, _ = reasons.get((card.number, canonical_code(fault.code)), ("", None)) if card else ("", None)
    return replace(fault, detail=f"level raised: {why}") if why else fault


def _checked(info: Mapping[str, object], check_code: str) -> bool:
    """SHA-256 over the compact JSON of the object as Go writes it."""
    content = {key: info[key] for key in ("DeviceList", "UpdateTime") if key in info}
    try:
        text = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # nested deeper than anything that the plugin writes
        return False
    for character in "<>&\u2028\u2029":
        text = text.replace(character.encode(), f"\\u{ord(character):04x}".encode())
    return hashlib.sha256(text).hexdigest() == check_code.lower()
