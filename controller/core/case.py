"""What a strategy is built from: the same for all of them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from controller.core.ports import Runtime, Strategy
from controller.core.transaction import Spec


@dataclass(frozen=True, slots=True)
class Case:
    """One decision to act on one instance.

    ``spec`` has its identity, its pods, its ranks and the evidence, frozen at the decision; ``replaced`` returns when a
    newer instance of the job is READY. ``stoppable`` are the addresses of pods that have lost others, and are there.
    """

    spec: Spec
    reason: str
    runtime: Runtime
    replaced: Callable[[], Awaitable[object]]
    stoppable: tuple[str, ...] = ()


Builder = Callable[[Case], Strategy]
