"""Hardware faults: levels, names of cards, when two are the same (RFC section 4.2, recovery.md section 7)."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class FaultLevel(StrEnum):
    """How grave a fault is. ``UNKNOWN``: the cluster uses a name that we do not know; it is shown and acts as L1."""

    L1 = "L1"
    L2 = "L2"
    L3 = "L3"
    L4 = "L4"
    L5 = "L5"
    L6 = "L6"
    UNKNOWN = "unknown"

    def __init__(self, name: str) -> None:
        self.severity = int(name[1:]) if name.startswith("L") else 1
        """1 to 6; larger is graver."""


class Card(NamedTuple):
    """One accelerator of a node by its physical number, or one virtual slice of it."""

    number: int
    slice: str = ""

    def touches(self, other: "Card") -> bool:
        """A fault of the one is a fault of the other: the same card, and not two different slices of it."""
        return self.number == other.number and (not self.slice or not other.slice or self.slice == other.slice)


_PREFIX = r"[A-Za-z][A-Za-z0-9_]{1,15}"
_CARD_NAMES = (
    re.compile(rf"(?:{_PREFIX}-)?(?P<number>\d{{1,9}})"),
    re.compile(rf"{_PREFIX}-\d+c(?:\.\w+)*-(?P<slice>\d+)-(?P<number>\d{{1,9}})"),
    re.compile(rf"{_PREFIX}-(?:V|VPro|IPro)-(?P<number>\d{{1,9}})"),
    re.compile(rf"{_PREFIX}-(?P<number>\d{{1,9}})-\d+"),
)
"""``Ascend910-3`` or ``3``; virtual ``Ascend910-2c-100-0``; mixed insertion ``Ascend310P-VPro-0``; shared
``Ascend310P-0-99`` (card, index)."""


def parse_card(name: str) -> Card | None:
    """Read the name of one card; None for a format that is not known, because a number in it may mean anything."""
    for pattern in _CARD_NAMES:
        if found := pattern.fullmatch(name.strip()):
            groups = found.groupdict()
            return Card(int(groups["number"]), groups.get("slice") or "")
    return None


def parse_cards(names: str) -> frozenset[Card] | None:
    """Read a comma-separated list of cards; None unless it names at least one, and every one in a known format."""
    cards = [parse_card(name) for name in names.split(",") if name.strip()]
    known = frozenset(card for card in cards if card is not None)
    return known if known and None not in cards else None


def canonical_code(code: str) -> str:
    """Return the form in which codes are compared: upper case, without ``0x`` and leading zeros."""
    upper = code.strip().upper()
    return upper.removeprefix("0X").lstrip("0") or upper[-1:]


class FaultKey(NamedTuple):
    """Identity of a fault, whoever names its card or code in whichever way."""

    node: str
    cards: str
    code: str
    unit: str
    port: str


def fault_key(node: str, npu_name: str, code: str, unit: str = "", port: str = "") -> FaultKey:
    """Return the identity of a fault: the same code on two cards are two faults (RFC section 4.2)."""
    cards = parse_cards(npu_name)
    name = npu_name.strip() if cards is None else ",".join(f"{card.number}.{card.slice}" for card in sorted(cards))
    return FaultKey(node, name, canonical_code(code), unit, port)


@dataclass(frozen=True, slots=True)
class HardwareFault:
    """One fault of a card, or of a whole node when ``npu_name`` is empty.

    ``unit`` and ``port`` tell apart faults of the same code inside a node: chip and port of a switch, or the number
    that the node's management controller gives a device. ``level_inferred``: the cluster stated none, so it was taken
    from a coarser state. ``stale``: no source that works confirms the fault now. ``first_seen`` is in seconds since
    the epoch, for people; ``age_sec`` runs on the reporter's clock since the reporter first had the fault.
    ``occurrence`` is another one after the fault has ended and returned, within one start of the reporter; 0 when the
    reporter does not count.
    """

    node: str
    npu_name: str
    fault_code: str
    level: FaultLevel
    raw_level: str = ""
    level_inferred: bool = False
    fault_type: str = ""
    unit: str = ""
    port: str = ""
    node_ip: str = ""
    sources: tuple[str, ...] = ()
    stale: bool = False
    detail: str = ""
    first_seen: float = 0.0
    occurrence: int = 0
    age_sec: float = field(default=0.0, compare=False)

    @property
    def key(self) -> FaultKey:
        """Identity: a fault whose level changes stays the same fault."""
        return fault_key(self.node, self.npu_name, self.fault_code, self.unit, self.port)


@dataclass(frozen=True, slots=True)
class SourceState:
    """Whether a source of hardware faults works; ``node`` is empty for the source as a whole.

    While ``problem`` is not empty the source's faults are kept, and nothing that it does not report is healthy.
    """

    source: str
    node: str
    problem: str
