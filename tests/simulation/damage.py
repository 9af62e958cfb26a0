"""What a slip of hand, a bad disk or another version makes of stored records while no Controller runs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from controller.store.codec import Kind
from controller.store.memory import Shelf
from motor_ft.model.hardware import fault_key

SPARE = fault_key("node-0-0", "Ascend910-99", "80E01801")
Change = Callable[[dict[str, Any]], object]


def damage(shelf: Shelf, instance_id: int, what: str) -> None:
    """Change one record of an instance; nothing where it has none yet."""
    kind, change = DAMAGES[what]
    if (row := shelf.rows.get((kind, instance_id))) is not None:
        stored = msgspec.json.decode(row.body)
        change(stored)
        shelf.rows[kind, instance_id] = replace(row, body=msgspec.json.encode(stored))


def _record(**fields: object) -> Change:
    return lambda stored: stored["record"].update(fields)


def _pod(**fields: object) -> Change:
    return lambda stored: stored["record"]["pods"][0].update(fields)


def _ranks(*ranks: int) -> Change:
    """Of the endpoints of the first pod."""

    def change(stored: dict[str, Any]) -> None:
        pod = stored["record"]["pods"][0]
        pod["endpoints"] = [{**pod["endpoints"][0], "rank": rank} for rank in ranks]

    return change


DAMAGES: dict[str, tuple[Kind, Change]] = {
    "identity of a later version": (Kind.IDENTITY, lambda stored: stored.update(version=99)),
    "identity of nobody": (Kind.IDENTITY, lambda stored: stored.update(record=None)),
    "identity of another instance": (Kind.IDENTITY, _record(instance_id=99)),
    "identity without a pod": (Kind.IDENTITY, lambda stored: stored["record"]["pods"].pop()),
    "baseline of others": (Kind.IDENTITY, _record(hardware_baseline=[SPARE])),
    "pod without a job": (Kind.IDENTITY, _pod(job_name="")),
    "pod without a size": (Kind.IDENTITY, _pod(dp_size=0)),
    "pod without a port": (Kind.IDENTITY, _pod(node_manager_address="10.0.0.1")),
    "pod without endpoints": (Kind.IDENTITY, _ranks()),
    "pods at one address": (
        Kind.IDENTITY,
        lambda stored: [pod.update(node_manager_address="10.0.0.1:9000") for pod in stored["record"]["pods"]],
    ),
    "rank outside": (Kind.IDENTITY, _ranks(99)),
    "rank twice": (Kind.IDENTITY, _ranks(0, 0)),
    "runtime of a later version": (Kind.RUNTIME, lambda stored: stored.update(version=99)),
    "runtime that is disabled": (Kind.RUNTIME, _record(phase="DISABLED")),
    "generation below 0": (Kind.RUNTIME, _record(generation=-1)),
    "ranks with a gap": (Kind.RUNTIME, _record(original_dp_ranks=[0, 2])),
    "ranks of others": (Kind.RUNTIME, _record(original_dp_ranks=list(range(99)))),
    "foreign rank removed": (Kind.RUNTIME, _record(dead_committed=[99])),
    "every rank removed": (
        Kind.RUNTIME,
        lambda stored: stored["record"].update(dead_committed=stored["record"]["original_dp_ranks"]),
    ),
    "no rank removed": (Kind.RUNTIME, _record(dead_committed=[])),
}
