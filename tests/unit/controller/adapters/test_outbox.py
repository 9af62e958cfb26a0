"""The Controller's side of a FaultReport stream: what waits to be sent."""

from __future__ import annotations

import asyncio

import pytest

from controller.rpc.outbox import Outbox

pytestmark = pytest.mark.looptime


async def test_what_is_taken_in_is_no_progress() -> None:
    """A reporter that beats a little faster than we show progress MUST NOT take us for frozen."""
    outbox = Outbox(4)

    async def beats() -> None:
        while True:
            await asyncio.sleep(2.9)
            outbox.acknowledge(0)  # a heartbeat carries no sequence

    beating = asyncio.create_task(beats(), name="beats")
    started = asyncio.get_running_loop().time()
    response = await outbox.next(3.0)
    beating.cancel()
    assert response is not None
    assert response.HasField("ack")
    assert asyncio.get_running_loop().time() - started == pytest.approx(3.0)
