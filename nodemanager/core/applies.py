"""What is told to engines, at most once for each request id and engine (recovery.md section 8)."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from motor_ft.model.command import Command, ScaleDownPlan
from motor_ft.model.engine import ApplyOutcome, Instruction, RankOutcome
from motor_ft.model.errors import FieldError, FtError, Reason

KEPT_RECORDS = 64


@dataclass(frozen=True, slots=True)
class ApplyOrder:
    """One instruction to some ranks of this pod; ``dp_store_port`` None: derived from the base port.

    ``retired`` are those of ``removed`` that are retired here already, as the gateway is told.
    """

    instruction: Instruction
    ranks: tuple[int, ...]
    removed: tuple[int, ...] = ()
    dp_master_ip: str = ""
    dp_store_port: int | None = None
    plan_hash: str = ""
    retired: tuple[int, ...] = ()

    def fingerprint(self) -> str:
        """SHA-256 over everything that a repeat must have in common with the first."""
        fields = (self.ranks, self.removed, self.dp_master_ip, self.dp_store_port, self.plan_hash)
        return hashlib.sha256(json.dumps([self.instruction, *fields]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ApplyRecord:
    """Intent and outcome of one order; a rank without an outcome was sent or perhaps sent."""

    instance_id: int
    request_id: str
    fingerprint: str
    ranks: tuple[int, ...]
    outcomes: Mapping[int, RankOutcome] = field(default_factory=dict)

    def answer(self) -> tuple[RankOutcome, ...]:
        """Outcomes in the asked order; UNKNOWN where none was recorded, which is never sent again."""
        return tuple(
            self.outcomes.get(rank)
            or RankOutcome(rank, ApplyOutcome.UNKNOWN, "the NodeManager ended before the engine's answer")
            for rank in self.ranks
        )


Records = tuple[ApplyRecord, ...]


def find(records: Records, command: Command, order: ApplyOrder) -> ApplyRecord | None:
    """The record of an earlier call with this id; raises FtError REQUEST_ID_REUSED when it told something else."""
    for record in records:
        if (record.instance_id, record.request_id) == (command.instance_id, command.request_id):
            if record.fingerprint != order.fingerprint():
                raise FtError(
                    Reason.REQUEST_ID_REUSED,
                    f"{command.request_id} already told the engines something else; use a new request id",
                )
            return record
    return None


def intend(records: Records, command: Command, order: ApplyOrder) -> Records:
    """Records with the intent, to be durable before anything is sent.

    Raises FtError REQUEST_ID_REUSED when the id has a record already: another call, by another way, was first.
    """
    if find(records, command, order) is not None:
        raise FtError(
            Reason.REQUEST_ID_REUSED,
            f"another call with {command.request_id} tells the engines this already; repeat it for the first answer",
        )
    new = ApplyRecord(command.instance_id, command.request_id, order.fingerprint(), order.ranks)
    return (*records[-KEPT_RECORDS + 1 :], new)


def settle(records: Records, command: Command, outcomes: Sequence[RankOutcome]) -> Records:
    """Records with the outcomes of an intent."""
    by_rank = {outcome.rank: outcome for outcome in outcomes}
    key = (command.instance_id, command.request_id)
    return tuple(
        replace(record, outcomes=by_rank) if (record.instance_id, record.request_id) == key else record
        for record in records
    )


def check_order(order: ApplyOrder, plan: ScaleDownPlan | None) -> None:
    """Raise FieldError or FtError PLAN_MISMATCH unless the order says what the plan says."""
    if order.instruction is Instruction.RETRY:
        _check_retry(order, plan)
    else:
        _check_scale_down(order)
    if plan and (order.removed != plan.removed or not {rank for rank, _ in plan.survivors}.issuperset(order.ranks)):
        raise FtError(
            Reason.PLAN_MISMATCH,
            f"{order.instruction} must name the removed ranks, for retry none, and survivors of the plan under which "
            "the guard is held",
        )


def _check_retry(order: ApplyOrder, plan: ScaleDownPlan | None) -> None:
    if order.removed or order.dp_master_ip or order.dp_store_port is not None:
        raise FieldError({"instruction": "retry removes no rank and moves no store"})
    if plan is None:
        raise FieldError({"plan_hash": "retry needs a guard with a plan, which says which engines are meant"})


def _check_scale_down(order: ApplyOrder) -> None:
    if not order.removed or sorted(set(order.removed)) != list(order.removed):
        raise FieldError({"removed_dp_ranks": "at least one rank, ascending, each once"})
    if both := set(order.removed) & set(order.ranks):
        raise FieldError({"dp_ranks": f"ranks {sorted(both)} are removed; only survivors receive apply"})
    if not order.dp_master_ip:
        raise FieldError({"dp_master_ip": "address of the lowest survivor is missing"})


def lowest_survivor(order: ApplyOrder, plan: ScaleDownPlan | None, dp_size: int) -> int:
    """The rank whose node holds the store after this order; whoever is told survives, so there is one."""
    return plan.lowest_survivor if plan is not None else min(set(range(dp_size)) - set(order.removed))
