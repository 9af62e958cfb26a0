"""What every store MUST do (controller.core.ports.Store). A new backend joins by one more entry in BACKENDS."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest

from controller.core.phases import Phase
from controller.core.ports import Store, Stored
from controller.core.records import IdentityRecord, RuntimeRecord
from controller.store.codec import Kind, Row
from controller.store.memory import MemoryStore, Shelf
from controller.store.sqlite import SqliteStore
from motor_ft.model.errors import FtError, Reason
from motor_ft.model.hardware import fault_key
from motor_ft.model.topology import Device, Endpoint, FtCapability, Registration, Role
from tests.support.etcd import Etcd, open_store


class Backend(Protocol):
    """One backend whose content outlives the stores that are opened on it."""

    async def open(self) -> Store:
        """A Controller starts."""
        ...

    def damage(self, kind: Kind, instance_id: int) -> None:
        """Make a stored record unreadable while no store is open."""
        ...


class MemoryBackend:
    """Stores on one shelf."""

    def __init__(self, _directory: Path, _etcd: Etcd) -> None:
        self._shelf = Shelf()

    async def open(self) -> Store:
        return MemoryStore(self._shelf)

    def damage(self, kind: Kind, instance_id: int) -> None:
        row = self._shelf.rows[kind, instance_id]
        self._shelf.rows[kind, instance_id] = Row(kind, instance_id, row.revision, b'{"version":1,"rec')


class SqliteBackend:
    """Stores on one file."""

    def __init__(self, directory: Path, _etcd: Etcd) -> None:
        self._path = directory / "controller.db"

    async def open(self) -> Store:
        return await SqliteStore.open(self._path)

    def damage(self, kind: Kind, instance_id: int) -> None:
        connection = sqlite3.connect(self._path, isolation_level=None)
        query = "UPDATE record SET body = ? WHERE kind = ? AND instance_id = ?"
        assert connection.execute(query, (b'{"version":1,"rec', kind, instance_id)).rowcount == 1
        connection.close()


class EtcdBackend:
    """Stores under one prefix."""

    def __init__(self, directory: Path, etcd: Etcd) -> None:
        self._prefix = str(directory)
        self._etcd = etcd

    async def open(self) -> Store:
        return open_store(self._etcd, self._prefix)

    def damage(self, kind: Kind, instance_id: int) -> None:
        self._etcd.put(f"{self._prefix}/record/{instance_id}/{kind}", b'{"version":1,"rec')


BACKENDS: list[Callable[[Path, Etcd], Backend]] = [MemoryBackend, SqliteBackend, EtcdBackend]

RUNTIME = RuntimeRecord(Phase.NORMAL, 7, (0, 1, 2, 3), dead_committed=(2,))
REGISTRATION = Registration(
    pod_uid="uid-0",
    job_name="job",
    model_name="model",
    engine_type="vllm",
    role=Role.UNION,
    node_name="node-0",
    pod_name="pod-0",
    pod_ip="10.0.0.1",
    node_manager_address="10.0.0.1:9000",
    dp_size=1,
    tp_size=1,
    endpoints=(Endpoint(0, "10.0.0.1", 8000, devices=(Device("3"),), incarnation="first"),),
    capability=FtCapability("vllm_v1", True, True, True, False, True, 1, 120.0),
)


def identity(instance_id: int) -> IdentityRecord:
    """An identity with every field set, of an instance with one rank."""
    return IdentityRecord(
        instance_id,
        "job",
        "model",
        "vllm",
        Role.UNION,
        1,
        1,
        (REGISTRATION,),
        ready=True,
        baseline=(0,),
        hardware_baseline=(fault_key("node-a", "Ascend910-3", "0x80E18402"),),
        paused="by ann: upgrade of node-1",
    )


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.__name__)
def backend(request: pytest.FixtureRequest, tmp_path: Path, etcd: Etcd) -> Backend:
    """Each backend in turn, empty."""
    make: Callable[[Path, Etcd], Backend] = request.param
    return make(tmp_path, etcd)


@pytest.fixture
async def store(backend: Backend) -> AsyncIterator[Store]:
    """An open store that leads."""
    opened = await backend.open()
    await opened.lead()
    yield opened
    await opened.close()


async def read(store: Store, instance_id: int) -> Stored[RuntimeRecord]:
    """The runtime record that must be there."""
    stored = await store.runtime(instance_id)
    assert stored is not None
    return stored


async def refused(reason: Reason, write: Awaitable[object]) -> None:
    """The write must be refused for this reason."""
    with pytest.raises(FtError) as refusal:
        await write
    assert refusal.value.reason is reason


async def test_what_was_written_is_read_back(store: Store) -> None:
    """Every field of both records MUST come back equal, each with the revision of its write."""
    revision = await store.save_runtime(3, RUNTIME, 0)
    identity_revision = await store.save_identity(identity(3), 0)
    loaded = await store.load()
    assert loaded.runtimes == {3: Stored(RUNTIME, revision)}
    assert loaded.identities == {3: Stored(identity(3), identity_revision)}
    assert loaded.identities[3].record.pods[0].endpoints[0].incarnation == "first"
    assert loaded.unreadable == {}
    assert await store.runtime(3) == Stored(RUNTIME, revision)


async def test_an_empty_store_holds_nothing(store: Store) -> None:
    """An absent record MUST read as None, and nothing MUST load."""
    assert await store.runtime(1) is None
    loaded = await store.load()
    assert (loaded.identities, loaded.runtimes, loaded.unreadable) == ({}, {}, {})


async def test_a_caller_that_edits_a_fetched_record_changes_nothing(store: Store) -> None:
    """A fetched record MUST be a copy of what is stored; so must a saved one."""
    saved = RuntimeRecord(Phase.NORMAL, 7, (0, 1))
    await store.save_runtime(1, saved, 0)
    object.__setattr__(saved, "generation", 8)
    fetched = await read(store, 1)
    object.__setattr__(fetched.record, "phase", Phase.RECONFIGURING)
    assert (await read(store, 1)).record == RuntimeRecord(Phase.NORMAL, 7, (0, 1))


async def test_a_write_must_name_the_stored_revision(store: Store) -> None:
    """A write on another revision MUST be refused and change nothing."""
    first = await store.save_runtime(1, RUNTIME, 0)
    second = await store.save_runtime(1, RUNTIME.at(Phase.DECIDING), first)
    assert second > first
    await refused(Reason.STORE_CONFLICT, store.save_runtime(1, RUNTIME, first))
    await refused(Reason.STORE_CONFLICT, store.save_runtime(1, RUNTIME, second + 1))
    assert await read(store, 1) == Stored(RUNTIME.at(Phase.DECIDING), second)


async def test_revision_zero_means_that_there_must_be_none(store: Store) -> None:
    """Creating MUST fail where a record is, changing MUST fail where none is."""
    await store.save_identity(identity(1), 0)
    await refused(Reason.STORE_CONFLICT, store.save_identity(identity(1), 0))
    await refused(Reason.STORE_CONFLICT, store.save_identity(identity(2), 1))
    assert list((await store.load()).identities) == [1]


async def test_one_of_two_writers_of_the_same_revision_wins(store: Store) -> None:
    """Two read-modify-writes that overlap MUST NOT both succeed."""
    revision = await store.save_runtime(1, RUNTIME, 0)
    await store.save_runtime(1, RUNTIME.at(Phase.DECIDING), revision)
    await refused(Reason.STORE_CONFLICT, store.save_runtime(1, RUNTIME.at(Phase.RECONFIGURING), revision))
    assert (await read(store, 1)).record.phase is Phase.DECIDING


async def test_a_removed_instance_is_gone_and_its_revisions_stay_used(store: Store) -> None:
    """Removal MUST take both records; a later record MUST NOT be mistaken for the earlier one."""
    revision = await store.save_runtime(1, RUNTIME, 0)
    await store.save_identity(identity(1), 0)
    await store.save_runtime(2, RUNTIME, 0)
    await store.remove(1)
    await store.remove(1)
    loaded = await store.load()
    assert (list(loaded.identities), list(loaded.runtimes)) == ([], [2])
    assert await store.save_runtime(1, RUNTIME, 0) > revision
    await refused(Reason.STORE_CONFLICT, store.save_runtime(1, RUNTIME, revision))


async def test_instance_ids_are_never_used_again(backend: Backend) -> None:
    """Ids MUST count from 1 and go on after a restart, also when the instance was removed."""
    first = await backend.open()
    await first.lead()
    assert [await first.next_instance_id() for _ in range(3)] == [1, 2, 3]
    await first.remove(3)
    await first.close()
    second = await backend.open()
    await second.lead()
    assert await second.next_instance_id() == 4
    await second.close()


async def test_every_term_has_a_larger_epoch(backend: Backend) -> None:
    """An epoch MUST be above every earlier one, over restarts, also above one that somebody else has told."""
    first = await backend.open()
    epochs = [0, await first.lead(), await first.lead()]
    epochs.append(await first.lead(above=epochs[-1]))
    epochs.append(await first.lead(above=1))
    await first.close()
    second = await backend.open()
    epochs.append(await second.lead())
    await second.close()
    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize("backend", [MemoryBackend, SqliteBackend], indirect=True)
async def test_an_embedded_store_raises_its_epoch_above_a_fleet_that_is_ahead(backend: Backend) -> None:
    store = await backend.open()
    epoch = await store.lead()
    assert await store.lead(above=epoch + 1_000) > epoch + 1_000
    await store.close()


async def test_a_restart_keeps_everything(backend: Backend) -> None:
    """What was confirmed before the end MUST be there after it, at the same revision."""
    first = await backend.open()
    await first.lead()
    revision = await first.save_runtime(1, RUNTIME, 0)
    identity_revision = await first.save_identity(identity(1), 0)
    await first.close()
    second = await backend.open()
    await second.lead()
    loaded = await second.load()
    assert loaded.runtimes == {1: Stored(RUNTIME, revision)}
    assert loaded.identities == {1: Stored(identity(1), identity_revision)}
    assert await second.save_runtime(1, RUNTIME.at(Phase.DECIDING), revision) > revision
    await second.close()


@pytest.mark.parametrize("kind", Kind)
async def test_one_bad_stored_row_does_not_lose_the_others(backend: Backend, kind: Kind) -> None:
    """An unreadable record MUST be reported under its instance; every other record MUST load."""
    first = await backend.open()
    await first.lead()
    for instance_id in (1, 2):
        await first.save_runtime(instance_id, RUNTIME, 0)
        await first.save_identity(identity(instance_id), 0)
    await first.close()
    backend.damage(kind, 1)
    second = await backend.open()
    await second.lead()
    loaded = await second.load()
    assert list(loaded.unreadable) == [1]
    assert kind in loaded.unreadable[1].why
    assert sorted(loaded.runtimes) == ([2] if kind is Kind.RUNTIME else [1, 2])
    assert sorted(loaded.identities) == ([2] if kind is Kind.IDENTITY else [1, 2])
    await second.close()


async def test_an_unreadable_record_is_never_taken_for_an_absent_one(backend: Backend) -> None:
    """Reading it alone MUST fail, creating it MUST be refused; after removal it MUST be writable again."""
    first = await backend.open()
    await first.lead()
    await first.save_runtime(1, RUNTIME, 0)
    await first.close()
    backend.damage(Kind.RUNTIME, 1)
    second = await backend.open()
    await second.lead()
    await refused(Reason.STORE_UNAVAILABLE, second.runtime(1))
    await refused(Reason.STORE_CONFLICT, second.save_runtime(1, RUNTIME, 0))
    await second.remove(1)
    await second.save_runtime(1, RUNTIME, 0)
    assert (await second.load()).unreadable == {}
    await second.close()


async def test_only_a_leader_writes(backend: Backend) -> None:
    """Before a term and after close every write MUST be refused; reading needs no term."""
    store = await backend.open()
    writes: list[Callable[[], Awaitable[object]]] = [
        lambda: store.save_runtime(1, RUNTIME, 0),
        lambda: store.save_identity(identity(1), 0),
        lambda: store.remove(1),
        store.next_instance_id,
        store.probe,
    ]
    for write in writes:
        await refused(Reason.NOT_LEADER, write())
    assert await store.runtime(1) is None
    assert not store.leads()
    await store.lead()
    assert store.leads()
    await store.save_runtime(1, RUNTIME, 0)
    await store.close()
    await store.close()
    assert not store.leads()
    for write in writes:
        await refused(Reason.NOT_LEADER, write())


async def test_a_probe_changes_no_record(backend: Backend) -> None:
    """What was read before it MUST still be the revision to write on, however often it is made."""
    store = await backend.open()
    await store.lead()
    revision = await store.save_runtime(1, RUNTIME, 0)
    for _ in range(3):
        await store.probe()
    assert (await store.load()).runtimes == {1: Stored(RUNTIME, revision)}
    await store.save_runtime(1, RUNTIME, revision)
    await store.close()
