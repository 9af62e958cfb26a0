"""What a Controller still does when another one leads."""

import pytest

from controller.store.memory import MemoryStore
from tests.support.world.pods import TWO_PODS
from tests.support.world.world import World

pytestmark = pytest.mark.looptime


async def test_nothing_is_published_once_another_controller_leads() -> None:
    """The Coordinators would take the view of a former leader for the present one."""
    async with World(*TWO_PODS) as world:
        await world.serve()
        assert world.manager.may_publish()
        await MemoryStore(world.shelf).lead()
        assert not world.manager.may_publish()
