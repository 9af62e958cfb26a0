"""A lease at etcd with a deadline on our own clock."""

import asyncio
from collections.abc import Callable

from controller.store.etcd.client import EtcdClient
from motor_ft.model.errors import FtError
from motor_ft.wire.log import get_logger

USABLE = 0.9
"""Share of a lease that we rely on; the rest is for clocks of different speed and for what is on its way."""

RETRY_SEC = 0.2

_log = get_logger(__name__)


class Lease:
    """Counted from when its grant or renewal was *sent*, so that it never ends later here than at etcd."""

    def __init__(
        self, client: EtcdClient, lease_id: int, ttl_sec: float, sent: float, now: Callable[[], float]
    ) -> None:
        self._client = client
        self._ttl_sec = ttl_sec
        self._now = now
        self._deadline = sent + USABLE * ttl_sec
        self.id = lease_id

    @classmethod
    async def grant(cls, client: EtcdClient, ttl_sec: int, now: Callable[[], float]) -> "Lease":
        """A new one; ``now`` returns seconds on a clock that goes on while this machine sleeps. Raises FtError."""
        sent = now()
        granted = await client.grant(ttl_sec)
        return cls(client, granted.ID, granted.TTL, sent, now)

    @property
    def holds(self) -> bool:
        """Nothing that depends on it can have been given to anybody else."""
        return self._now() < self._deadline

    async def keep(self) -> None:
        """Renew three times per lifetime, until it is lost; returns then, and it never holds again."""
        while (left := self._deadline - self._now()) > 0:
            sent = self._now()
            try:
                ttl_sec = await self._client.keep_alive(self.id, timeout=min(left, self._ttl_sec / 4))
            except FtError as error:
                _log.warning("lease not renewed", error=error.message, left_sec=round(left, 3))
                await asyncio.sleep(min(left, RETRY_SEC))
                continue
            if ttl_sec == 0:
                break
            self._deadline = sent + USABLE * ttl_sec
            await asyncio.sleep(self._ttl_sec / 3)
        self._deadline = float("-inf")
