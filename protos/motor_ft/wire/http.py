"""An HTTP server on an address that the configuration names."""

from aiohttp import web

from motor_ft.wire.address import split_address
from motor_ft.wire.listen import cannot_listen

_GRACE_SEC = 2.0  # for a peer that reads slowly while we end


class HttpServer:
    """Serves ``app`` on ``listen``, which is ``host:port``, with port 0 for any free one."""

    def __init__(self, listen: str, app: web.Application) -> None:
        self._listen = listen
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_GRACE_SEC)

    async def start(self) -> int:
        """Listen; returns the bound port. Raises FtError PORT_UNAVAILABLE."""
        host, port = split_address(self._listen)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise cannot_listen(self._listen) from error
        bound: int = self._runner.addresses[0][1]
        return bound

    async def stop(self) -> None:
        """Close the port and let requests finish; a peer that is slower than the grace does not keep us."""
        await self._runner.cleanup()
