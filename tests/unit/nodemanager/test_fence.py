"""The fence: who was superseded may not act."""

import pytest

from motor_ft.model.command import Command
from motor_ft.model.errors import FieldError, FtError, Reason
from nodemanager.core.fence import Fence


def command(epoch: int | None, generation: int | None, instance_id: int = 7) -> Command:
    return Command(instance_id, "op", epoch, generation)


def refusal(fence: Fence, by: Command) -> FtError:
    with pytest.raises(FtError) as caught:
        fence.check(by)
    return caught.value


def test_epoch_below_the_highest_seen_is_refused_for_every_instance() -> None:
    fence = Fence().note(7, 5, 1)
    error = refusal(fence, command(4, 9, instance_id=8))
    assert (error.reason, error.metadata) == (Reason.STALE_EPOCH, {"got": "4", "current": "5"})


def test_generation_below_the_highest_of_its_instance_is_refused_within_an_epoch() -> None:
    fence = Fence().note(7, 5, 3)
    error = refusal(fence, command(5, 2))
    assert (error.reason, error.metadata) == (Reason.STALE_GENERATION, {"got": "2", "current": "3"})
    fence.check(command(5, 2, instance_id=8))


def test_a_later_epoch_may_count_generations_anew() -> None:
    """(epoch, generation) is compared lexicographically."""
    fence = Fence().note(7, 5, 3)
    fence.check(command(6, 1))
    assert fence.note(7, 6, 1).generations == {7: (6, 1)}


def test_what_was_seen_never_falls() -> None:
    fence = Fence().note(7, 5, 3).note(8, 5, 1).note(7, 5, 2)
    assert fence == Fence(5, {7: (5, 3), 8: (5, 1)})


def test_an_unfenced_command_passes_and_leaves_no_trace() -> None:
    fence = Fence().note(7, 5, 3)
    fence.check(command(None, None))
    assert fence.note(7, None, None) is fence


def test_half_a_fence_is_a_bad_request() -> None:
    with pytest.raises(FieldError):
        Fence().check(command(5, None))
