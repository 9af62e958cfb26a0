"""The transaction lease of one pod (recovery.md section 8, RFC section 6)."""

import math
from dataclasses import dataclass, replace

from motor_ft.model.command import MAX_LEASE_SEC, Command, ScaleDownPlan, hash_plan
from motor_ft.model.errors import FieldError, FtError, Reason


@dataclass(frozen=True, slots=True)
class BootTime:
    """Seconds since the machine booted, and which boot: outlives a process, not a reboot."""

    boot_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Guard:
    """Who holds the pod, until when, and under which plan."""

    holder: Command
    boot_id: str
    deadline: float
    plan: ScaleDownPlan | None = None
    dp_store_port: int | None = None

    @property
    def plan_hash(self) -> str:
        """Hash of the plan, empty before there is one."""
        return self.plan.plan_hash if self.plan else ""

    def remaining(self, now: BootTime) -> float:
        """Seconds left of the lease; 0 when it is over or the machine was rebooted since."""
        return max(0.0, self.deadline - now.seconds) if now.boot_id == self.boot_id else 0.0

    def live(self, now: BootTime) -> bool:
        """The lease runs; at exactly the deadline it is over."""
        return self.remaining(now) > 0


def check_lease(lease_sec: float) -> None:
    """Raise FieldError unless the lease is in (0, 3600] s; NaN is not."""
    if not 0 < lease_sec <= MAX_LEASE_SEC or math.isnan(lease_sec):
        raise FieldError({"lease": f"{lease_sec} s; must be more than 0 and at most {MAX_LEASE_SEC:g} s"})


def take(
    guard: Guard | None,
    command: Command,
    lease_sec: float,
    plan: ScaleDownPlan | None,
    now: BootTime,
) -> Guard:
    """Take or renew the lease; a plan stays attached when a renewal comes without one.

    A fenced command takes it from a live unfenced holder: the Controller is the authority. Raises FtError GUARD_HELD
    (another id holds it, or a fenced guard meets an unfenced command), PLAN_MISMATCH (the plan is not what its hash
    says, or not the one that this transaction froze), FieldError for the lease.
    """
    check_lease(lease_sec)
    if plan is not None:
        _check_plan(command, plan)
    fresh = Guard(command, now.boot_id, now.seconds + lease_sec, plan)
    if guard is None:
        return fresh
    same = guard.holder.request_id == command.request_id
    refused = not same or _unfenced_against_fenced(guard, command)
    if guard.live(now) and refused and not displaces(guard, command, now):
        raise _held(guard, now)
    if not same:
        return fresh
    if plan is not None and guard.plan is not None and plan != guard.plan:
        raise FtError(
            Reason.PLAN_MISMATCH,
            f"transaction {command.request_id} froze plan {guard.plan_hash}; it cannot change to {plan.plan_hash}",
            got=plan.plan_hash,
            current=guard.plan_hash,
        )
    return replace(fresh, plan=plan or guard.plan, dp_store_port=guard.dp_store_port)


def displaces(guard: Guard, command: Command, now: BootTime) -> bool:
    """The command is fenced and takes the live guard of another transaction, which is not."""
    other = guard.holder.request_id != command.request_id
    return other and guard.live(now) and guard.holder.epoch is None and command.epoch is not None


def check_apply(guard: Guard | None, command: Command, plan_hash: str, now: BootTime) -> Guard:
    """The live guard of exactly this id, epoch, generation and plan.

    Raises FtError PLAN_MISMATCH and what ``check_live`` raises.
    """
    guard = check_live(guard, command, now)
    if plan_hash != guard.plan_hash:
        raise FtError(
            Reason.PLAN_MISMATCH,
            f"the guard is held under plan {guard.plan_hash or '(none)'}, not {plan_hash or '(none)'}",
            got=plan_hash,
            current=guard.plan_hash,
        )
    return guard


def check_live(guard: Guard | None, command: Command, now: BootTime) -> Guard:
    """The live guard of exactly this id, epoch and generation.

    Raises FtError GUARD_REQUIRED, STALE_REQUEST_ID, GUARD_HELD or GUARD_EXPIRED.
    """
    guard = _owned(guard, command, now)
    if not guard.live(now):
        raise _expired(guard, "nothing is sent to an engine")
    return guard


def check_finalize(guard: Guard | None, command: Command, *, commit: bool, now: BootTime) -> Guard:
    """The guard of this id: live, or over and committed late while nobody else took over.

    Raises FtError GUARD_REQUIRED, STALE_REQUEST_ID, GUARD_HELD or GUARD_EXPIRED; nothing is thawed then.
    """
    guard = _owned(guard, command, now)
    if not commit and not guard.live(now):
        raise _expired(guard, "there is nothing left to abort")
    return guard


def _owned(guard: Guard | None, command: Command, now: BootTime) -> Guard:
    if guard is None:
        raise FtError(Reason.GUARD_REQUIRED, f"no guard is held for {command.request_id}; call Guard first")
    holder = guard.holder
    if holder.request_id != command.request_id:
        raise FtError(
            Reason.STALE_REQUEST_ID,
            f"{command.request_id} does not hold the guard, {holder.request_id} does",
            holder=holder.request_id,
        )
    if _unfenced_against_fenced(guard, command):
        raise _held(guard, now)
    if (holder.epoch, holder.generation) != (command.epoch, command.generation):
        raise FtError(
            Reason.STALE_REQUEST_ID,
            f"{holder.request_id} took the guard in epoch {holder.epoch}, generation {holder.generation}, "
            f"not in epoch {command.epoch}, generation {command.generation}; call Guard again",
            holder=holder.request_id,
        )
    return guard


def _unfenced_against_fenced(guard: Guard, command: Command) -> bool:
    return command.epoch is None and guard.holder.epoch is not None


def _held(guard: Guard, now: BootTime) -> FtError:
    left = guard.remaining(now)
    return FtError(
        Reason.GUARD_HELD,
        f"{guard.holder.request_id} holds the guard for another {left:.1f} s",
        holder=guard.holder.request_id,
        remaining=f"{left:.3f}",
    )


def _expired(guard: Guard, consequence: str) -> FtError:
    return FtError(Reason.GUARD_EXPIRED, f"the guard of {guard.holder.request_id} is over: {consequence}")


def _check_plan(command: Command, plan: ScaleDownPlan) -> None:
    if command.generation is None:
        raise FieldError({"plan": "a plan needs controller_epoch and generation in the header"})
    computed = hash_plan(command.instance_id, command.generation, plan.removed, plan.survivors)
    if computed != plan.plan_hash:
        raise FtError(
            Reason.PLAN_MISMATCH,
            f"plan_hash {plan.plan_hash or '(none)'} is not the hash of the plan that was sent ({computed})",
            got=plan.plan_hash,
            current=computed,
        )
