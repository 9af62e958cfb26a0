"""What must never be seen, whatever was done to the system. Pure: each rule gives a text for everything that breaks it.

All times are on the wall clock of this machine, which all processes share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from motor_ft.v1 import controller_pb2 as pb

Json = Mapping[str, Any]
DEAF = {"frontend_kill", "freeze"}
"""Injections after which a rank need not answer: that too is evidence that it is dead."""
SERVING = {pb.PHASE_NORMAL, pb.PHASE_SCALED_DOWN_RUNNING}


class Orders:
    """What the engines of one job were told."""

    def __init__(self) -> None:
        self._bodies: dict[str, object] = {}
        self._told: set[tuple[str, str]] = set()

    def wrong(self, applies: Sequence[Json], changes: Sequence[Json]) -> list[str]:
        """Of applies that are new, and all changes of the engines that they went to.

        An engine hears of a request id once, and not while it is well; all hear the same; and who is removed has died,
        frozen or become deaf in the sight of the engines themselves.
        """
        return [text for apply in applies for text in self._wrong(apply, changes)]

    def _wrong(self, apply: Json, changes: Sequence[Json]) -> Iterator[str]:
        body, rank = apply["body"], apply["rank"]
        name = f"{body['instruction']} {body['request_id']}"
        before = [each for each in changes if each["generation"] == apply["generation"] and each["at"] <= apply["at"]]
        if (key := (apply["incarnation"], body["request_id"])) in self._told:
            yield f"rank {rank} was told {name} twice"
        self._told.add(key)
        if (other := self._bodies.setdefault(body["request_id"], body)) != body:
            yield f"{name} is {body} for rank {rank} and {other} for others"
        if (status := _status(before, rank)) not in {"unhealthy", "dead"}:  # it may die while the order is on its way
            yield f"rank {rank} was told {name} while it was {status}"
        if rank in (removed := _removed(apply)):
            yield f"rank {rank} was told {name} to remove itself"
        if well := [each for each in sorted(removed) if not _was_gone(before, each)]:
            yield f"{name} removes {sorted(removed)}, but nothing has ever been wrong with {well}"


def _removed(apply: Json) -> frozenset[int]:
    return frozenset(apply["body"].get("params", {}).get("removed_dp_ranks", []))


def _status(changes: Iterable[Json], rank: int) -> str:
    shown = [each["detail"]["status"] for each in changes if each["rank"] == rank and each["kind"] in {"push", "patch"}]
    return str(shown[-1]) if shown else "healthy"


def _was_gone(changes: Iterable[Json], rank: int) -> bool:
    return any(
        each["rank"] == rank
        and (
            (each["kind"] == "process" and each["detail"] != "running")
            or (each["kind"] in {"push", "patch"} and each["detail"]["status"] == "dead")
            or (each["kind"] == "inject" and each["detail"]["name"] in DEAF)
        )
        for each in changes
    )


class Views:
    """What Coordinators were told of one job, beside what its engines were told."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._first: dict[int, float] = {}
        self._removed: list[tuple[int, float, frozenset[int]]] = []

    def wrong(self, views: Iterable[Json], applies: Iterable[Json]) -> list[str]:
        """Of views and applies that are new: none names a rank that engines were told to remove.

        An apply is about the newest instance at its time; later ones have the rank again.
        """
        shown = [
            (each["id"], view["at"], _ranks(each))
            for view in views
            if view["event"] in {"add", "set"} and view["status"] == 200
            for each in view["instances"]
            if each["job_name"] == self._job
        ]
        for number, at, _ in shown:
            self._first.setdefault(number, at)
        for apply in applies:
            mine = max((number for number, at in self._first.items() if at <= apply["at"]), default=0)
            self._removed.append((mine, apply["at"], _removed(apply)))
        return [
            f"a view of instance {number} names {sorted(ranks & removed)} after engines were told to remove {removed}"
            for number, at, ranks in shown
            for of, since, removed in self._removed
            if number == of and at > since and ranks & removed
        ]


def _ranks(instance: Json) -> frozenset[int]:
    return frozenset(each["id"] for endpoints in instance["endpoints"].values() for each in endpoints.values())


def defects(log: Sequence[str]) -> list[str]:
    """Of what a daemon has printed: exceptions that it did not expect."""
    return [line for line in log if '"exception":' in line or line.startswith("Traceback")]


def wrong_change(before: pb.Instance | None, after: pb.Instance) -> list[str]:
    """Of what the Controller shows of one instance, also across its restarts."""
    name, broken = f"instance {after.instance_id}", []
    dead, pending = set(after.dead_committed), set(after.pending_removed_ranks)
    if set(after.alive_dp_ranks) != set(after.original_dp_ranks) - dead - pending:
        broken.append(f"{name}: {after.alive_dp_ranks} are alive of {after.original_dp_ranks} without {dead | pending}")
    if after.can_serve and not (after.serving_published and after.phase in SERVING):
        broken.append(f"{name} can serve in {pb.Phase.Name(after.phase)}, published: {after.serving_published}")
    if before is not None:
        if after.generation < before.generation:
            broken.append(f"{name} falls from generation {before.generation} to {after.generation}")
        if back := set(before.dead_committed) - dead:
            broken.append(f"{name}: ranks {sorted(back)} were removed and are back")
    return broken
