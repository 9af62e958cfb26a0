"""The stored identity of one instance, and the one way to change it."""

import asyncio

from controller.core.ports import Store, Stored
from controller.core.records import IdentityRecord


class StoredIdentity:
    """``record`` is None until all pods have come, and in the store from READY on."""

    def __init__(self, store: Store, stored: Stored[IdentityRecord] | None = None) -> None:
        self._store = store
        self._revision: int | None = stored.revision if stored else 0
        self._writing = asyncio.Lock()
        self.record = stored.record if stored else None

    async def save(self, record: IdentityRecord) -> None:
        """Write, compare-and-set; raises FtError, after which the next call finds out what is stored."""
        async with self._writing:  # the actor and an operator
            if self._revision is None:
                known = (await self._store.load()).identities.get(record.instance_id)
                self._revision = known.revision if known else 0
            expected, self._revision = self._revision, None
            self._revision = await self._store.save_identity(record, expected)
            self.record = record
