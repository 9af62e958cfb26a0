"""Bounded waiting for a condition that nothing announces."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable


async def until(condition: Callable[[], object], timeout: float = 10.0, every: float = 0.01) -> None:
    """Poll until the condition, or what it awaits, is truthy; TimeoutError names the last value seen."""
    deadline = asyncio.get_running_loop().time() + timeout
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return
        if asyncio.get_running_loop().time() > deadline:
            raise TimeoutError(f"condition not met within {timeout:g} s; last value: {value!r}")
        await asyncio.sleep(every)
