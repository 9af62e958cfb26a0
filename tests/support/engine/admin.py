"""The `/_fake/` surface that tests use: inject, clear, log, state. No engine has it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.support.engine.injections import InjectionError, clear, inject

if TYPE_CHECKING:
    from tests.support.engine.group import Group
    from tests.support.engine.rank import Rank

PREFIX = "/_fake/"


async def handle(group: Group, rank: Rank | None, method: str, path: str, body: bytes) -> tuple[int, dict[str, object]]:
    """Answer one request; `rank` is the default target where the body names none."""
    match method, path.removeprefix(PREFIX):
        case "GET", "log":
            return 200, group.journal.as_json()
        case "GET", "state":
            return 200, state(group)
        case "POST", "inject" | "clear" as verb:
            try:
                params = json.loads(body)
                name, number = params.pop("name"), params.pop("rank", rank.number if rank else None)
                inject(group, number, name, params) if verb == "inject" else clear(group, number, name)
            except (ValueError, KeyError, AttributeError, InjectionError) as error:
                return 400, {"error": str(error)}
            return 200, {}
        case _:
            return 404, {"detail": "Not Found"}


def state(group: Group) -> dict[str, object]:
    """What a test may want to know beyond the HTTP contract."""
    return {
        "generation": group.generation,
        "idle": group.idle,
        "ranks": {str(number): _rank_state(rank) for number, rank in group.ranks.items()},
    }


def _rank_state(rank: Rank) -> dict[str, object]:
    return {
        "status": str(rank.status),
        "process": rank.process.name.lower(),
        "incarnation": rank.incarnation,
        "dead_set": sorted(rank.dead_set),
        "store_host": rank.store.host_rank,
        "store_epoch": rank.store_epoch,
        "armed": rank.armed.names(),
        "entry": rank.entry.view(),
    }
