"""A whole engine group in one process, for integration tests."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import TracebackType
from typing import Self

from tests.support.engine.config import FAST, Dialect, GroupConfig, Timings
from tests.support.engine.group import Group
from tests.support.engine.handler import Reply, Request, handle
from tests.support.engine.injections import clear, inject
from tests.support.engine.journal import ApplyRecord, Journal
from tests.support.engine.rank import Child, Rank
from tests.support.engine.web import RankServer
from tests.support.waiting import until


class FakeGroup:
    """N ranks, each with its own HTTP server on 127.0.0.1, or one for all where the dialect is like that.

    async with FakeGroup(dp_size=4, dialect="vllm_v1") as group:
        await group.inject(1, "worker_kill")
    """

    def __init__(
        self,
        dp_size: int = 4,
        dialect: str = "vllm_v1",
        *,
        tp_size: int = 1,
        timings: Timings = FAST,
        api_key: str | None = None,
        fault_tolerance: bool = True,
        bare_router: bool = False,
        host: str = "127.0.0.1",
        ports: Mapping[int, int] | None = None,
    ) -> None:
        self.config = GroupConfig(dp_size, Dialect(dialect), tp_size, timings, api_key, fault_tolerance, bare_router)
        self.journal = Journal()
        self._groups: list[Group] = []
        self._current: dict[int, Rank] = {}
        self._servers = {
            number: RankServer(self._serve(number), host, (ports or {}).get(number, 0)) for number in range(dp_size)
        }
        if self.config.dialect.one_server:
            self._servers = dict.fromkeys(self._servers, self._servers[0])
        self._jobs: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.rebuild()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._settle()
        for server in self._servers.values():
            await server.stop()
        for group in self._groups:
            await group.close()

    async def rebuild(self) -> None:
        """Start all engines anew on their ports: a new generation, everybody healthy."""
        await self._settle()
        for rank in self._current.values():
            rank.vanish()
        group = self._new_group()
        for number in self._servers:
            self._add(group, number)
        for server in self._servers.values():
            await server.start()

    async def restart(self, number: int) -> None:
        """Start one engine anew behind everybody's back: healthy, but in no group."""
        self._current[number].vanish()
        self._add(self._new_group(), number)
        await self._servers[number].start()

    async def inject(self, rank: int | None, name: str, **params: object) -> None:
        """One injection of `injections.py`, in effect on return; group injections take rank None."""
        group = self.rank(0 if rank is None else rank).group
        inject(group, rank, name, params)
        await self._settle()

    async def clear(self, rank: int, name: str) -> None:
        clear(self.rank(rank).group, rank, name)

    async def until(self, condition: Callable[[], object], timeout: float = 10.0) -> None:
        """Wait for a condition over the group's state; the TimeoutError shows the entries."""
        try:
            await until(condition, timeout)
        except TimeoutError as error:
            error.add_note(f"entries: {[self.entry(number) for number in self._current]}")
            raise

    def url(self, rank: int) -> str:
        return self._servers[rank].url

    def port(self, rank: int) -> int:
        return self._servers[rank].port

    def rank(self, number: int) -> Rank:
        """The rank's current incarnation."""
        return self._current[number]

    def entry(self, rank: int) -> dict[str, object]:
        """The cached entry as GET status would show it, without injected lies."""
        return self._current[rank].entry.view()

    def statuses(self) -> dict[int, object]:
        """The `status` of every cached entry."""
        return {number: self.entry(number)["status"] for number in self._current}

    def applies(self, rank: int | None = None) -> list[ApplyRecord]:
        """Every apply that reached this rank, or any rank, oldest first."""
        return [record for record in self.journal.applies if rank is None or record.rank == rank]

    def _new_group(self) -> Group:
        group = Group(self.config, self.journal, len(self._groups) + 1)
        self._groups.append(group)
        return group

    def _add(self, group: Group, number: int) -> None:
        host = _LocalHost(self, number, self._servers[number])
        self._current[number] = group.add(number, secrets.token_hex(4), host)

    def _serve(self, number: int) -> Callable[[Request], Awaitable[Reply]]:
        async def serve(request: Request) -> Reply:
            return await handle(self._current[number], request)

        return serve

    def start_job(self, name: str, work: Coroutine[object, object, None]) -> None:
        """A change of processes that an engine asked for; awaited at the latest on exit."""
        task = asyncio.create_task(work, name=name)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def _settle(self) -> None:
        while self._jobs:
            await asyncio.gather(*self._jobs)


class _LocalHost:
    """Processes of a rank that exist only as a port."""

    def __init__(self, fake: FakeGroup, number: int, server: RankServer) -> None:
        self._fake = fake
        self._number = number
        self._server = server

    def end_server(self) -> None:
        self._fake.start_job(f"end server of rank {self._number}", self._server.stop())

    def listen(self, up: bool) -> None:
        change = self._server.start() if up else self._server.stop()
        self._fake.start_job(f"frontend of rank {self._number}", change)

    def kill(self, child: Child) -> None:
        self._fake.rank(self._number).child_changed(child, "died")

    def restart(self) -> None:
        self._fake.start_job(f"restart rank {self._number}", self._fake.restart(self._number))
