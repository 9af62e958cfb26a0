"""Waiting for others in time that this Controller has really waited."""

import asyncio
from collections.abc import Awaitable, Collection
from typing import Any

SLICE_SEC = 3.0


async def wait_awake(tasks: Collection[asyncio.Task[Any]], seconds: float) -> None:
    """Until one is done, or for so long; a standstill, in which nobody can be heard, counts as one slice at most."""
    while seconds > 0:
        done, _ = await asyncio.wait(tasks, timeout=min(seconds, SLICE_SEC), return_when=asyncio.FIRST_COMPLETED)
        if done:
            return
        seconds -= SLICE_SEC


async def finish(work: Awaitable[object]) -> None:
    """What can be awaited, as a task wants it."""
    await work
