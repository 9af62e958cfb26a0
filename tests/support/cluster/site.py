"""What everything in one cluster has in common: a folder, processes that end with it, and the list of faults."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientTimeout

from tests.support.cluster.shape import toml
from tests.support.killed import POINT_FILE
from tests.support.processes import Running, python_module


@dataclass
class Site:
    """``stack`` ends everything that was started; ``faults`` are what tests have done, in order.

    ``leader`` is the number of the Controller that tests talk to.
    """

    folder: Path
    controller_ports: list[int]
    leader: int = 0
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    faults: list[dict[str, object]] = field(default_factory=list)

    async def open(self) -> None:
        """Make the folder, and an HTTP client."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.http = await self.stack.enter_async_context(ClientSession(timeout=ClientTimeout(total=10)))

    @property
    def controller_port(self) -> int:
        """Of the Controller that tests talk to."""
        return self.controller_ports[self.leader]

    @property
    def env(self) -> dict[str, str]:
        """Environment of the daemons of ``tests.support.killed``."""
        return {POINT_FILE: str(self.folder / "point")}

    async def run(self, name: str, module: str, *arguments: str) -> Running:
        """Start a command; what it prints is in the folder at once."""
        log = self.folder / f"{name}.log"
        process = Running(python_module(module, *arguments), name=name, env=self.env, log=log)
        return await self.stack.enter_async_context(process)

    def write(self, name: str, table: dict[str, Any]) -> Path:
        """Write a configuration file."""
        path = self.folder / name
        path.write_text(toml(table))
        return path

    def note(self, what: str, rank: int | None, **params: object) -> None:
        """Write down a fault."""
        self.faults.append({"at": time.time(), "what": what, "rank": rank, **params})
