"""What a strategy is built from: the same for all of them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from controller.core.ports import Engines, Runtime, Strategy
from controller.core.transaction import Spec


@dataclass(frozen=True, slots=True)
class Case:
    """One decision to act on one instance.

    ``spec`` has its identity, its pods, its ranks and the evidence, frozen at the decision; ``replaced`` returns when a
    newer instance of the job is READY, ``recovered`` when no fault of this one is left. ``spare`` takes a prefill
    instance of the model out of service, unless that is the last one: None, or what to await until its pods have ended.
    ``dissolve`` makes it durable that the instance is never whole again, and returns the addresses of pods that are
    there and have lost others; it raises FtError.
    """

    spec: Spec
    reason: str
    runtime: Runtime
    replaced: Callable[[], Awaitable[object]]
    engines: Engines
    recovered: Callable[[], Awaitable[object]]
    spare: Callable[[], Awaitable[object] | None]
    dissolve: Callable[[], Awaitable[Sequence[str]]]


Builder = Callable[[Case], Strategy]
