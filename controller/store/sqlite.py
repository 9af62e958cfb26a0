"""Records in one SQLite file, the embedded default: every write is on the disk before it counts."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from controller.core.ports import Loaded, Stored
from controller.core.records import IdentityRecord, RuntimeRecord
from controller.store.codec import Kind, Row, UnreadableError, decode, encode, gather
from motor_ft.model.errors import FtError, Reason

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
CREATE TABLE record (
    kind TEXT NOT NULL, instance_id INTEGER NOT NULL, revision INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (kind, instance_id)
) STRICT;
"""

T = TypeVar("T")


class SqliteStore:
    """ports.Store over a file that belongs to one process as long as it is open; make it with ``open``.

    The connection lives in one thread, so that writes happen in the order of the calls and never in the event loop.
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        thread: ThreadPoolExecutor,
        told: Callable[[str], None],
        timeout_sec: float,
    ) -> None:
        self._path = path
        self._db = connection
        self._thread = thread
        self._told = told
        self._timeout_sec = timeout_sec
        self._leads = False
        self._closed = False

    @classmethod
    async def open(
        cls, path: Path, told: Callable[[str], None] = lambda _: None, *, timeout_sec: float = 5.0
    ) -> "SqliteStore":
        """Open or create the file and lock it; raises FtError that names the file and what to do.

        ``told`` is told why something failed, and with an empty text that something was written. Of what takes longer
        than ``timeout_sec`` it is not known whether it was written.
        """
        if not path.parent.is_dir():
            raise FtError(
                Reason.STORE_UNAVAILABLE,
                f"the directory {path.parent} of the store file does not exist: create it or name another file",
            )
        thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(thread, _connect, path)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(path, connection, thread, told, timeout_sec)

    async def lead(self, above: int = 0) -> int:
        self._must_be_open()
        epoch = await self._write(lambda: self._next("epoch", above))
        self._leads = True
        return epoch

    def leads(self) -> bool:
        # Nobody else can have taken over: the file is locked from open to close.
        return self._leads

    def leader(self) -> str:
        return ""

    async def next_instance_id(self) -> int:
        self._must_lead()
        return await self._write(lambda: self._next("instance"))

    async def load(self) -> Loaded:
        self._must_be_open()
        return gather(await self._run(self._rows))

    async def runtime(self, instance_id: int) -> Stored[RuntimeRecord] | None:
        self._must_be_open()
        query = "SELECT revision, body FROM record WHERE kind = ? AND instance_id = ?"
        row = await self._run(lambda: self._db.execute(query, (Kind.RUNTIME, instance_id)).fetchone())
        if row is None:
            return None
        try:
            return Stored(decode(row[1], RuntimeRecord), row[0])
        except UnreadableError as error:
            raise self._unavailable(f"runtime record of instance {instance_id} {error}") from error

    async def save_runtime(self, instance_id: int, record: RuntimeRecord, expected: int) -> int:
        self._must_lead()
        return await self._write(lambda: self._save(Kind.RUNTIME, instance_id, encode(record), expected))

    async def save_identity(self, record: IdentityRecord, expected: int) -> int:
        self._must_lead()
        return await self._write(lambda: self._save(Kind.IDENTITY, record.instance_id, encode(record), expected))

    async def remove(self, instance_id: int) -> None:
        self._must_lead()
        await self._write(lambda: self._db.execute("DELETE FROM record WHERE instance_id = ?", (instance_id,)))

    async def probe(self) -> None:
        self._must_lead()
        await self._write(lambda: self._next("probe"))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed, self._leads = True, False
        try:
            await self._run(self._db.close)
        finally:
            self._thread.shutdown(wait=False)

    async def _write(self, work: Callable[[], T]) -> T:
        """One transaction; only what is written shows that the store can be written, for a full disk can be read."""
        result = await self._run(lambda: self._transaction(work))
        self._told("")
        return result

    async def _run(self, work: Callable[[], T]) -> T:
        """Work in the store's thread; it goes on there when the caller is cancelled, or waits no longer."""
        try:
            async with asyncio.timeout(self._timeout_sec):
                return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except TimeoutError as error:
            failure = self._unavailable(f"no answer within {self._timeout_sec:g} s")
            self._told(failure.message)
            raise failure from error
        except sqlite3.Error as error:
            failure = self._unavailable(str(error))
            self._told(failure.message)
            raise failure from error

    def _rows(self) -> list[Row]:
        rows = self._db.execute("SELECT kind, instance_id, revision, body FROM record ORDER BY instance_id")
        return [Row(Kind(kind), instance_id, revision, body) for kind, instance_id, revision, body in rows]

    def _next(self, name: str, above: int = 0) -> int:
        query = """INSERT INTO counter VALUES (:name, :above + 1)
            ON CONFLICT DO UPDATE SET value = max(value, :above) + 1 RETURNING value"""
        ((value,),) = self._db.execute(query, {"name": name, "above": above}).fetchall()
        return int(value)

    def _save(self, kind: Kind, instance_id: int, body: bytes, expected: int) -> int:
        key = (kind, instance_id)
        query = "SELECT revision FROM record WHERE kind = ? AND instance_id = ?"
        row = self._db.execute(query, key).fetchone()
        stored = row[0] if row else 0
        if stored != expected:
            raise FtError(
                Reason.STORE_CONFLICT,
                f"{kind} record of instance {instance_id} is at revision {stored}, not {expected}",
            )
        revision = self._next("revision")
        self._db.execute("REPLACE INTO record VALUES (?, ?, ?, ?)", (*key, revision, body))
        return revision

    def _transaction(self, work: Callable[[], T]) -> T:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            result = work()
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        return result

    def _must_be_open(self) -> None:
        if self._closed:
            raise self._unavailable("it is closed")

    def _must_lead(self) -> None:
        if not self._leads:
            raise FtError(Reason.NOT_LEADER, f"this Controller does not lead with the store file {self._path}")

    def _unavailable(self, why: str) -> FtError:
        return FtError(Reason.STORE_UNAVAILABLE, f"store file {self._path}: {why}")


def _connect(path: Path) -> sqlite3.Connection:
    # Autocommit: transactions are begun and ended in the open, by us. Used by the store's one thread only.
    try:
        connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    except sqlite3.Error as error:
        raise FtError(Reason.STORE_UNAVAILABLE, f"store file {path}: {error}; check its permissions") from error
    try:
        _prepare(connection)
    except sqlite3.Error as error:
        connection.close()
        locked = error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
        why = f"cannot be used ({error}): name another file, or move this one away to start without its records"
        if locked:
            why = "is in use by another Controller: stop that one, or name another file"
        raise FtError(Reason.STORE_UNAVAILABLE, f"store file {path} {why}") from error
    except FtError as error:
        connection.close()
        raise FtError(error.reason, f"store file {path} {error.message}") from error
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    # Exclusive mode before the first access keeps the lock until close or the end of the process, however it ends.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    ((version,),) = connection.execute("PRAGMA user_version").fetchall()
    if version not in {0, SCHEMA_VERSION}:
        what = f"is of schema {version}, this Controller knows {SCHEMA_VERSION}: use the Controller that wrote it"
        raise FtError(Reason.STORE_UNAVAILABLE, what)
    if version == 0:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        for statement in filter(str.strip, _SCHEMA.split(";")):
            connection.execute(statement)
    connection.execute("COMMIT")
