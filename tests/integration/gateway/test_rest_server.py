"""The REST server itself: what its peers cannot do to it."""

import asyncio

from aiohttp import web
from prometheus_client import CollectorRegistry

from gateway.metrics import RestMetrics
from gateway.rest.server import RestServer


async def test_a_peer_that_never_sends_its_body_does_not_keep_the_process_from_ending() -> None:
    """The engines of a stopped pod end after its REST server: nobody may delay that from outside."""
    reading = asyncio.Event()

    async def read(request: web.Request) -> web.Response:
        reading.set()
        await request.read()
        return web.Response()

    server = RestServer("127.0.0.1:0", [web.post("/", read)], RestMetrics(CollectorRegistry()))
    _, writer = await asyncio.open_connection("127.0.0.1", await server.start())
    try:
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
        await reading.wait()
        async with asyncio.timeout(30):
            await server.stop()
    finally:
        writer.close()
