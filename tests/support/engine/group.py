"""One generation of an engine group: its ranks, its stores, and how a loss is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import count

from tests.support.engine.changes import Changes
from tests.support.engine.config import Dialect, GroupConfig
from tests.support.engine.journal import Journal
from tests.support.engine.rank import Host, Rank
from tests.support.engine.sglang import SglangRank
from tests.support.engine.store import Store
from tests.support.engine.vote import Vote

_FIRST_ROUND_PORT = 42213


class Group:
    """All engines that formed one collective; a rebuilt instance is a new Group."""

    def __init__(self, config: GroupConfig, journal: Journal, generation: int) -> None:
        self.config = config
        self.timings = config.timings
        self.journal = journal
        self.generation = generation
        self.changes = Changes()
        self.ranks: dict[int, Rank] = {}
        self.store = Store(0, lambda: self._core_gone(0))
        self.moved_stores: dict[tuple[object, object], Store] = {}
        self.round_stores: dict[str, Store] = {}
        """Dialect (a): the store of each round by its port number, as written in the first store."""
        self.votes: dict[str, Vote] = {}
        self.ports_in_use: set[object] = set()
        self.idle = False
        self.operating = False
        """Dialect (c): an order runs."""
        self.receipt: dict[str, object] = {}
        """Dialect (c): what the last order that has ended left at the top of the status."""
        self._round_ports = count(_FIRST_ROUND_PORT)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []

    def add(self, number: int, incarnation: str, host: Host) -> Rank:
        kind = SglangRank if self.config.dialect is Dialect.SGLANG else Rank
        rank = self.ranks[number] = kind(self, number, incarnation, host)
        self.record(number, "start", incarnation)
        return rank

    def record(self, rank: int | None, kind: str, detail: object = None) -> None:
        self.journal.change(self.generation, rank, kind, detail)

    def open_round_store(self) -> Store:
        """A fresh store on rank 0 for one round of dialect (a)."""
        port = next(self._round_ports)
        store = self.round_stores[str(port)] = Store(0, lambda: self._core_gone(0), port)
        return store

    def open_moved_store(self, master: int, ip: str, port: int) -> Store:
        """The store at its new address, really bound; raises as `Store.listen` does."""
        store = Store(master, lambda: self._core_gone(master))
        store.listen(ip, port)
        self.moved_stores[ip, port] = store
        self.changes.notify()
        return store

    def close_stores(self, host: int) -> None:
        """The stores of a rank end, and their ports are free, when its EngineCore is gone."""
        for store in self.moved_stores.values():
            if store.host_rank == host:
                store.close()

    def _core_gone(self, number: int) -> bool:
        return number not in self.ranks or self.ranks[number].core_gone

    # Noticing a lost peer

    def reconsider(self) -> None:
        """Something changed: wake the waiters and let the survivors' collectives run into it."""
        self.changes.notify()
        for rank in self.ranks.values():
            if rank.notice is None and self._would_notice(rank):
                rank.notice = self.spawn(f"collective of rank {rank.number}", self._notice(rank))

    def _would_notice(self, rank: Rank) -> bool:
        if not rank.steps or self.detection_delay(rank) is None or not rank.lost_peers():
            return False
        # After a scale_down of dialect (b) the survivors keep stepping dummy batches; dialect (c) has a watchdog.
        dialect = self.config.dialect
        steps_alone = dialect is Dialect.SGLANG or (dialect is Dialect.V1 and bool(rank.dead_set))
        return not self.idle or steps_alone or any(r.completions.pending for r in self.ranks.values())

    def detection_delay(self, rank: Rank) -> float | None:
        """Seconds until this rank's collective fails; None means never."""
        override = rank.armed.take("detection_delay")
        if override is None:
            return self.timings.detection_delay
        seconds = override.get("seconds")
        return float(seconds) if isinstance(seconds, int | float) else None

    async def _notice(self, rank: Rank) -> None:
        try:
            await asyncio.sleep(self.detection_delay(rank) or 0.0)
        finally:
            rank.notice = None
        if rank.steps and rank.lost_peers() and self.detection_delay(rank) is not None:
            rank.raise_step()

    # Tasks

    def spawn(self, name: str, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(_run(work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        task.add_done_callback(lambda _: work.close())  # cancelled before its first step, it was never awaited
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.append(error)

    async def close(self) -> None:
        """End all background work and release the ports.

        Raises:
            BaseExceptionGroup: a background task had failed, which is a bug of the fake.
        """
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for store in self.moved_stores.values():
            store.close()
        if self._failures:
            raise BaseExceptionGroup("fake engine group", self._failures)


async def _run(work: Coroutine[object, object, None]) -> None:
    await work
