"""The fault injections of engine-contract.md section 2.6, by name.

*Actions* happen at once. *Armed* injections change what a rank does later; they stay until cleared, or for
`times` uses when that parameter is given. *Group* injections need no rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.engine.group import Group
    from tests.support.engine.rank import Rank

Params = Mapping[str, object]

ACTIONS: dict[str, Callable[[Rank, Params], None]] = {
    "step_exception": lambda rank, params: rank.raise_step(str(params.get("fault_info", "RuntimeError"))),
    "worker_kill": lambda rank, _: rank.host.kill("worker"),
    "engine_kill": lambda rank, _: rank.host.kill("engine"),
    "frontend_kill": lambda rank, _: rank.host.listen(False),
    "frontend_restore": lambda rank, _: rank.host.listen(True),
    "freeze": lambda rank, _: rank.freeze(),
    "unfreeze": lambda rank, _: rank.thaw(),
    "window_expiry": lambda rank, _: rank.exit_core(),
    "restart": lambda rank, _: rank.restart(),
}

ARMED: dict[str, str] = {
    "detection_delay": "seconds until this rank's collective fails (null: never)",
    "mask_query_fails": "unhealthy without a mask",
    "stale_gap": "seconds between the 202 and the first patch, dialect (b)",
    "slow_check_in": "seconds before the rank joins the round",
    "vote_failure": "the worker command fails with `error`",
    "insufficient_redundancy": "scale_down fails with the EPLB text",
    "no_redundant_experts": "scale_down fails with the configuration text",
    "drop_after_202": "the command is accepted and never runs",
    "drop_before_reply": "the client sees a reset; the command runs unless `run` is false",
    "apply_error": "apply answers `status` (503) with `message`",
    "wrong_id": "the entry carries `id` (rank + 1)",
    "unknown_status": "the entry carries the status `value` (paused)",
    "schema_version": "the status carries schema_version `value`",
    "non_json": "the status is an HTML page",
    "unauthorized": "everything under /v1 answers 401",
    "completions_fail": "completions answer 500 although the status is healthy",
}


def _idle(group: Group, params: Params) -> None:
    group.idle = bool(params.get("on", True))


GROUP: dict[str, Callable[[Group, Params], None]] = {
    "idle": _idle,
    "port_in_use": lambda group, params: group.ports_in_use.add(params["port"]),
}


class InjectionError(Exception):
    """The injection is unknown or impossible here; the text says which and why."""


def inject(group: Group, number: int | None, name: str, params: Params) -> None:
    """Run or arm one injection.

    Raises:
        InjectionError: unknown name or rank, or a missing parameter.
    """
    group.record(number, "inject", {"name": name, **params})
    if name in GROUP:
        try:
            GROUP[name](group, params)
        except KeyError as error:
            raise InjectionError(f"injection {name!r} needs the parameter {error}") from error
        group.reconsider()
        return
    rank = _rank(group, number, name)
    if name in ACTIONS:
        ACTIONS[name](rank, params)
    elif name in ARMED:
        rank.armed.arm(name, dict(params))
    else:
        known = ", ".join(sorted({*GROUP, *ACTIONS, *ARMED}))
        raise InjectionError(f"no injection {name!r}; there are: {known}")
    group.reconsider()


def clear(group: Group, number: int | None, name: str) -> None:
    """Disarm an armed injection; nothing happens if it is not armed."""
    _rank(group, number, name).armed.clear(name)
    group.reconsider()


def _rank(group: Group, number: int | None, name: str) -> Rank:
    if number is None or number not in group.ranks:
        raise InjectionError(f"injection {name!r} needs one of the ranks {sorted(group.ranks)}, not {number}")
    return group.ranks[number]
