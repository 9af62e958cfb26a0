"""Durable state on disk: an append-only file of whole states, each fsynced before it counts (recovery.md section 8)."""

import asyncio
import fcntl
import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec

from motor_ft.model.errors import FtError, Reason
from motor_ft.wire.decoding import NOT_JSON
from nodemanager.core.state import NodeState

RECORD_VERSION = b"1"
COMPACT_BYTES = 1024 * 1024
PROVE_SEC = 10.0
RETRY_SEC = 1.0


class Journal:
    """The state of one NodeManager. ``state`` never shows what is not on disk yet.

    One line is one record: version, CRC-32, JSON of the whole state. Only the last complete line counts; a line
    without its newline was never acknowledged to anybody. ``problem`` says why the last write failed, empty when it
    did not; ``told`` is told so, and with an empty text that writes work again.
    """

    def __init__(self, directory: Path, told: Callable[[str], None] = lambda _: None) -> None:
        """Take the directory; raises FtError STORE_UNAVAILABLE when it is in use, unreadable or corrupt."""
        self._told = told
        self.problem = ""
        self._path = directory / "journal"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock_file = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unavailable(f"state_dir {directory} cannot be used: {error.strerror}") from error
        try:
            self._take(directory)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self.state, self._end = self._load()
                self._compact(self._line(self.state))
            except BaseException:
                os.close(self._file)
                raise
        except OSError as error:
            os.close(self._lock_file)
            raise _unavailable(f"journal {self._path} cannot be opened: {error.strerror}") from error
        except FtError:
            os.close(self._lock_file)
            raise
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "journal")

    async def update(self, change: Callable[[NodeState], NodeState]) -> NodeState:
        """Replace the state by ``change(state)`` and return the new one once it is on disk.

        What ``change`` raises is raised and nothing is written. Raises FtError STORE_UNAVAILABLE when the disk fails;
        the state is the old one then. A caller that is cancelled does not stop a write.
        """
        return await asyncio.shield(asyncio.create_task(self._update(change), name="journal/update"))

    async def insist(self, change: Callable[[NodeState], NodeState]) -> None:
        """As ``update``, for what no caller could try again: until the disk takes it. It must not raise FtError."""
        while True:
            try:
                await self.update(change)
                return
            except FtError:  # told
                await asyncio.sleep(RETRY_SEC)

    async def prove(self) -> None:
        """Write the state again every few seconds, for ever, so that a full disk is known before a command comes."""
        while True:
            await asyncio.sleep(PROVE_SEC)
            with suppress(FtError):  # told
                async with self._turn:
                    await self._save(self.state)

    async def close(self) -> None:
        """Finish what is being written and give the directory back."""
        async with self._turn:
            self._thread.shutdown()
            os.close(self._file)
            os.close(self._lock_file)

    async def _update(self, change: Callable[[NodeState], NodeState]) -> NodeState:
        async with self._turn:
            state = change(self.state)
            if state != self.state:
                await self._save(state)
                self.state = state
            return state

    async def _save(self, state: NodeState) -> None:
        before = self.problem
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._write, self._line(state))
            self.problem = ""
        except FtError as error:
            self.problem = error.message
            raise
        finally:
            if bool(before) is not bool(self.problem):
                self._told(self.problem)

    def _take(self, directory: Path) -> None:
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _unavailable(
                f"state_dir {directory} is in use by another NodeManager; every pod needs its own"
            ) from None

    def _load(self) -> tuple[NodeState, int]:
        text = self._path.read_bytes()
        end = text.rfind(b"\n") + 1
        if end == 0:
            return NodeState(), 0
        start = text.rfind(b"\n", 0, end - 1) + 1
        version, _, rest = text[start : end - 1].partition(b" ")
        crc, _, body = rest.partition(b" ")
        if version != RECORD_VERSION:
            raise _corrupt(self._path, start, f"record version {version[:20]!r} is not {RECORD_VERSION.decode()}")
        if crc != b"%08x" % zlib.crc32(body):
            raise _corrupt(self._path, start, "the checksum is wrong")
        try:
            return msgspec.json.decode(body, type=NodeState), end
        except NOT_JSON as error:
            raise _corrupt(self._path, start, str(error)) from error

    @staticmethod
    def _line(state: NodeState) -> bytes:
        body = msgspec.json.encode(state)
        return b"%s %08x %s\n" % (RECORD_VERSION, zlib.crc32(body), body)

    def _write(self, line: bytes) -> None:
        try:
            if self._end + len(line) > COMPACT_BYTES:
                self._compact(line)
                return
            _write_all(self._file, line, self._end)
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):  # what was not acknowledged must not count after a restart
                os.ftruncate(self._file, self._end)
            raise _unavailable(f"journal {self._path} cannot be written: {error.strerror}") from error
        self._end += len(line)

    def _compact(self, line: bytes) -> None:
        """Put a file of one record in the place of the present one, whole or not at all."""
        temporary = self._path.with_suffix(".new")
        file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(file, line, 0)
            os.fsync(file)
            temporary.replace(self._path)
        except BaseException:
            os.close(file)
            temporary.unlink(missing_ok=True)
            raise
        os.close(self._file)
        self._file, self._end = file, len(line)
        _sync_directory(self._path.parent)  # when it fails: the old file is nowhere any more, writes go to this one


def _write_all(file: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unavailable(text: str) -> FtError:
    return FtError(Reason.STORE_UNAVAILABLE, text)


def _corrupt(path: Path, offset: int, what: str) -> FtError:
    return _unavailable(
        f"journal {path} is corrupt at byte {offset}: {what}; it was left as it is: repair it, or move it away "
        "to start with a pod that remembers nothing"
    )
