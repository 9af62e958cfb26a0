"""Dialect (a): one retry on one rank, step by step (engine-contract.md section 2.4)."""

from __future__ import annotations

import asyncio

from tests.support.engine.rank import ENGINE_DEAD, CommandError, Rank, log
from tests.support.engine.states import Status
from tests.support.engine.store import STORE_LOST, Store, connect_timeout, wait_timeout
from tests.support.engine.validation import Command

_LAGGING_BLOCK = 1.3
"""A rank one epoch behind blocks 1.3 to 2.3 × T on a port that nobody serves; the fake takes the least."""
_WORKERS_FAILED = "One or more workers failed"


async def run(rank: Rank, command: Command) -> None:
    """What happens behind the 202: commands queue on the engine's input thread."""
    if command.lost:
        log.warning("rank %d cannot serialise %s", rank.number, command.request_id)
        return
    async with rank.input_thread:
        try:
            await rank.run_in_engine(_retry(rank))
        except CommandError as failure:
            if rank.core_gone:
                log.warning("rank %d: %s", rank.number, ENGINE_DEAD)
                return
            rank.patch(last_ft_request_id=command.request_id, ft_error=str(failure))


async def _retry(rank: Rank) -> None:
    await rank.thawed()
    if rank.status is not Status.UNHEALTHY:
        raise CommandError(f"[FT] Rejecting retry on engine {rank.number}: status is {rank.status.upper()}")
    store = await _rendezvous(rank) if rank.group.config.dp_size > 1 else None
    await asyncio.sleep(rank.group.timings.round_time)
    await rank.thawed()
    if (error := _worker_error(rank)) is not None:
        raise CommandError(error)
    if store is not None:
        await _finish_together(rank, store)
    rank.recover(rank.dead_set)


async def _rendezvous(rank: Rank) -> Store:
    """Meet the other ranks of this rank's epoch; the epoch moves on before the outcome is known."""
    epoch = rank.store_epoch
    rank.store_epoch += 1
    key = f"ft_worker_dp_ports_{epoch}"
    await asyncio.sleep(rank.armed.seconds("slow_check_in"))
    return await (_host(rank, key) if rank.number == 0 else _join(rank, key))


async def _host(rank: Rank, key: str) -> Store:
    group, size = rank.group, rank.group.config.dp_size
    store = group.open_round_store()
    group.store.keys[key] = str(store.port)
    store.clients.add(0)
    group.changes.notify()
    timeout = group.timings.store_timeout + group.timings.store_host_grace
    if not await group.changes.until(lambda: len(store.clients) == size, timeout):
        store.close()
        raise CommandError(
            f"Timed out after {timeout:g} seconds waiting for clients. {len(store.clients)}/{size} clients joined."
        )
    return store


async def _join(rank: Rank, key: str) -> Store:
    group, first, timeout = rank.group, rank.group.store, rank.group.timings.store_timeout
    await group.changes.until(lambda: first.lost or key in first.keys, timeout)
    if first.lost:
        raise CommandError(STORE_LOST)
    if key not in first.keys:
        raise CommandError(wait_timeout(timeout, key))
    store = group.round_stores[first.keys[key]]
    if store.lost:
        await asyncio.sleep(timeout * _LAGGING_BLOCK)
        raise CommandError(connect_timeout(timeout, "127.0.0.1", store.port))
    store.clients.add(rank.number)
    group.changes.notify()
    size = group.config.dp_size
    if not await group.changes.until(lambda: len(store.clients) == size, timeout):
        raise CommandError(wait_timeout(timeout, f"tcp://127.0.0.1:{store.port}/0/0"))
    return store


async def _finish_together(rank: Rank, store: Store) -> None:
    """The others' workers wait T for the one that failed."""
    store.finished.add(rank.number)
    rank.group.changes.notify()
    size, timeout = rank.group.config.dp_size, rank.group.timings.store_timeout
    if not await rank.group.changes.until(lambda: len(store.finished) == size, timeout):
        raise CommandError(_WORKERS_FAILED)


def _worker_error(rank: Rank) -> str | None:
    if rank.executor_lost:
        return "Executor failed."
    if (failure := rank.armed.take("vote_failure")) is not None:
        return str(failure.get("error", _WORKERS_FAILED))
    return None
