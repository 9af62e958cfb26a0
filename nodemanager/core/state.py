"""What a NodeManager remembers across a restart: one immutable value, replaced as a whole (recovery.md section 8)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from motor_ft.model.command import Command
from motor_ft.model.engine import RankOutcome
from motor_ft.model.errors import FieldError, FtError, Reason
from nodemanager.core.applies import ApplyOrder, Records, intend, settle
from nodemanager.core.fence import Fence
from nodemanager.core.guard import BootTime, Guard, check_finalize, check_live

KEPT_ANSWERS = 64
RELAUNCH = "RestartEngines"


@dataclass(frozen=True, slots=True)
class Answer:
    """First answer of a command, for its repeats; ``payload`` is the SHA-256 (hex) of the request."""

    method: str
    key: str
    payload: str
    response: bytes


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """Identity of one engine process; ``pid`` 0 where only its endpoint is known, ``started`` in clock ticks."""

    incarnation: str
    pid: int = 0
    started: int = 0


@dataclass(frozen=True, slots=True)
class NodeState:
    """Everything durable.

    ``ended`` is the id of the last transaction that was finalized here or whose abort came first, ``committed`` that of
    the last one that was committed, ``stopped`` the (instance, generation) of the last Stop and ``stopped_starts`` how
    many engines had been started by then.
    """

    fence: Fence = field(default_factory=Fence)
    instance_id: int | None = None
    scale_down_on: bool = False
    guard: Guard | None = None
    ended: str = ""
    committed: str = ""
    stopped: tuple[int, int] | None = None
    stopped_starts: int = -1
    retired: frozenset[int] = frozenset()
    applies: Records = ()
    answers: tuple[Answer, ...] = ()
    ready: bool = False
    starts: int = 0
    engine_starts: int = 0
    engines: Mapping[int, EngineProcess] = field(default_factory=dict)


def started(state: NodeState) -> NodeState:
    """A process of the NodeManager starts: its incarnation number is ``starts``."""
    return replace(state, starts=state.starts + 1)


def began(state: NodeState, engines: Mapping[int, EngineProcess], starts: int) -> NodeState:
    """These engines run now, ``starts`` were started so far.

    When some are new, the pod was not ready yet, whatever was before, and it takes no part any more in a transaction
    that meant the others: its guard has ended, and neither a Guard nor a commit of it is accepted, repeated or not.
    """
    state = replace(state, engines=engines)
    if starts == state.engine_starts:
        return state
    return replace(
        state,
        engine_starts=starts,
        ready=False,
        guard=None,
        ended=state.guard.holder.request_id if state.guard else state.ended,
        committed="",
        answers=tuple(answer for answer in state.answers if answer.method == RELAUNCH),
    )


def welcomed(state: NodeState, instance_id: int, epoch: int, generation: int, *, scale_down_on: bool) -> NodeState:
    """A Controller knows the pod. Only another instance clears retirement, and the old guard with it.

    Raises FtError STALE_EPOCH for a Controller that is behind the highest epoch seen.
    """
    state.fence.check_epoch(epoch)
    if instance_id != state.instance_id:
        # Commands of other instances are refused as such: their generations would only make every record longer.
        state = replace(state, guard=None, ended="", retired=frozenset(), fence=Fence(state.fence.epoch))
    fence = state.fence.note(instance_id, epoch, generation)
    return replace(state, fence=fence, instance_id=instance_id, scale_down_on=scale_down_on)


def admit(state: NodeState, command: Command) -> Fence:
    """The fence after the command.

    Asked when the command arrives and again with every step that it takes: a Welcome may come in between. Raises
    FtError STALE_EPOCH or STALE_GENERATION, or UNKNOWN_INSTANCE for an instance that this pod is not part of.
    """
    state.fence.check(command)
    if command.instance_id != state.instance_id:
        raise FtError(
            Reason.UNKNOWN_INSTANCE,
            f"this pod belongs to instance {state.instance_id or '(none yet)'}, not {command.instance_id}",
        )
    return _noted(state, command)


def check_not_ended(state: NodeState, command: Command) -> None:
    """Raise FtError STALE_REQUEST_ID for a late Guard of a transaction that has ended here."""
    if command.request_id == state.ended:
        raise FtError(Reason.STALE_REQUEST_ID, f"{command.request_id} has ended here; a transaction has one id")


def guarded(state: NodeState, guard: Guard) -> NodeState:
    """The lease was taken or renewed; raises what ``admit`` raises."""
    return replace(state, guard=guard, fence=admit(state, guard.holder))


def intended(state: NodeState, command: Command, order: ApplyOrder) -> NodeState:
    """An order is about to be sent; raises what ``admit`` and ``intend`` raise."""
    return replace(state, applies=intend(state.applies, command, order), fence=admit(state, command))


def check_sending(state: NodeState, command: Command, now: BootTime) -> Guard:
    """The guard, asked right before an intended order leaves: a Finalize or a Welcome may have come since.

    An unfenced command has a stand-in for its fence on the way to the engines. Raises what ``admit`` and ``check_live``
    raise.
    """
    admit(state, command)
    if state.guard is not None and state.guard.holder.epoch is None:
        command = replace(command, epoch=None, generation=None)
    return check_live(state.guard, command, now)


def settled(state: NodeState, command: Command, outcomes: tuple[RankOutcome, ...]) -> NodeState:
    """An order was answered."""
    return replace(state, applies=settle(state.applies, command, outcomes))


def finalized(
    state: NodeState, command: Command, *, commit: bool, retired: Iterable[int], own: frozenset[int], now: BootTime
) -> NodeState:
    """The transaction has ended: the guard is lifted, and on commit the ranks are retired for good.

    A commit that is repeated because this process was killed before it could answer changes nothing. Raises what
    ``admit`` and ``check_finalize`` raise, FtError UNKNOWN_RANK for a rank of another pod, PLAN_MISMATCH for one that
    the plan keeps, FieldError for an abort that retires; nothing is changed then.
    """
    fence = admit(state, command)
    ranks = frozenset(retired)
    if commit and state.committed == command.request_id and ranks <= state.retired:
        return replace(state, fence=fence)
    guard = check_finalize(state.guard, command, commit=commit, now=now)
    if ranks and not commit:
        raise FieldError({"retired_dp_ranks": "an abort retires nothing"})
    if foreign := ranks - own:
        raise FtError(Reason.UNKNOWN_RANK, f"ranks {sorted(foreign)} do not belong to this pod")
    if guard.plan and (kept := ranks - set(guard.plan.removed)):
        raise FtError(Reason.PLAN_MISMATCH, f"the plan does not remove ranks {sorted(kept)}")
    return replace(
        state,
        guard=None,
        ended=command.request_id,
        committed=command.request_id if commit else state.committed,
        retired=state.retired | ranks,
        fence=fence,
    )


def abandoned(state: NodeState, command: Command, now: BootTime) -> NodeState:
    """An abort was refused: where no lease runs it has perhaps overtaken its own Guard, which comes too late now.

    Raises what ``admit`` raises.
    """
    fence = admit(state, command)
    if state.guard is not None and state.guard.live(now):
        return state
    return replace(state, ended=command.request_id, fence=fence)


def stopped(state: NodeState, command: Command) -> NodeState:
    """The pod was told to stop: what is started after it has to become ready anew. Raises what ``admit`` raises."""
    fence = admit(state, command)
    return replace(state, stopped=_episode(command), stopped_starts=state.engine_starts, ready=False, fence=fence)


def was_stopped(state: NodeState, command: Command) -> bool:
    """This is a repeat of the last Stop, and engines have been started since: a kill may have cut it short."""
    return state.stopped == _episode(command) and state.engine_starts > state.stopped_starts


def relaunch_answer(state: NodeState, command: Command) -> bytes | None:
    """The first answer to this RestartEngines, None when it is new."""
    return replay(state, *_relaunch(command), payload="")


def relaunched(state: NodeState, command: Command, response: bytes) -> NodeState:
    """The pod was told to start its engines anew: they have to become ready anew. Raises what ``admit`` raises."""
    state = replace(state, ready=False, fence=admit(state, command))
    return answered(state, command, Answer(*_relaunch(command), payload="", response=response))


def answered(state: NodeState, command: Command, answer: Answer) -> NodeState:
    """A command was answered for the first time."""
    return replace(
        state,
        answers=(*state.answers[-KEPT_ANSWERS + 1 :], answer),
        fence=_noted(state, command),
    )


def replay(state: NodeState, method: str, key: str, payload: str) -> bytes | None:
    """The first answer to a repeated command; raises FtError REQUEST_ID_REUSED when the repeat says something else."""
    for answer in state.answers:
        if (answer.method, answer.key) == (method, key):
            if answer.payload != payload:
                raise FtError(Reason.REQUEST_ID_REUSED, f"{key} was used with another request; use a new id")
            return answer.response
    return None


def _noted(state: NodeState, command: Command) -> Fence:
    return state.fence.note(command.instance_id, command.epoch, command.generation)


def _relaunch(command: Command) -> tuple[str, str]:
    return RELAUNCH, "{}/{}".format(*_episode(command))


def _episode(command: Command) -> tuple[int, int]:
    return command.instance_id, command.generation or 0
