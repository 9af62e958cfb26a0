"""Somebody at the REST routes of one pod, whose commands have no fence (RFC section 6)."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING

from motor_ft.model.command import Command
from motor_ft.model.errors import FtError
from nodemanager.rpc.local import LocalNode

if TYPE_CHECKING:
    from tests.simulation.pods import SimPod

LEASE_SEC = 3.0
ELSEWHERE = "10.6.0.2"


async def at_console(node: LocalNode, pod: "SimPod", number: int, *, waits: bool) -> None:
    """Guards the pod if nobody else does, and orders what no engine may be told; then it gives up the guard.

    ``waits``: it comes back only when its lease is over.
    """
    facts = pod.world.oracle.facts
    state = facts.states.get(pod.uid)
    if state is None or state.instance_id is None:
        return
    me = Command(state.instance_id, f"console-{number}", None, None)
    other = replace(me, request_id=f"console-{number}-other")
    told = pod.ranks[:1]

    async def tried(call: Awaitable[object]) -> bool:
        try:
            await call
        except FtError as error:
            facts.counts[f"console {error.reason}"] += 1
            return False
        return True

    async def refused(call: Awaitable[object]) -> None:
        if await tried(call):
            facts.break_rule("strangers are refused", f"console at {pod.name}")

    await refused(node.guard(replace(me, epoch=1), LEASE_SEC))
    if state.guard is not None:
        holder = replace(state.guard.holder, epoch=None, generation=None)
        await refused(node.apply(holder, told, (99,), "", None))
    held = await tried(node.guard(me, LEASE_SEC))
    await tried(node.guard(other, LEASE_SEC))
    if held and waits:
        await asyncio.sleep(LEASE_SEC + 0.5)
        await tried(node.finalize(me, commit=False, retired=()))
    for removed, master in ((), ELSEWHERE), (told, ELSEWHERE), ((99,), ""):
        await refused(node.apply(me, told, removed, master, None))
    await tried(node.guard(other, LEASE_SEC))
    for command in me, other:
        await tried(node.finalize(command, commit=False, retired=()))
