"""What only the store in etcd has to do: one Controller leads, and a former leader writes nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from controller.core.phases import Phase
from controller.core.records import RuntimeRecord
from controller.store.etcd.client import EtcdClient
from controller.store.etcd.lease import USABLE, Lease
from controller.store.etcd.requests import put
from controller.store.etcd.store import EtcdStore
from motor_ft.etcd import rpc_pb2 as pb
from motor_ft.model.errors import FtError, Reason
from tests.support.etcd import Etcd, open_store
from tests.support.waiting import until

RUNTIME = RuntimeRecord(Phase.NORMAL, 1, (0, 1))
TTL_SEC = 60
"""Outlives every test: nothing here waits for a lease to expire."""


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


class Fleet:
    """Controllers' stores under one prefix."""

    def __init__(self, etcd: Etcd, prefix: str) -> None:
        self._etcd = etcd
        self.prefix = prefix
        self.stores: list[EtcdStore] = []
        self.terms: list[asyncio.Task[int]] = []

    def new(
        self, now: Clock | None = None, on_lost: Callable[[FtError], None] = lambda _: None, address: str = ""
    ) -> EtcdStore:
        now = now or Clock()
        store = open_store(self._etcd, self.prefix, ttl_sec=TTL_SEC, address=address, now=now, on_lost=on_lost)
        self.stores.append(store)
        return store

    def candidates(self) -> list[str]:
        """Keys of Controllers that lead or wait, oldest first."""
        flags = ("--prefix", "--keys-only", "--sort-by=CREATE")
        return self._etcd.ctl("get", f"{self.prefix}/leader/", *flags).split()

    def delete(self, *keys: str) -> None:
        """As if leases had expired."""
        for key in keys:
            self._etcd.ctl("del", key)

    async def standby(self, address: str = "") -> tuple[EtcdStore, asyncio.Task[int]]:
        """A store that waits behind all others."""
        store, before = self.new(address=address), len(self.candidates())
        term = asyncio.create_task(store.lead())
        self.terms.append(term)
        await until(lambda: len(self.candidates()) > before)
        return store, term

    async def close(self) -> None:
        for term in self.terms:
            term.cancel()
        await asyncio.gather(*self.terms, return_exceptions=True)
        for store in self.stores:
            await store.close()


@pytest.fixture
async def fleet(etcd: Etcd, tmp_path: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(etcd, str(tmp_path))
    yield fleet
    await fleet.close()


async def not_leader(write: Awaitable[object]) -> str:
    """The write is refused; returns the text."""
    with pytest.raises(FtError) as refusal:
        await write
    assert refusal.value.reason is Reason.NOT_LEADER
    return refusal.value.message


class TestLeadership:
    async def test_a_standby_leads_as_soon_as_the_leader_closes(self, fleet: Fleet) -> None:
        first = fleet.new()
        epoch = await first.lead()
        second, term = await fleet.standby()
        assert not second.leads()
        assert not term.done()
        await first.close()
        assert await term > epoch
        assert second.leads()

    async def test_a_standby_that_leaves_lets_nobody_lead_too_early(self, fleet: Fleet) -> None:
        """The one behind it goes on waiting, behind the leader."""
        first = fleet.new()
        await first.lead()
        second, cancelled = await fleet.standby()
        third, term = await fleet.standby()
        cancelled.cancel()
        await second.close()
        assert len(fleet.candidates()) == 2
        await first.save_runtime(1, RUNTIME, 0)
        assert not term.done()
        await first.close()
        await term
        await third.save_runtime(2, RUNTIME, 0)
        assert sorted((await third.load()).runtimes) == [1, 2]

    async def test_an_epoch_that_was_raised_stays_below_those_of_later_terms(self, fleet: Fleet) -> None:
        """Also of a term whose key was there before the epoch was raised."""
        first = fleet.new()
        epoch = await first.lead()
        _, term = await fleet.standby()
        raised = await first.lead(above=epoch)
        assert raised == epoch + 1
        await first.close()
        assert await term > raised

    async def test_everybody_knows_the_address_of_the_leader(self, fleet: Fleet) -> None:
        """Also one that waits behind another one, and until leadership is lost."""
        first = fleet.new(address="first:1")
        assert first.leader() == ""
        await first.lead()
        (second, term), (third, _) = await fleet.standby("second:2"), await fleet.standby("third:3")
        await until(lambda: [second.leader(), third.leader()] == ["first:1", "first:1"])
        assert first.leader() == "first:1"
        await first.close()
        await term
        await until(lambda: [second.leader(), third.leader()] == ["second:2", "second:2"])

    async def test_after_the_deadline_nothing_is_done_although_the_lease_still_lives(self, fleet: Fleet) -> None:
        """The deadline passes on the leader's own clock before etcd lets anybody else lead."""
        clock, lost = Clock(), list[FtError]()
        store = fleet.new(clock, lost.append)
        await store.lead()
        revision = await store.save_runtime(1, RUNTIME, 0)
        _, term = await fleet.standby()
        clock.time += USABLE * TTL_SEC
        assert not store.leads()
        writes = (store.save_runtime(1, RUNTIME.at(Phase.DECIDING), revision), store.next_instance_id(), store.lead())
        for write in writes:
            assert "leads no longer" in await not_leader(write)
        assert [error.reason for error in lost] == [Reason.NOT_LEADER]
        assert not term.done()
        stored = await store.runtime(1)
        assert stored is not None
        assert stored.record == RUNTIME

    async def test_a_write_is_refused_by_etcd_when_the_leaders_key_is_gone(self, fleet: Fleet, etcd: Etcd) -> None:
        """Whatever the leader believes: here its clock stands still."""
        lost = list[FtError]()
        store = fleet.new(on_lost=lost.append)
        await store.lead()
        [key] = fleet.candidates()
        etcd.ctl("del", key)
        assert store.leads()
        assert "another one has taken over" in await not_leader(store.save_runtime(1, RUNTIME, 0))
        assert "another one has taken over" in await not_leader(store.remove(1))
        assert len(lost) == 1
        assert not store.leads()
        assert (await store.load()).runtimes == {}

    async def test_the_loss_is_told_without_a_write(self, etcd: Etcd, tmp_path: Path) -> None:
        """The renewal finds out."""
        told = asyncio.get_running_loop().create_future()
        store = open_store(etcd, str(tmp_path), ttl_sec=2, on_lost=told.set_result)
        await store.lead()
        [key] = etcd.ctl("get", f"{tmp_path}/leader/", "--prefix", "--keys-only").split()
        etcd.ctl("lease", "revoke", key.rpartition("/")[2])
        assert (await told).reason is Reason.NOT_LEADER
        await store.close()

    async def test_an_offset_that_is_no_number_is_named(self, fleet: Fleet, etcd: Etcd) -> None:
        etcd.put(f"{fleet.prefix}/epoch_offset", b"twelve")
        with pytest.raises(FtError, match=r"epoch_offset is not a number: b'twelve'"):
            await fleet.new().lead()


async def behind(term: Awaitable[int], fleet: int) -> None:
    """The term is not begun, because the fleet has followed this epoch."""
    with pytest.raises(FtError, match=f"the fleet has followed epoch {fleet}, here it would be") as refusal:
        await term
    assert refusal.value.reason is Reason.EPOCH_BEHIND_FLEET


class TestFleetAhead:
    """An etcd that has lost its data, or is not the fleet's: nobody may lead before a person has looked at it."""

    AHEAD = 5_000_000

    async def test_the_term_ends_and_no_other_is_begun_until_an_operator_raises_the_epoch(self, fleet: Fleet) -> None:
        lost = list[FtError]()
        first = fleet.new(on_lost=lost.append)
        await first.lead()
        await behind(first.lead(above=self.AHEAD), self.AHEAD)
        assert [error.reason for error in lost] == [Reason.EPOCH_BEHIND_FLEET]
        assert not first.leads()
        assert "its epoch is behind the fleet's" in await not_leader(first.save_runtime(1, RUNTIME, 0))
        await first.close()
        second = fleet.new()
        await behind(second.lead(), self.AHEAD)
        await behind(second.lead(), self.AHEAD)
        assert await fleet.new().raise_epoch(None, dry_run=True) == (0, self.AHEAD)
        await behind(second.lead(), self.AHEAD)
        assert await fleet.new().raise_epoch(None, dry_run=False) == (0, self.AHEAD)
        assert await second.lead() > self.AHEAD
        await second.save_runtime(1, RUNTIME, 0)

    async def test_an_operator_may_name_the_epoch_and_never_lowers_it(self, fleet: Fleet) -> None:
        operator = fleet.new()
        assert await operator.raise_epoch(None, dry_run=False) == (0, 0)
        assert await operator.raise_epoch(7_000, dry_run=False) == (0, 7_000)
        assert await operator.raise_epoch(6_000, dry_run=False) == (7_000, 7_000)
        assert await fleet.new().lead() > 7_000

    async def test_a_former_leader_is_no_judge_of_that(self, fleet: Fleet) -> None:
        """What the fleet has seen is the term of whoever leads now."""
        clock = Clock()
        former = fleet.new(clock)
        await former.lead()
        clock.time += TTL_SEC
        assert "leads no longer" in await not_leader(former.lead(above=self.AHEAD))
        await former.close()
        assert await fleet.new().lead() < self.AHEAD


async def test_a_lease_counts_from_when_its_grant_was_sent(etcd: Etcd) -> None:
    """What passes until the reply comes counts against us."""
    clock = Clock()
    client = EtcdClient(etcd.endpoints)
    sent = [clock.time]

    def now() -> float:
        return sent.pop() if sent else clock.time

    clock.time += 5
    lease = await Lease.grant(client, TTL_SEC, now)
    held = []
    for clock.time in (100 + USABLE * TTL_SEC - 0.1, 100 + USABLE * TTL_SEC):
        held.append(lease.holds)
    assert held == [True, False]
    await client.revoke(lease.id)
    await client.close()


async def test_a_closed_store_says_so(fleet: Fleet) -> None:
    store = fleet.new()
    await store.close()
    with pytest.raises(FtError, match="the connection is closed"):
        await store.load()


async def test_a_probe_finds_an_etcd_without_room_that_still_reads_and_renews_leases() -> None:
    """It leaves no revision behind, so it does not fill etcd up itself."""
    with Etcd(1, "--quota-backend-bytes=200000") as etcd:
        told = list[str]()
        client = EtcdClient(etcd.endpoints, told=told.append)
        store = EtcdStore(
            client, prefix="/p", lease_ttl_sec=TTL_SEC, address="", now=Clock(), on_lost=lambda error: told.append("!")
        )
        await store.lead()
        revision = await store.save_runtime(1, RUNTIME, 0)
        await store.probe()
        assert await store.save_runtime(1, RUNTIME, revision) == revision + 1
        while "database space exceeded" not in told[-1]:
            with suppress(FtError):
                await client.txn(pb.TxnRequest(success=[put(b"/filler", bytes(20_000))]))
        told.clear()
        with pytest.raises(FtError, match="database space exceeded"):
            await store.probe()
        assert "database space exceeded" in told[-1]
        assert (await store.runtime(1)) is not None
        assert store.leads()
        assert "database space exceeded" in told[-1], "what was read says nothing of writes"
        await store.close()


async def test_a_key_that_is_no_record_hinders_nobody(etcd: Etcd, fleet: Fleet) -> None:
    """As a later version may add one, or a person who keeps a copy."""
    store = fleet.new()
    await store.lead()
    await store.save_runtime(1, RUNTIME, 0)
    for name in ("1/runtime.old", "1/history", "notes", "x/runtime", "0x1/runtime"):
        etcd.ctl("put", f"{fleet.prefix}/record/{name}", "?")
    loaded = await store.load()
    assert list(loaded.runtimes) == [1]
    assert (loaded.identities, loaded.unreadable) == ({}, {})


async def test_a_probe_finds_that_another_one_has_taken_over(fleet: Fleet) -> None:
    lost = list[FtError]()
    store = fleet.new(on_lost=lost.append)
    await store.lead()
    fleet.delete(*fleet.candidates())
    with pytest.raises(FtError, match="another one has taken over"):
        await store.probe()
    assert len(lost) == 1
