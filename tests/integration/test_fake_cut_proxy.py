"""The cut proxy: each direction passes, is held, is delayed or is reset on its own."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.cut_proxy import CutProxy


@pytest.fixture
async def proxy() -> AsyncIterator[CutProxy]:
    """A proxy before a server that echoes in upper case."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1024):
                writer.write(data.upper())
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with CutProxy("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy:
        yield proxy
    server.close()
    await server.wait_closed()


async def connect(proxy: CutProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(proxy.host, proxy.port)


async def silent(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(0.2):
            await reader.readexactly(1)
    except TimeoutError:
        return True
    return False


async def test_bytes_and_the_end_of_the_stream_pass(proxy: CutProxy) -> None:
    reader, writer = await connect(proxy)
    writer.write(b"a" * 300_000)
    writer.write_eof()
    assert await reader.read(-1) == b"A" * 300_000
    writer.close()
    assert proxy.accepted == 1


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_blackhole_holds_one_direction_until_healed(proxy: CutProxy, direction: str) -> None:
    reader, writer = await connect(proxy)
    writer.write(b"a")
    assert await reader.readexactly(1) == b"A"
    proxy.cut(["up"] if direction == "up" else ["down"])
    writer.write(b"b")
    assert await silent(reader)
    proxy.heal()
    assert await reader.readexactly(1) == b"B"
    writer.close()


async def test_a_new_connection_into_a_blackhole_gets_no_answer(proxy: CutProxy) -> None:
    proxy.cut()
    reader, writer = await connect(proxy)
    writer.write(b"a")
    assert await silent(reader)
    writer.close()


async def test_a_reset_ends_old_and_new_connections(proxy: CutProxy) -> None:
    reader, writer = await connect(proxy)
    writer.write(b"a")
    await reader.readexactly(1)
    proxy.cut(mode="reset")
    with pytest.raises(ConnectionResetError):
        await reader.readexactly(1)
    writer.close()
    reader, writer = await connect(proxy)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
    proxy.heal()
    reader, writer = await connect(proxy)
    writer.write(b"b")
    assert await reader.readexactly(1) == b"B"
    writer.close()


async def test_a_delay_keeps_the_order(proxy: CutProxy) -> None:
    proxy.delay(0.3, ["down"])
    reader, writer = await connect(proxy)
    began = asyncio.get_running_loop().time()
    writer.write(b"a")
    await asyncio.sleep(0)
    writer.write(b"b")
    assert await reader.readexactly(2) == b"AB"
    assert asyncio.get_running_loop().time() - began >= 0.3
    writer.close()
