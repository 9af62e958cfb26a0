"""Somebody at the REST routes of one pod, whose commands have no fence (RFC section 6), or at the gateway in it."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc

from motor_ft.model.command import Command
from motor_ft.model.engine import EngineStatus
from motor_ft.model.errors import FtError
from motor_ft.v1.engine_pb2 import EngineTarget, GetEngineStatusRequest
from motor_ft.v1.engine_pb2_grpc import EngineServiceStub
from nodemanager.rpc.local import LocalNode
from tests.simulation.rules.facts import gone

if TYPE_CHECKING:
    from tests.simulation.pods import SimPod

LEASE_SEC = 3.0
ELSEWHERE = "10.6.0.2"


async def _tried(pod: "SimPod", call: Awaitable[object]) -> bool:
    try:
        await call
    except FtError as error:
        pod.world.oracle.facts.counts[f"console {error.reason}"] += 1
        pod.world.trace("people", f"console at {pod.name}", str(error))
        return False
    return True


async def at_console(node: LocalNode, pod: "SimPod", number: int, *, waits: bool) -> None:
    """Guards the pod if nobody else does, and orders what no engine may be told; then it gives up the guard.

    ``waits``: it comes back only when its lease is over.
    """
    state = pod.world.oracle.facts.states.get(pod.uid)
    if state is None or state.instance_id is None:
        return
    me = Command(state.instance_id, f"console-{number}", None, None)
    other = replace(me, request_id=f"console-{number}-other")
    told = pod.ranks[:1]

    async def refused(call: Awaitable[object]) -> None:
        if await _tried(pod, call):
            pod.world.oracle.facts.break_rule("strangers are refused", f"console at {pod.name}")

    await refused(node.guard(replace(me, epoch=1), LEASE_SEC))
    if state.guard is not None:
        holder = replace(state.guard.holder, epoch=None, generation=None)
        await refused(node.apply(holder, told, (99,), "", None))
    held = await _tried(pod, node.guard(me, LEASE_SEC))
    await _tried(pod, node.guard(other, LEASE_SEC))
    if held and waits:
        await asyncio.sleep(LEASE_SEC + 0.5)
        await _tried(pod, node.finalize(me, commit=False, retired=()))
    for removed, master in ((), ELSEWHERE), (told, ELSEWHERE), ((99,), ""):
        await refused(node.apply(me, told, removed, master, None))
    await _tried(pod, node.guard(other, LEASE_SEC))
    for command in me, other:
        await _tried(pod, node.finalize(command, commit=False, retired=()))


async def by_hand(node: LocalNode, pod: "SimPod") -> None:
    """Removes who is dead, as the Controller would; at every pod of the job somebody does so at the same time."""
    seats = pod.world.fleets[pod.job].seats
    dead = tuple(rank for rank in sorted(seats) if gone(seats[rank]))
    alive = tuple(rank for rank in pod.ranks if rank not in dead)
    me = Command(node.instance_id, f"by-hand-{dead}", None, None)
    if not dead or not alive or not await _tried(pod, node.guard(me, 60.0)):
        return
    await asyncio.sleep(1.0)
    master = pod.world.owner(pod.job, min(seats.keys() - set(dead))).machine.name
    if any(reading.status is not EngineStatus.UNHEALTHY for reading in await node.status(alive)):
        return
    await _tried(pod, node.apply(me, alive, dead, master, None))
    await asyncio.sleep(5.0)
    retired = tuple(rank for rank in dead if rank in pod.ranks)
    await _tried(pod, node.finalize(me, commit=True, retired=retired))


async def at_gateway(pod: "SimPod") -> None:
    """Reads engines as others than those of the pod, as one would that was in its place."""
    channel: Any = pod.world.fabric.channel(f"unix:/state/{pod.uid}/gateway/engine.sock")
    targets = [EngineTarget(dp_rank=rank, engine_incarnation="other") for rank in pod.ranks]
    with suppress(grpc.aio.AioRpcError):
        await EngineServiceStub(channel).GetEngineStatus(GetEngineStatusRequest(targets=targets), timeout=5.0)
