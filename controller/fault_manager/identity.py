"""The stored identity of one instance, and the one way to change it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from controller.core.ports import Store, Stored
from controller.core.records import IdentityRecord
from motor_ft.model.topology import Registration


class StoredIdentity:
    """``record`` is None until all pods have come, and in the store from READY on."""

    def __init__(self, store: Store, stored: Stored[IdentityRecord] | None = None) -> None:
        self._store = store
        self._revision: int | None = stored.revision if stored else 0
        self._writing = asyncio.Lock()
        self._gone_at = 0.0
        self.record = stored.record if stored else None

    async def change(self, change: Callable[[IdentityRecord], IdentityRecord]) -> None:
        """Write what ``change`` makes of the record, compare-and-set, one after the other.

        Raises FtError, after which the next call finds out what is stored.
        """
        async with self._writing:  # the actor, its strategy and an operator
            assert self.record is not None, "all pods have come"
            record = replace(change(self.record), gone_at=self._gone_at)
            if self._revision is None:
                known = (await self._store.load()).identities.get(record.instance_id)
                self._revision = known.revision if known else 0
            expected, self._revision = self._revision, None
            self._revision = await self._store.save_identity(record, expected)
            self.record = record

    async def bury(self, pods: tuple[Registration, ...], now: float) -> None:
        """The instance, whose pods were last these, is forgotten; so says everything that is still to be written."""
        self._gone_at = now
        await self.change(lambda record: replace(record, pods=pods))
