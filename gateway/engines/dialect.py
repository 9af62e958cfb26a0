"""What every engine dialect can do; pure: bytes in, meaning out (engine-contract section 1)."""

from dataclasses import dataclass
from typing import Protocol

from motor_ft.model.engine import ApplyOutcome, EngineObservation, Instruction, Problem

MAX_BODY = 1024 * 1024  # bytes; a longer answer is no answer


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete HTTP answer. ``body`` is cut after ``MAX_BODY + 1`` bytes, which makes it too long to be read."""

    status: int
    body: bytes


class UnreadableError(Exception):
    """An engine could not be read; ``problem`` says what kind of failure that is."""

    def __init__(self, problem: Problem, detail: str) -> None:
        super().__init__(detail)
        self.problem = problem
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Order:
    """One instruction as engines receive it; all but the first two are for ``scale_down`` only."""

    request_id: str
    instruction: Instruction
    removed: tuple[int, ...] = ()
    dp_master_ip: str = ""
    dp_store_port: int = 0
    retired: tuple[int, ...] = ()
    """Those of ``removed`` that an earlier order has removed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an engine's answer to an order means."""

    outcome: ApplyOutcome
    detail: str = ""
    engine_request_id: str = ""


class Dialect(Protocol):
    """One way of speaking to an engine."""

    @property
    def name(self) -> str:
        """Name in configuration and in the FT capability."""

    @property
    def instructions(self) -> frozenset[Instruction]:
        """What the engine knows; everything else is refused here and never sent."""

    @property
    def one_server(self) -> bool:
        """Whether one server answers for all ranks of the instance; an order goes to it once, whoever it is for."""

    @property
    def status_path(self) -> str:
        """Where GET reads the status."""

    @property
    def apply_path(self) -> str:
        """Where POST gives an order."""

    def read_status(self, rank: int, reply: Reply) -> EngineObservation:
        """Read the one entry of ``rank``; raises UnreadableError for anything that is not exactly that."""

    def encode(self, order: Order) -> bytes:
        """JSON body of an order."""

    def read_apply(self, order: Order, reply: Reply) -> Verdict:
        """Judge the answer to an order that was sent."""
