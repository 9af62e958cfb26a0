"""How a strategy ended."""

from enum import StrEnum


class Outcome(StrEnum):
    """FAILED goes to the fallback, CANCELLED back to the phase before."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
