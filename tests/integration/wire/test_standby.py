"""A standby that begins to lead is noticed at once."""

import asyncio

from motor_ft.wire.server import RpcServer
from motor_ft.wire.standby import begins_to_lead
from tests.integration.controller.reporters import Desk
from tests.integration.controller.serving import add_reports, new_server

NOBODY = "127.0.0.1:1"


async def controller(*, leads: bool) -> tuple[RpcServer, str]:
    server = new_server()
    add_reports(server, Desk())
    server.set_all_serving(leads)
    return server, f"127.0.0.1:{await server.start()}"


async def test_a_standby_that_begins_to_lead_ends_the_wait() -> None:
    """Among others that do not answer, or lead all the time."""
    leader, leads = await controller(leads=True)
    standby, address = await controller(leads=False)
    wait = asyncio.create_task(begins_to_lead([NOBODY, leads, address], 20))
    while not wait.done():  # again and again: nothing tells when it has begun to watch
        for serving in (False, True):
            standby.set_all_serving(serving)
            await asyncio.sleep(0.05)
    assert await wait == address
    for server in (leader, standby):
        await server.stop(0)


async def test_who_leads_all_the_time_does_not_end_the_wait() -> None:
    """It had its reason to end the last stream, and must not be asked again without a pause."""
    server, address = await controller(leads=True)
    assert await begins_to_lead([address, NOBODY], 0.3) == ""
    await server.stop(0)
