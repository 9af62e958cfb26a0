"""When survivors have to prove with a completion that they serve (recovery.md section 5, step 9)."""

from enum import StrEnum

from motor_ft.model.engine import ProbeOutcome, RankProbe
from motor_ft.model.topology import Role


class CompletionProbe(StrEnum):
    """``AUTO``: of ``union`` instances, skipped where an engine serves no completions."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"

    def of(self, role: Role) -> "CompletionProbe":
        """What holds for an instance in this role."""
        return CompletionProbe.OFF if self is CompletionProbe.AUTO and role is not Role.UNION else self

    def satisfied(self, probe: RankProbe) -> bool:
        """The rank may go on. ``ON`` insists on a completion: one that is not served proves nothing."""
        skipped = self is CompletionProbe.AUTO and probe.outcome is ProbeOutcome.NOT_SERVED_HERE
        return skipped or probe.outcome is ProbeOutcome.SERVED
