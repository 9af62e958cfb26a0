"""The case of a strategy that a test starts itself."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from controller.core.case import Case
from controller.core.ports import Runtime
from controller.core.transaction import Spec


class NoEngines:
    """ports.Engines for strategies that start none anew."""

    def relaunching(self, engines: Mapping[int, frozenset[str]]) -> None:
        raise AssertionError(f"{engines} are not to be started anew")

    async def relaunched(self, engines: Mapping[int, str]) -> None:
        raise AssertionError(f"{engines} were not to be started anew")


def bare_case(spec: Spec, runtime: Runtime, replaced: Callable[[], Awaitable[object]] | None = None) -> Case:
    """Nothing recovers by itself, and there is no prefill instance."""
    never = asyncio.Event().wait

    async def dissolve() -> Sequence[str]:
        raise AssertionError("nobody is to be stopped for the loss of others")

    return Case(spec, "a test says so", runtime, replaced or never, NoEngines(), never, lambda: None, dissolve)
