"""Dialect (b): one recovery command on one rank, step by step (engine-contract.md section 2.3)."""

from __future__ import annotations

import asyncio

from tests.support.engine.rank import CommandError, Rank, log
from tests.support.engine.states import Status
from tests.support.engine.store import STORE_LOST, Store, bind_failure, connect_timeout, wait_timeout
from tests.support.engine.validation import Command
from tests.support.engine.vote import Vote


async def run(rank: Rank, command: Command) -> None:
    """What happens behind the 202."""
    await asyncio.sleep(rank.armed.seconds("stale_gap", rank.group.timings.stale_gap))
    if rank.entry.ft_state == "recovering":
        log.warning("rank %d drops %s: a command is running", rank.number, command.request_id)
        return
    rank.patch(ft_state="recovering", last_ft_request_id=command.request_id, ft_error=None)
    try:
        await rank.run_in_engine(_recover(rank, command))
    except CommandError as failure:
        rank.patch(ft_state="failed", last_ft_request_id=command.request_id, ft_error=str(failure))


async def _recover(rank: Rank, command: Command) -> None:
    await rank.thawed()
    if rank.status is not Status.UNHEALTHY:
        raise CommandError(
            f"[FT] Rejecting {command.instruction} on engine {rank.number}: status is {rank.status.upper()}"
        )
    scale_down = command.instruction == "scale_down"
    new = _newly_removed(rank, command.params) if scale_down else frozenset()
    alive = rank.alive - new
    if (master := min(rank.alive)) in new:
        await _move_store(rank, alive, master, command.params)
    await _check_in(rank, alive, command.request_id)
    try:
        await _run_round(rank, alive, command)
    except CommandError:
        if scale_down:
            rank.fail_removal()
            await asyncio.sleep(rank.group.timings.push_gap)
        raise
    rank.recover(rank.dead_set | new)


def _newly_removed(rank: Rank, params: dict[str, object]) -> frozenset[int]:
    """The ranks that this command adds to the dead set; the set may be cumulative (section 1.5)."""
    size = rank.group.config.dp_size
    if size == 1:
        raise CommandError("scale_down requires data_parallel_size > 1; use retry instead")
    try:
        named = params["removed_dp_ranks"]
        removed = set(named)  # type: ignore[call-overload]
    except (KeyError, TypeError) as error:
        raise CommandError(str(error)) from error
    new = removed - rank.dead_set
    in_range = all(isinstance(r, int) and 0 <= r < size for r in removed)
    if not in_range or rank.number in removed or not new:
        raise CommandError(
            f"Invalid removed_dp_ranks {named} for engine {rank.number} "
            f"(dp_rank={rank.number}, dead_dp_ranks={sorted(rank.dead_set)})"
        )
    return frozenset(new)


async def _move_store(rank: Rank, alive: frozenset[int], master: int, params: dict[str, object]) -> None:
    """Host the store on the lowest survivor and wait for all survivors, before check-in."""
    ip, port = params.get("dp_master_ip"), params.get("dp_store_port")
    if ip is None or port is None:
        raise CommandError(f"dp_store_port and dp_master_ip required when the store master (rank {master}) is removed")
    store = await _connect(rank, alive, ip, port)
    store.clients.add(rank.number)
    rank.group.changes.notify()
    timeout = rank.group.timings.store_timeout
    if not await rank.group.changes.until(lambda: alive <= store.clients, timeout):
        if rank.number == store.host_rank:
            store.close()
            raise CommandError(
                f"Timed out after {timeout:g} seconds waiting for clients. "
                f"{len(alive & store.clients)}/{len(alive)} clients joined."
            )
        raise CommandError(wait_timeout(timeout, f"tcp://{ip}:{port}/0/0"))
    rank.store = store


async def _connect(rank: Rank, alive: frozenset[int], ip: object, port: object) -> Store:
    group, host = rank.group, min(alive)
    if rank.number == host:
        try:
            if port in group.ports_in_use:
                raise OSError(98, "address already in use")
            return group.open_moved_store(host, ip, port)  # type: ignore[arg-type]
        except (OSError, OverflowError, TypeError) as error:
            raise CommandError(bind_failure(port, error)) from error

    def served() -> bool:
        store = group.moved_stores.get((ip, port))
        return store is not None and not store.lost

    if not await group.changes.until(served, group.timings.store_timeout):
        raise CommandError(connect_timeout(group.timings.store_timeout, ip, port))
    return group.moved_stores[ip, port]


async def _check_in(rank: Rank, alive: frozenset[int], request_id: str) -> None:
    """Rendezvous by (id, dense rank). Keys stay, so a re-used id may let absent peers pass."""
    await asyncio.sleep(rank.armed.seconds("slow_check_in"))
    store, seconds = rank.store, rank.group.timings.check_in
    store.keys[f"{request_id}/{sorted(alive).index(rank.number)}"] = ""
    rank.group.changes.notify()
    wanted = {f"{request_id}/{dense}" for dense in range(len(alive))}
    await rank.group.changes.until(lambda: store.lost or wanted <= store.keys.keys(), seconds)
    if store.lost:
        raise CommandError(STORE_LOST)
    if not wanted <= store.keys.keys():
        raise CommandError(
            f"[FT] Not all engines joined recovery round '{request_id}' within {seconds:g}s; "
            "the same request_id must be sent to every engine."
        )


async def _run_round(rank: Rank, alive: frozenset[int], command: Command) -> None:
    """Rebuild the groups, run the worker command, then vote; the failing rank keeps its own error."""
    group, request_id = rank.group, command.request_id
    await asyncio.sleep(group.timings.round_time)
    await rank.thawed()
    error = _worker_error(rank, command.instruction)
    vote = group.votes.setdefault(request_id, Vote())
    vote.cast(rank.number, alive, error is None)
    group.changes.notify()

    def settled() -> bool:
        vote.settle(alive, [r.number for r in group.ranks.values() if r.core_gone])
        return vote.outcome is not None

    if not await group.changes.until(settled, group.timings.store_timeout):
        vote.outcome = False
        group.changes.notify()
    if group.votes.get(request_id) is vote:
        del group.votes[request_id]
    if error is not None or not vote.outcome:
        raise CommandError(error or "[FT] Recovery vote failed")


def _worker_error(rank: Rank, instruction: str) -> str | None:
    if rank.executor_lost:
        return "Executor failed."
    if (failure := rank.armed.take("vote_failure")) is not None:
        return str(failure.get("error", "One or more workers failed"))
    if instruction != "scale_down":
        return None
    if rank.armed.take("insufficient_redundancy") is not None:
        return "EPLB redundancy insufficient"
    if rank.armed.take("no_redundant_experts") is not None:
        return "[FT] scale_down requires EPLB with num_redundant_experts > 0"
    return None
