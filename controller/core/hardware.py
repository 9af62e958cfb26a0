"""Which DP ranks a hardware fault concerns, and how grave it is for them (recovery.md section 7, RFC section 4.2)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from motor_ft.model.hardware import Card, FaultLevel, HardwareFault, canonical_code, parse_card, parse_cards
from motor_ft.model.topology import Endpoint, Registration

LINK_DOWN = canonical_code("81078603")
"""Network link of a card down. Real on 800I-A2; on the generations after it the same code is noise."""

_PRE_SEPARATE = frozenset({"PreSeparateNPU", "PreSeparate", "PreSeparateFault"})
_NOISY_LINKS = ("A3", "A5")
_GENERATION = re.compile(r"(?:[^-]+-)*(A[1235])(?:-[^-]+)*", re.IGNORECASE)


class LinkDown(StrEnum):
    """Whether ``LINK_DOWN`` counts; ``AUTO`` says no only for hardware that is known to report it without cause."""

    AUTO = "auto"
    COUNT = "count"
    IGNORE = "ignore"


class PreSeparate(StrEnum):
    """What "isolate after the current work" means: ``SOFT`` is L2 while the node works, ``HARD`` always L6."""

    SOFT = "soft"
    HARD = "hard"


@dataclass(frozen=True, slots=True)
class HardwarePolicy:
    """Levels that depend on the hardware and on taste; ``hardware_type`` e.g. ``800I-A3``, empty when not known."""

    hardware_type: str = ""
    link_down: LinkDown = LinkDown.AUTO
    pre_separate: PreSeparate = PreSeparate.SOFT
    transient_codes: frozenset[str] = frozenset(map(canonical_code, ("0x00F1FEF5", "0x08520003")))
    """Canonical codes of faults that clear by themselves while the engines repeat a few tokens; of level L2 only."""

    @property
    def link_down_counts(self) -> bool:
        """``LINK_DOWN`` has the level that the cluster gives it."""
        if self.link_down is LinkDown.AUTO:
            return generation(self.hardware_type) not in _NOISY_LINKS
        return self.link_down is LinkDown.COUNT


def generation(hardware_type: str) -> str:
    """``A2`` of ``800I-A2`` or ``800I-A2-32G``; empty when it names none that is known (mindcluster.md section 8)."""
    found = _GENERATION.fullmatch(hardware_type)
    return found[1].upper() if found else ""


def effective_level(fault: HardwareFault, policy: HardwarePolicy, *, working: bool) -> FaultLevel:
    """Level to decide on; ``working``: an instance that starts or serves has pods on the node."""
    if is_link_down(fault) and not policy.link_down_counts:
        return FaultLevel.L1
    if fault.raw_level in _PRE_SEPARATE and working and policy.pre_separate is PreSeparate.SOFT:
        return FaultLevel.L2
    return fault.level


def is_link_down(fault: HardwareFault) -> bool:
    """A card has lost its network."""
    return canonical_code(fault.fault_code) == LINK_DOWN


def is_transient(fault: HardwareFault, level: FaultLevel, policy: HardwarePolicy) -> bool:
    """The fault clears by itself; a switch's code ``[alarm,fault,peer,...]`` is also known by its alarm."""
    alarm = fault.fault_code.strip("[ ]").split(",")[0]
    codes = {canonical_code(fault.fault_code), canonical_code(alarm)}
    return level is FaultLevel.L2 and not codes.isdisjoint(policy.transient_codes)


def map_fault(fault: HardwareFault, pods: Iterable[Registration]) -> frozenset[int] | None:
    """Original DP ranks of one instance, whose ``pods`` these are, that the fault concerns; headless ones included.

    Empty: the fault does not touch this instance. None: unmappable, because it is on a node of the instance and the
    format of its card's name is not known, or it may be the card of an endpoint whose cards are not known.
    """
    endpoints = [endpoint for pod in pods if _on_node(pod, fault) for endpoint in pod.endpoints]
    if not fault.npu_name.strip():
        return frozenset(endpoint.rank for endpoint in endpoints)
    cards = parse_cards(fault.npu_name)
    if cards is None:
        return None if endpoints else frozenset()
    ranks: set[int] = set()
    for card in cards:
        owners = {endpoint.rank for endpoint in endpoints if _uses(endpoint, card)}
        if not owners and any(_cards(endpoint) is None for endpoint in endpoints):
            return None
        ranks |= owners
    return frozenset(ranks)


def _on_node(pod: Registration, fault: HardwareFault) -> bool:
    """A pod may name its node by name or by address."""
    return bool(pod.node_name) and pod.node_name in (fault.node, fault.node_ip)


def _uses(endpoint: Endpoint, card: Card) -> bool:
    return any(own.touches(card) for device in endpoint.devices if (own := parse_card(device.device_id)))


def _cards(endpoint: Endpoint) -> frozenset[Card] | None:
    """The endpoint's cards; None when they are not all known."""
    return parse_cards(",".join(device.device_id for device in endpoint.devices))
