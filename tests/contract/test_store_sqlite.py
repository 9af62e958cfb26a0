"""What only the SQLite store has to do: one process per file, and errors that say what to do."""

import asyncio
import sqlite3
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from controller.core.phases import Phase
from controller.core.ports import Stored
from controller.core.records import RuntimeRecord
from controller.fault_manager.runtime import FtRuntime
from controller.store.sqlite import SCHEMA_VERSION, SqliteStore
from motor_ft.model.errors import FtError, Reason
from tests.support.disk import full_disk

RUNTIME = RuntimeRecord(Phase.NORMAL, 1, (0, 1))

KILLED_WRITER = """
import asyncio, sys, pathlib
from controller.core.phases import Phase
from controller.core.records import RuntimeRecord
from controller.store.sqlite import SqliteStore

async def main():
    store = await SqliteStore.open(pathlib.Path(sys.argv[1]))
    await store.lead()
    await store.save_runtime(1, RuntimeRecord(Phase.SCALING_DOWN, 1, (0, 1)), 0)
    print("written", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def open_error(path: Path) -> str:
    """Text of the error with which the file must be refused."""
    with pytest.raises(FtError) as refusal:
        await SqliteStore.open(path)
    assert refusal.value.reason is Reason.STORE_UNAVAILABLE
    assert str(path) in refusal.value.message
    return refusal.value.message


async def test_a_second_controller_on_the_file_is_told_so(tmp_path: Path) -> None:
    """The file belongs to one store until that one is closed."""
    path = tmp_path / "controller.db"
    first = await SqliteStore.open(path)
    assert "in use by another Controller: stop that one" in await open_error(path)
    await first.close()
    second = await SqliteStore.open(path)
    await second.close()


async def test_what_was_confirmed_survives_a_kill(tmp_path: Path) -> None:
    """SIGKILL of the Controller loses no confirmed write, and frees the file at once."""
    path = tmp_path / "controller.db"
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED_WRITER, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert writer.stdout is not None
    assert await writer.stdout.readline() == b"written\n"
    assert "in use by another Controller" in await open_error(path)
    writer.kill()
    await writer.wait()
    store = await SqliteStore.open(path)
    loaded = await store.load()
    assert loaded.runtimes[1].record.phase is Phase.SCALING_DOWN
    assert await store.lead() == 2
    await store.close()


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "controller.db"
    with pytest.raises(FtError, match=r"the directory .*/nowhere of the store file does not exist: create it"):
        await SqliteStore.open(path)
    assert not path.parent.exists()


async def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, and longer than the header that SQLite looks at: " * 20)
    before = path.read_bytes()
    assert "not a database" in await open_error(path)
    assert path.read_bytes() == before


async def test_a_directory_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    assert "unable to open database file" in await open_error(tmp_path)


async def test_a_file_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """A Controller that was rolled back leaves alone what it does not understand."""
    path = tmp_path / "controller.db"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    assert "use the Controller that wrote it" in await open_error(path)


async def test_a_record_of_a_newer_version_is_reported_not_misread(tmp_path: Path) -> None:
    path = tmp_path / "controller.db"
    first = await SqliteStore.open(path)
    await first.lead()
    await first.save_runtime(1, RUNTIME, 0)
    await first.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE record SET body = CAST(replace(body, '\"version\":1', '\"version\":3') AS BLOB)")
    connection.close()
    second = await SqliteStore.open(path)
    unreadable = (await second.load()).unreadable
    assert unreadable[1].why == "runtime record is of version 3, this Controller knows 2"
    await second.close()


async def test_a_full_disk_fails_the_write_and_nothing_else(tmp_path: Path) -> None:
    """The write is reported as STORE_UNAVAILABLE, reading it back shows the old record, and a later one succeeds."""
    path = tmp_path / "controller.db"
    told = list[str]()
    store = await SqliteStore.open(path, told.append)
    await store.lead()
    revision = await store.save_runtime(1, RUNTIME, 0)
    with full_disk(path.with_name("controller.db-wal").stat().st_size), pytest.raises(FtError) as failure:
        await store.save_runtime(1, RUNTIME.at(Phase.DECIDING), revision)
    assert failure.value.reason is Reason.STORE_UNAVAILABLE
    assert str(path) in failure.value.message
    stored = await store.runtime(1)
    assert stored is not None
    assert (stored.record, stored.revision) == (RUNTIME, revision)
    assert told[-1] == failure.value.message, "what was read does not show that anything can be written"
    await store.save_runtime(1, RUNTIME.at(Phase.DECIDING), revision)
    assert told[-1] == ""
    await store.close()


async def test_a_full_disk_is_found_by_a_probe(tmp_path: Path) -> None:
    path = tmp_path / "controller.db"
    store = await SqliteStore.open(path)
    await store.lead()
    with full_disk(path.with_name("controller.db-wal").stat().st_size), pytest.raises(FtError) as failure:
        await store.probe()
    assert failure.value.reason is Reason.STORE_UNAVAILABLE
    await store.probe()
    await store.close()


async def test_a_disk_that_hangs_is_waited_for_only_so_long(tmp_path: Path) -> None:
    told = list[str]()
    store = await SqliteStore.open(tmp_path / "controller.db", told.append, timeout_sec=0.05)
    await store.lead()
    go_on, hangs = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        go_on.wait()

    store._thread.submit(hang)  # noqa: SLF001 - everything that touches the disk is done in this thread
    hangs.wait()
    with pytest.raises(FtError, match=r"no answer within 0\.05 s") as failure:
        await store.save_runtime(1, RUNTIME, 0)
    assert failure.value.reason is Reason.STORE_UNAVAILABLE
    assert told[-1] == failure.value.message
    go_on.set()
    await store.close()


async def test_a_file_that_cannot_be_made_or_written_is_named() -> None:
    """In a file system that nobody can write to, whoever this runs as."""
    assert "unable to open database file" in await open_error(Path("/proc/self/controller.db"))


async def test_a_file_that_has_become_read_only_fails_writes_and_nothing_else(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "controller.db")
    await store.lead()
    revision = await store.save_runtime(1, RUNTIME, 0)
    connection, loop = store._db, asyncio.get_running_loop()  # noqa: SLF001 - as a remount would do, seen from SQLite
    await loop.run_in_executor(store._thread, connection.execute, "PRAGMA query_only = ON")  # noqa: SLF001
    with pytest.raises(FtError, match="readonly") as failure:
        await store.save_runtime(1, RUNTIME.at(Phase.DECIDING), revision)
    assert failure.value.reason is Reason.STORE_UNAVAILABLE
    stored = await store.runtime(1)
    assert stored is not None
    assert stored.revision == revision
    await store.close()


async def test_a_write_reaches_the_disk_before_it_counts(tmp_path: Path) -> None:
    """WAL with full synchronisation; another setting would lose confirmed writes when the node loses power."""
    store = await SqliteStore.open(tmp_path / "controller.db")
    connection = store._db  # noqa: SLF001 - the setting belongs to the connection and cannot be seen from outside
    thread = store._thread  # noqa: SLF001 - the connection may be used in its own thread only
    loop = asyncio.get_running_loop()

    def settings() -> tuple[str, int]:
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        (synchronous,) = connection.execute("PRAGMA synchronous").fetchone()
        return mode, synchronous

    assert await loop.run_in_executor(thread, settings) == ("wal", 2)
    await store.close()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "controller.db")
    await store.close()
    with pytest.raises(FtError, match="it is closed"):
        await store.load()


async def test_a_move_that_finds_no_room_fails_and_is_made_once_there_is_room(tmp_path: Path) -> None:
    """What a transaction does before its commit, and after it: the record is the old one, then the new one."""
    path = tmp_path / "controller.db"
    store = await SqliteStore.open(path, timeout_sec=60)
    await store.lead()
    stored = Stored(RUNTIME, await store.save_runtime(1, RUNTIME, 0))

    async def decide(patience_sec: float) -> RuntimeRecord:
        runtime = FtRuntime(1, stored, store, lambda: None, patience_sec=patience_sec)
        await runtime.persist(Phase.DECIDING, begins=True)
        return runtime.record

    with full_disk(path.with_name("controller.db-wal").stat().st_size):
        with pytest.raises(FtError, match=r"DECIDING of instance 1 is not stored after 0\.5 s") as failure:
            await decide(0.5)
        assert failure.value.reason is Reason.STORE_UNAVAILABLE
        assert await store.runtime(1) == stored
        waiting = asyncio.create_task(decide(60))
        await asyncio.sleep(0.3)
        assert not waiting.done()
    record = await waiting
    assert record == replace(RUNTIME.at(Phase.DECIDING), generation=2)
    assert (await store.load()).runtimes[1].record == record
    await store.close()
