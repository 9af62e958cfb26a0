"""Breaks one instance again and again, and sees every incident to its end."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from enum import StrEnum
from uuid import uuid4

import grpc
import psutil
from aiohttp import ClientError

from motor_ft.v1 import controller_pb2 as pb
from motor_ft.v1.common_pb2 import OperatorHeader
from scripts.endurance.faults import Fault, Place, name, worker_killed
from scripts.endurance.witness import Witness
from tests.support.cluster import Cluster, Deployment
from tests.support.cluster.hardware import Hardware

DISPATCHED_SEC = 90.0
"""By then a fault has led to a recovery, or to a rebuild that has begun, or nothing had to be done. All timers of a
recovery in the profile used here, one after the other, are 25 s; the rest is for a machine that has a lot to do."""
SERVING_SEC = 120.0
"""By then a rebuild that has begun serves: pods stop, start again and assemble."""
LOOK_SEC = 0.25
WELL = 4
"""Looks in a row at which all is well; a signal needs a moment until its effect is seen."""
AGAIN = 0.4
"""How likely one more rank dies before what is left is restored."""


class Ending(StrEnum):
    """What became of an incident."""

    SCALED_DOWN = "scaled down"
    RECOVERED = "recovered in place"
    REBUILT = "rebuilt"
    UNHURT = "nothing to do"
    STOPPED = "automation stopped"
    STUCK = "STUCK"


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault and its end; ``at`` is a wall clock, ``text`` says what was wrong with one that is stuck."""

    job: str
    fault: str
    at: float
    seconds: float
    ending: Ending
    text: str = ""


def ending(before: pb.Instance, after: pb.Instance) -> Ending:
    """Of an incident after which the job is well again."""
    if after.instance_id != before.instance_id or after.phase == pb.PHASE_RECONFIGURING:
        return Ending.REBUILT
    if list(after.dead_committed) != list(before.dead_committed):
        return Ending.SCALED_DOWN
    return Ending.RECOVERED if after.generation != before.generation else Ending.UNHURT


class Patient:
    """One deployment. ``calm`` is held while it is broken; ``tell`` hears of each incident that has ended."""

    def __init__(
        self,
        cluster: Cluster,
        deployment: Deployment,
        hardware: Hardware,
        witness: Witness,
        faults: Mapping[Fault, int],
        seed: str,
        calm: AbstractAsyncContextManager[object],
        tell: Callable[[Incident], None],
    ) -> None:
        self.deployment = deployment
        self.job = deployment.shape.job
        self.cycles = 0
        """Times that it was broken and has all its ranks again."""
        self._cluster = cluster
        self._hardware = hardware
        self._witness = witness
        self._faults = faults
        self._random = random.Random(f"{seed} {self.job}")
        self._calm = calm
        self._tell = tell

    async def cycle(self) -> None:
        """Break it, perhaps once more, and restore what was lost."""
        async with self._calm:
            await self._until(lambda: self._well(pb.Instance(), frozenset()), SERVING_SEC, looks=1)
            await self._incident(self._random.choices([*self._faults], [*self._faults.values()])[0])
            while len(self._now.alive_dp_ranks) > 2 and not self._whole and self._random.random() < AGAIN:
                await self._incident(worker_killed)
            if not self._whole:
                await self._incident(self._restore)
            self.cycles += 1
        await asyncio.sleep(self._random.uniform(0.2, 1.5))

    @property
    def _now(self) -> pb.Instance:
        return self._witness.newest(self.job)

    @property
    def _whole(self) -> bool:
        return self._now.can_serve and not self._now.dead_committed

    async def _incident(self, fault: Fault) -> None:
        before, at, start = self._now, time.time(), time.monotonic()
        dead: frozenset[int] = frozenset()
        with suppress(LookupError, psutil.Error):  # a process that is not there now cannot be broken
            dead = await fault(self._place)
        over, end, text = await self._ended(before, dead)
        self._tell(Incident(self.job, name(fault), at, over - start, end, text))
        await self._witness.look()
        if end in {Ending.STOPPED, Ending.STUCK}:
            lost = await self._restore(self._place)
            await self._until(lambda: self._well(before, lost), SERVING_SEC)

    @property
    def _place(self) -> Place:
        return Place(self.deployment, self._hardware, tuple(self._now.alive_dp_ranks), self._random)

    async def _ended(self, before: pb.Instance, dead: frozenset[int]) -> tuple[float, Ending, str]:
        """When and how; ``dead`` must not serve any more, unless in another instance."""

        async def over() -> bool:
            return self._now.automation_stopped or await self._well(before, dead)

        async def begun() -> bool:
            return self._now.phase == pb.PHASE_RECONFIGURING or self._differs(before) or await over()

        if not await self._until(begun, DISPATCHED_SEC) or not (at := await self._until(over, SERVING_SEC)):
            text = await self._witness.wrong(self.deployment) or f"ranks {sorted(dead)} are dead and serve"
            return time.monotonic(), Ending.STUCK, text
        if not (stopped := self._now).automation_stopped:
            return at, ending(before, stopped), ""

        async def alerted() -> bool:
            if self._differs(stopped):  # which is there after all, and has ended the alert
                return True
            with suppress(ClientError, OSError, TimeoutError):  # the Controller is away
                return await self._cluster.metric("motor_ft_automation_stopped", instance=str(stopped.instance_id)) > 0
            return False

        if await self._until(alerted, DISPATCHED_SEC, looks=1):
            return at, Ending.STOPPED, stopped.last_error
        return at, Ending.STUCK, "automation has stopped without an alert"

    async def _until(self, condition: Callable[[], Awaitable[bool]], timeout: float, looks: int = WELL) -> float:
        """When it began to hold, for so many looks, on the monotonic clock; 0 when it did not."""
        deadline, since, held = time.monotonic() + timeout, 0.0, 0
        while held < looks:
            if time.monotonic() > deadline:
                return 0.0
            held = held + 1 if await condition() else 0
            since = time.monotonic() if held == 1 else since
            await asyncio.sleep(LOOK_SEC)
        return since

    def _differs(self, before: pb.Instance) -> bool:
        return self._now.instance_id != before.instance_id

    async def _well(self, before: pb.Instance, dead: frozenset[int]) -> bool:
        serves_dead = not self._differs(before) and dead & set(self._now.alive_dp_ranks)
        return not serves_dead and not await self._witness.wrong(self.deployment)

    async def _restore(self, place: Place) -> frozenset[int]:
        """An operator has the instance rebuilt with all its ranks: none of those that it has is left."""
        before, request_id = self._now, str(uuid4())
        header = OperatorHeader(
            instance_id=before.instance_id, request_id=request_id, operator="soak", reason="restores all ranks"
        )

        async def ordered() -> bool:
            if self._differs(before) or self._now.phase == pb.PHASE_RECONFIGURING:
                return True
            with suppress(grpc.aio.AioRpcError):  # a strategy runs, or the Controller is away
                async with self.deployment.stub() as stub:
                    await stub.Reconfigure(pb.ReconfigureRequest(header=header), timeout=5)
                return True
            return False

        await self._until(ordered, DISPATCHED_SEC, looks=1)
        return frozenset(place.alive)
