"""HTTP to engines: reads that may be repeated, orders that never are."""

import asyncio
import errno
import os
import socket
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import aiohttp
from aiohttp.abc import ResolveResult
from yarl import URL

from gateway.engines.dialect import MAX_BODY, Reply, UnreadableError
from motor_ft.model.engine import Problem

# What the engine's own socket may say. Any other error number is about this side of the connection.
_UNREACHABLE = {errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT}

# A timer that fires this much too late (seconds) shows that our own loop stood still, not the engine.
_STALL = 0.2


class NotSentError(Exception):
    """The order certainly did not leave; the text says why."""


class UnansweredError(Exception):
    """The order was or may have been sent, and no complete answer came."""


class EngineHttp:
    """One client for all engines of a gateway; create it inside the running loop.

    ``token`` goes as bearer to paths under /v1, the only ones that engines guard, and into no message.
    """

    def __init__(self, token: str = "") -> None:
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(_before_first_byte)
        # No limit of connections: waiting for one would look like an engine that does not answer.
        self._names = _Names()
        self._kept = _session(aiohttp.TCPConnector(limit=0, resolver=self._names))
        self._fresh = _session(aiohttp.TCPConnector(limit=0, resolver=self._names, force_close=True), trace)

    async def get(self, url: str, timeout: float) -> Reply:
        """Read ``url`` within ``timeout`` seconds; raises UnreadableError: UNREACHABLE, PROTOCOL or LOCAL."""
        deadline = asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                return await self._read(url)
        except TimeoutError as error:
            if asyncio.get_running_loop().time() > deadline + _STALL:
                raise UnreadableError(Problem.LOCAL, f"this process stood still while it read {url}") from error
            if self._names.waiting[URL(url).host]:
                raise UnreadableError(Problem.LOCAL, f"nobody says within {timeout:g} s where {url} is") from error
            raise UnreadableError(Problem.UNREACHABLE, f"no answer from {url} within {timeout:g} s") from error
        except Exception as error:  # the boundary of a reading: whatever happens, it is told as a problem
            raise UnreadableError(_problem(error), _text(url, error)) from error

    async def post(self, url: str, body: bytes, timeout: float, check: Callable[[], None] = lambda: None) -> Reply:
        """Send ``body`` once, on a connection of its own, so that nothing below can send it again.

        ``check`` is called when the connection stands and nothing is written yet; it may raise NotSentError.
        Raises that, also when there is no connection, or UnansweredError when the order may have arrived.
        """
        sending = _Sending(check)
        try:
            async with asyncio.timeout(timeout):
                return await self._exchange(self._fresh, "POST", url, body, sending)
        except NotSentError:
            raise
        except Exception as error:  # the boundary of an order: whatever happens, its outcome must be told
            late = isinstance(error, TimeoutError) and not str(error)
            text = f"no answer from {url} within {timeout:g} s" if late else _text(url, error)
            raise (UnansweredError if sending.begun else NotSentError)(text) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._kept.close()
        await self._fresh.close()

    async def _read(self, url: str) -> Reply:
        try:
            return await self._exchange(self._kept, "GET", url)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError):
            # A kept connection may have died of old age; only a fresh one shows the engine.
            return await self._exchange(self._fresh, "GET", url)

    async def _exchange(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: str,
        body: bytes | None = None,
        sending: "_Sending | None" = None,
    ) -> Reply:
        headers = self._headers if URL(url).path.startswith("/v1/") else {}
        if body is not None:
            headers = headers | {"Content-Type": "application/json"}
        async with session.request(
            method, url, data=body, headers=headers, allow_redirects=False, trace_request_ctx=sending
        ) as response:
            return Reply(response.status, await _body(response))


class _Names(aiohttp.ThreadedResolver):
    """Knows which hosts are being looked up; that goes on when nobody waits for it any more."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: Counter[str | None] = Counter()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.waiting[host] += 1
        try:
            return await super().resolve(host, port, family)
        finally:
            self.waiting[host] -= 1


class _Sending:
    """Whether an order has begun to leave."""

    def __init__(self, check: Callable[[], None]) -> None:
        self.begun = False
        self._check = check

    def begin(self) -> None:
        self._check()
        self.begun = True


async def _before_first_byte(
    _session: aiohttp.ClientSession, context: SimpleNamespace, _params: aiohttp.TraceRequestHeadersSentParams
) -> None:
    # aiohttp calls this when the headers are ready, before it writes them.
    if context.trace_request_ctx is not None:
        context.trace_request_ctx.begin()


def _session(connector: aiohttp.TCPConnector, *traces: aiohttp.TraceConfig) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        auto_decompress=False,  # a small body may not become a large one
        skip_auto_headers=("Accept-Encoding",),
        trace_configs=list(traces),
    )


async def _body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    while len(body) <= MAX_BODY and (part := await response.content.read(MAX_BODY + 1 - len(body))):
        body += part
    return bytes(body)


def _problem(error: Exception) -> Problem:
    match error:
        case aiohttp.ClientConnectorDNSError() | aiohttp.ClientSSLError():
            return Problem.LOCAL
        case aiohttp.ClientOSError():
            return Problem.UNREACHABLE if error.errno in _UNREACHABLE else Problem.LOCAL
        case aiohttp.ServerDisconnectedError():
            return Problem.UNREACHABLE
        case aiohttp.ClientPayloadError() if "ConnectionResetError" in str(error):
            return Problem.UNREACHABLE  # aiohttp keeps this cause in its text only
        case aiohttp.ClientError():
            return Problem.PROTOCOL
        case _:
            return Problem.LOCAL


def _text(url: str, error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and (error.errno or 0) > 0:
        return f"{url}: {os.strerror(error.errno or 0)}"
    # str() of these names the cause, never the headers; repr() would show the token.
    return f"{url}: {str(error) or type(error).__name__}"
