"""Dialect (c): one server for all ranks, which drives them itself (engine-contract.md sections 1 and 2.5).

Modelled is the strategy ``pause``. The server is a process of rank 0: what ends it ends them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from tests.support.engine.rank import Child, Fate, Rank
from tests.support.engine.states import Event, Status
from tests.support.engine.validation import Command, Refusal

if TYPE_CHECKING:
    from tests.support.engine.group import Group

SERVER = 0


class SglangRank(Rank):
    """The scheduler process of one rank. When it has ended the server lives on and calls the rank dead."""

    def child_changed(self, child: Child, fate: Fate) -> None:
        if fate == "died":
            self.lose_executor()
        else:
            super().child_changed(child, fate)

    def lose_executor(self) -> None:
        """The others are paused for it, as long as they are."""
        super().lose_executor()
        self._stop_window()

    def exit_core(self) -> None:
        """The pause has lasted too long: fail-stop."""
        fail_stop(self.group)

    def vanish(self) -> None:
        if self.number != SERVER:
            self.lose_executor()
            return
        for rank in self.group.ranks.values():
            Rank.vanish(rank)

    def restart(self) -> None:
        """The process comes back, and with it the rank as soon as no operation is pending."""
        self.lose_executor()
        self.group.spawn(f"rejoin of rank {self.number}", self._rejoin())

    async def _rejoin(self) -> None:
        await self.group.changes.until(lambda: not self.group.operating)
        self.executor_lost = False
        for rank in self.group.ranks.values():
            rank.dead_set -= {self.number}
        if self._enter(Event.REJOINED):
            self.push()

    def push(self, **_: object) -> None:
        """An entry says nothing but the status."""
        super().push()


def fail_stop(group: Group) -> None:
    """The whole process tree is killed."""
    server = group.ranks[SERVER]
    server.vanish()
    server.host.end_server()


def check(group: Group, command: Command) -> Refusal | None:
    """What the HTTP level says beyond the checks that all dialects have."""
    if command.instruction == "scale_down":
        removed = command.params.get("removed_dp_ranks")
        if not isinstance(removed, list) or not all(type(rank) is int for rank in removed):
            return Refusal("'removed_dp_ranks' must be a list of integers.")
        if not all(0 <= rank < group.config.dp_size for rank in removed):
            return Refusal("'removed_dp_ranks' contains a rank out of range.")
    return Refusal("ft_operation_in_progress", status=409) if group.operating else None


def run(server: Rank, command: Command) -> Coroutine[object, object, None]:
    """What happens behind the 202; from here on other orders get 409."""
    server.group.operating = True
    return _run(server.group, command)


def paused(group: Group) -> bool:
    """An expected rank is lost, so nobody serves."""
    return any(rank.status is not Status.HEALTHY for rank in _expected(group))


async def _run(group: Group, command: Command) -> None:
    try:
        error = _refusal(group, command) or await _operate(group, command)
        group.receipt = {"last_ft_request_id": command.request_id, **({"ft_error": error} if error else {})}
    finally:
        group.operating = False
        group.record(None, "receipt", group.receipt)
        group.changes.notify()


def _expected(group: Group) -> list[Rank]:
    return [rank for rank in group.ranks.values() if rank.number not in rank.dead_set]


def _refusal(group: Group, command: Command) -> str:
    expected = {rank.number: rank.status for rank in _expected(group)}
    if command.instruction == "retry":
        if not paused(group):
            return "retry_requires_unresolved_expected_dp_fault"
        return "retry_requires_all_expected_processes_alive" if Status.DEAD in expected.values() else ""
    removed = set(_removed(command))
    if not removed:
        return "scale_down_requires_ranks"
    if not paused(group):
        return "scale_down_requires_unresolved_expected_dp_fault"
    if not removed <= expected.keys():
        return "scale_down_requires_expected_ranks"
    return "cannot_scale_down_all_expected_ranks" if removed == expected.keys() else ""


async def _operate(group: Group, command: Command) -> str:
    """Stop the targets, command the survivors, and expect nobody else from then on; no answer of one is fail-stop."""
    removed = frozenset(_removed(command))
    for number in removed:
        group.ranks[number].lose_executor()
    survivors = [rank for rank in _expected(group) if rank.number not in removed]
    await asyncio.sleep(group.timings.round_time)
    await asyncio.gather(*(rank.thawed() for rank in survivors))
    if any(rank.executor_lost or rank.armed.take("vote_failure") is not None for rank in survivors):
        fail_stop(group)
        return ""
    for rank in group.ranks.values():
        rank.dead_set |= removed
    for rank in survivors:
        rank.recover(rank.dead_set)
    return ""


def _removed(command: Command) -> list[int]:
    removed = command.params.get("removed_dp_ranks", [])
    assert isinstance(removed, list)
    return removed if command.instruction == "scale_down" else []
