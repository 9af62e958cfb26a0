"""How a strategy ends that brings the instance back as it was."""

from controller.core.errors import Failure, FailureCode
from controller.core.outcome import Outcome
from controller.core.ports import Runtime, ServingPublisher, StrategyResult


async def serve_again(
    outcome: Outcome, instance_id: int, runtime: Runtime, publisher: ServingPublisher, timeout_sec: float
) -> StrategyResult:
    """Publish what was withdrawn; what is not confirmed in time converges through SET."""
    runtime.show(withdrawn=False)
    if await publisher.publish(instance_id, timeout_sec):
        return StrategyResult(outcome)
    pending = Failure(FailureCode.PUBLISH_PENDING, "a Coordinator did not confirm the instance; SET converges")
    runtime.show(failure=pending)
    return StrategyResult(outcome, pending)
