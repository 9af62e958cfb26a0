"""What was written is there after a crash; what is damaged is said, not guessed."""

import asyncio
import os
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from motor_ft.model.command import Command, freeze_plan
from motor_ft.model.engine import ApplyOutcome, Instruction, RankOutcome
from motor_ft.model.errors import FtError, Reason
from nodemanager.core.applies import ApplyOrder
from nodemanager.core.guard import BootTime, take
from nodemanager.core.state import (
    Answer,
    EngineProcess,
    NodeState,
    answered,
    guarded,
    intended,
    settled,
    started,
    welcomed,
)
from nodemanager.journal import COMPACT_BYTES, Journal
from tests.support.disk import full_disk

COMMAND = Command(7, "a", 5, 3)


def full_state() -> NodeState:
    """A state in which nothing is left at its default."""
    plan = freeze_plan(7, 3, frozenset({1}), {0: "e0", 2: "e2"})
    order = ApplyOrder(Instruction.SCALE_DOWN, (0, 2), (1,), "10.0.0.1", 29600, plan.plan_hash)
    state = welcomed(started(NodeState()), 7, 5, 2, scale_down_on=True)
    state = guarded(state, take(None, COMMAND, 10.5, plan, BootTime("boot", 100.25)))
    state = settled(intended(state, COMMAND, order), COMMAND, (RankOutcome(0, ApplyOutcome.ACCEPTED, "ok", 9, "a"),))
    state = answered(state, COMMAND, Answer("Apply", "a", "hash", b"\x00\xff"))
    return replace(
        state, ended="z", retired=frozenset({3}), ready=True, engine_starts=2, engines={0: EngineProcess("e0", 10, 99)}
    )


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    opened = Journal(tmp_path)
    yield opened
    await opened.close()


def crash(journal: Journal) -> None:
    """What SIGKILL does: descriptors are closed, nothing else happens."""
    os.close(journal._file)  # noqa: SLF001
    os.close(journal._lock_file)  # noqa: SLF001
    journal._thread.shutdown()  # noqa: SLF001


async def test_every_field_survives_a_crash(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    await journal.update(lambda _: full_state())
    crash(journal)
    again = Journal(tmp_path)
    assert again.state == full_state()
    await again.close()


async def test_a_refused_change_writes_nothing(journal: Journal, tmp_path: Path) -> None:
    def refuse(_: NodeState) -> NodeState:
        raise FtError(Reason.GUARD_HELD, "")

    before = (tmp_path / "journal").read_bytes()
    with pytest.raises(FtError):
        await journal.update(refuse)
    assert (journal.state, (tmp_path / "journal").read_bytes()) == (NodeState(), before)


async def test_concurrent_changes_are_all_kept(journal: Journal) -> None:
    await asyncio.gather(*(journal.update(started) for _ in range(20)))
    assert journal.state.starts == 20


async def test_a_cancelled_caller_does_not_tear_disk_and_memory_apart(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    caller = asyncio.create_task(journal.update(started))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await journal.update(started)
    assert journal.state.starts == 2
    await journal.close()
    again = Journal(tmp_path)
    assert again.state.starts == 2
    await again.close()


async def test_a_torn_last_line_was_never_acknowledged_and_is_dropped(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    await journal.update(lambda _: full_state())
    await journal.close()
    with (tmp_path / "journal").open("ab") as file:
        file.write(b"1 0000")
    again = Journal(tmp_path)
    assert again.state == full_state()
    await again.update(started)
    await again.close()


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (b"1 00000000 {}\n", "checksum"),
        (b"2 00000000 {}\n", "version"),
        (b'1 %08x {"starts":"x"}\n' % zlib.crc32(b'{"starts":"x"}'), "starts"),
        (b"\x00\x00\x00\n", "version"),
    ],
)
async def test_a_corrupt_journal_is_named_and_left_as_it_is(tmp_path: Path, damage: bytes, text: str) -> None:
    journal = Journal(tmp_path)
    await journal.update(lambda _: full_state())
    await journal.close()
    path = tmp_path / "journal"
    with path.open("ab") as file:
        file.write(damage)
    content = path.read_bytes()
    for _ in range(2):
        with pytest.raises(FtError, match=text) as caught:
            Journal(tmp_path)
        assert str(path) in caught.value.message
    assert path.read_bytes() == content


async def test_a_second_node_manager_on_the_directory_is_refused(journal: Journal, tmp_path: Path) -> None:
    with pytest.raises(FtError, match="in use by another NodeManager"):
        Journal(tmp_path)


async def test_the_file_is_bounded_and_no_half_written_file_stays(journal: Journal, tmp_path: Path) -> None:
    big = Answer("Apply", "a", "hash", bytes(COMPACT_BYTES // 8))
    for _ in range(12):
        await journal.update(lambda state: replace(started(state), answers=(big,)))
    assert (tmp_path / "journal").stat().st_size <= COMPACT_BYTES
    assert sorted(os.listdir(tmp_path)) == ["journal", "lock"]  # noqa: PTH208
    assert journal.state.starts == 12


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
async def test_a_disk_that_fails_leaves_the_old_state_on_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    journal = Journal(tmp_path)
    await journal.update(started)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(FtError, match="No space left") as caught:
            await journal.update(started)
        assert caught.value.reason is Reason.STORE_UNAVAILABLE
    assert journal.state.starts == 1
    crash(journal)
    again = Journal(tmp_path)
    assert again.state.starts == 1
    await again.update(started)
    assert again.state.starts == 2
    await again.close()


async def test_a_full_disk_is_found_while_nothing_is_written_and_so_is_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodemanager.journal.PROVE_SEC", 0.01)
    told: asyncio.Queue[str] = asyncio.Queue()
    journal = Journal(tmp_path, told.put_nowait)
    proving = asyncio.create_task(journal.prove())
    with full_disk((tmp_path / "journal").stat().st_size):
        problem = await told.get()
        assert problem == journal.problem
        assert problem.startswith(f"journal {tmp_path}/journal cannot be written: ")
    assert await told.get() == ""
    proving.cancel()
    await asyncio.gather(proving, return_exceptions=True)
    assert (journal.problem, told.empty()) == ("", True)
    await journal.update(started)
    await journal.close()
    again = Journal(tmp_path)
    assert again.state.starts == 1
    await again.close()


async def test_what_nobody_could_try_again_is_written_once_the_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodemanager.journal.RETRY_SEC", 0.01)
    told: asyncio.Queue[str] = asyncio.Queue()
    journal = Journal(tmp_path, told.put_nowait)
    with full_disk((tmp_path / "journal").stat().st_size):
        writing = asyncio.create_task(journal.insist(started))
        assert await told.get() == journal.problem != ""
        assert (journal.state.starts, writing.done()) == (0, False)
    await writing
    assert (journal.state.starts, journal.problem) == (1, "")
    await journal.close()


async def test_what_is_written_after_a_compaction_that_failed_late_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file is in its place already when the directory cannot be synced: nothing may go to the old one."""

    def broken(_: Path) -> None:
        raise OSError(5, "Input/output error")

    journal = Journal(tmp_path)
    big = Answer("Apply", "a", "hash", bytes(COMPACT_BYTES // 2))
    await journal.update(lambda state: replace(state, answers=(big,)))
    with monkeypatch.context() as patch:
        patch.setattr("nodemanager.journal._sync_directory", broken)
        with pytest.raises(FtError, match="Input/output error"):
            await journal.update(started)
    await journal.update(lambda state: replace(started(state), answers=()))
    written = journal.state
    crash(journal)
    again = Journal(tmp_path)
    assert again.state == written
    await again.close()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FtError, match="state_dir"):
        Journal(tmp_path / "file" / "state")
