"""Records in memory: for simulations, and for a Controller that may forget everything when it ends."""

from dataclasses import dataclass, field

from controller.core.ports import Loaded, Stored
from controller.core.records import IdentityRecord, RuntimeRecord
from controller.store.codec import Kind, Row, UnreadableError, decode, encode, gather
from motor_ft.model.errors import FtError, Reason


@dataclass
class Shelf:
    """What outlives a MemoryStore: put a second store on the same shelf, and the first has lost its leadership."""

    epoch: int = 0
    instance_id: int = 0
    revision: int = 0
    rows: dict[tuple[Kind, int], Row] = field(default_factory=dict)


class MemoryStore:
    """ports.Store over a Shelf; bodies are kept in their stored form, so what comes out is a copy."""

    def __init__(self, shelf: Shelf | None = None) -> None:
        self._shelf = shelf or Shelf()
        self._epoch: int | None = None

    async def lead(self, above: int = 0) -> int:
        self._epoch = self._shelf.epoch = max(above, self._shelf.epoch) + 1
        return self._epoch

    def leads(self) -> bool:
        return self._epoch is not None and self._epoch == self._shelf.epoch

    def leader(self) -> str:
        return ""

    async def next_instance_id(self) -> int:
        self._must_lead()
        self._shelf.instance_id += 1
        return self._shelf.instance_id

    async def load(self) -> Loaded:
        return gather(self._shelf.rows.values())

    async def runtime(self, instance_id: int) -> Stored[RuntimeRecord] | None:
        row = self._shelf.rows.get((Kind.RUNTIME, instance_id))
        if row is None:
            return None
        try:
            return Stored(decode(row.body, RuntimeRecord), row.revision)
        except UnreadableError as error:
            raise FtError(Reason.STORE_UNAVAILABLE, f"runtime record of instance {instance_id} {error}") from error

    async def save_runtime(self, instance_id: int, record: RuntimeRecord, expected: int) -> int:
        return self._save(Kind.RUNTIME, instance_id, encode(record), expected)

    async def save_identity(self, record: IdentityRecord, expected: int) -> int:
        return self._save(Kind.IDENTITY, record.instance_id, encode(record), expected)

    async def remove(self, instance_id: int) -> None:
        self._must_lead()
        for kind in Kind:
            self._shelf.rows.pop((kind, instance_id), None)

    async def probe(self) -> None:
        self._must_lead()

    async def close(self) -> None:
        self._epoch = None

    def _save(self, kind: Kind, instance_id: int, body: bytes, expected: int) -> int:
        self._must_lead()
        row = self._shelf.rows.get((kind, instance_id))
        stored = row.revision if row else 0
        if stored != expected:
            raise FtError(
                Reason.STORE_CONFLICT,
                f"{kind} record of instance {instance_id} is at revision {stored}, not {expected}",
            )
        self._shelf.revision += 1
        self._shelf.rows[kind, instance_id] = Row(kind, instance_id, self._shelf.revision, body)
        return self._shelf.revision

    def _must_lead(self) -> None:
        if not self.leads():
            raise FtError(Reason.NOT_LEADER, "this Controller does not lead, or another one took over")
