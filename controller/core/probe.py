"""When survivors have to prove with a completion that they serve (recovery.md section 5, step 9)."""

from enum import StrEnum


class CompletionProbe(StrEnum):
    """``AUTO``: of ``union`` instances, skipped where an engine serves no completions."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"
