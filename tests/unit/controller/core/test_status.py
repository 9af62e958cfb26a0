"""What clients see (RFC section 7)."""

from hypothesis import given
from hypothesis import strategies as st

from controller.core.phases import Phase
from controller.core.status import InstanceState, InstanceStatus
from motor_ft.model.topology import Role


@given(st.frozensets(st.integers(0, 7)), st.frozensets(st.integers(0, 7)), st.frozensets(st.integers(0, 7)))
def test_alive_ranks_are_original_minus_committed_minus_pending(
    original: frozenset[int], committed: frozenset[int], pending: frozenset[int]
) -> None:
    """They keep their original numbers and their order."""
    status = InstanceStatus(
        instance_id=7,
        phase=Phase.SCALED_DOWN_RUNNING,
        original_dp_ranks=tuple(sorted(original)),
        request_id="",
        dead_committed=tuple(sorted(committed)),
        pending_removed_ranks=tuple(sorted(pending)),
        fallback_strategy="instance_reconfiguration",
        gate=None,
        engine_statuses={},
        serving_published=True,
        last_error="",
        can_serve=True,
        generation=1,
        job_name="job",
        model_name="model",
        role=Role.UNION,
        dp_size=8,
        state=InstanceState.ACTIVE,
        pods=(),
    )
    assert status.alive_dp_ranks == tuple(sorted(original - committed - pending))
