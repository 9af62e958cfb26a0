"""A store that cannot be written, or only slowly, is known before a fault needs it, and told once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from controller.core.ports import Store
from controller.store.health import PROBE_SEC, SLOW_SEC, StoreHealth
from controller.store.memory import MemoryStore
from motor_ft.model.errors import FtError, Reason

pytestmark = pytest.mark.looptime


class Disk(MemoryStore):
    """A store that tells as an adapter does; ``takes`` seconds, and fails while it is ``full``."""

    def __init__(self) -> None:
        super().__init__()
        self.told: Callable[[str], None] = lambda _: None
        self.full = False
        self.takes = 0.0
        self.probes = 0

    async def probe(self) -> None:
        self.probes += 1
        await asyncio.sleep(self.takes)
        self.told("no room" if self.full else "")
        if self.full:
            raise FtError(Reason.STORE_UNAVAILABLE, "no room")


class Observed:
    """health.Observer that remembers."""

    def __init__(self) -> None:
        self.available: list[bool] = []
        self.seconds: list[float] = []
        self.changes = 0

    def store(self, available: bool) -> None:
        self.available.append(available)

    def store_probe(self, seconds: float) -> None:
        self.seconds.append(seconds)

    def changed(self) -> None:
        self.changes += 1


@asynccontextmanager
async def watched(store: Store, observed: Observed) -> AsyncIterator[StoreHealth]:
    health = StoreHealth(observed, asyncio.get_running_loop().time, observed.changed)
    watch = asyncio.create_task(health.watch(store))
    try:
        yield health
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def test_a_full_disk_is_found_while_nothing_happens_and_so_is_its_end() -> None:
    """Each is logged, shown and told to whoever waits, once."""
    disk, observed = Disk(), Observed()
    await disk.lead()
    with capture_logs() as logs:
        async with watched(disk, observed) as health:
            disk.told = health.told
            assert not health.degraded
            disk.full = True
            await asyncio.sleep(3 * PROBE_SEC)
            assert health.problem == "no room"
            assert health.degraded == ("the store cannot be written: no room",)
            assert (observed.available, observed.changes) == ([True, False], 1)
            disk.full = False
            await asyncio.sleep(3 * PROBE_SEC)
            assert health.problem == ""
            assert (observed.available, observed.changes) == ([True, False, True], 2)
    assert [(entry["log_level"], entry["event"]) for entry in logs] == [
        ("error", "the store cannot be written; no recovery starts until it can"),
        ("warning", "the store can be written again"),
    ]


async def test_one_failure_of_a_store_that_can_be_written_holds_nothing_back() -> None:
    """A member was lost, say, and another one writes."""
    disk, observed = Disk(), Observed()
    await disk.lead()
    async with watched(disk, observed) as health:
        disk.told = health.told
        await asyncio.sleep(PROBE_SEC / 2)
        health.told("a member is gone")
        await asyncio.sleep(0.1)
        assert health.problem == ""
        await asyncio.sleep(PROBE_SEC - 0.2)
    assert disk.probes == 1, "the next one is as far away as ever"


async def test_a_slow_store_is_told_and_holds_nothing_back() -> None:
    disk, observed = Disk(), Observed()
    await disk.lead()
    async with watched(disk, observed) as health:
        disk.takes = 2 * SLOW_SEC
        await asyncio.sleep(2 * PROBE_SEC)
        assert (health.problem, health.degraded) == ("", ("the store is slow: a write took 2.0 s",))
        disk.takes = SLOW_SEC
        await asyncio.sleep(2 * PROBE_SEC)
        assert not health.degraded
    assert observed.changes == 2
    assert observed.seconds[0] == pytest.approx(2 * SLOW_SEC)


async def test_who_does_not_lead_writes_nothing() -> None:
    disk, observed = Disk(), Observed()
    async with watched(disk, observed):
        await asyncio.sleep(3 * PROBE_SEC)
    assert disk.probes == 0
