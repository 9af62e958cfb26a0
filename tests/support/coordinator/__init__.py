"""A fake Motor Coordinator that really routes completions to engines (protocol.md section 5)."""

from tests.support.coordinator.server import CompletionRecord, FakeCoordinator, ViewRecord

__all__ = ["CompletionRecord", "FakeCoordinator", "ViewRecord"]
