"""What readings of survivors mean for a transaction (recovery.md section 5, steps 5 and 9; pitfalls 1 to 3)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from motor_ft.model.engine import EngineObservation, EngineStatus, FtState, RankOutcome


class Verdict(StrEnum):
    """GO: on to the next step. WAIT: ask again. DEAD: this rank is gone too. FAILED: the transaction is over."""

    GO = "go"
    WAIT = "wait"
    DEAD = "dead"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and why."""

    verdict: Verdict
    text: str = ""


def judge_ready(seen: EngineObservation) -> Judgement:
    """May this survivor receive apply? Only UNHEALTHY without a command state."""
    rank = f"rank {seen.rank}"
    if seen.status is EngineStatus.UNKNOWN:
        return Judgement(Verdict.FAILED, f"{rank} could not be read ({seen.problem}): {seen.detail}")
    if seen.status is EngineStatus.DEAD:
        return Judgement(Verdict.DEAD, f"{rank} is dead")
    if seen.command_failed:
        return Judgement(Verdict.FAILED, f"{rank} shows a failed command: {seen.ft_error}")
    if seen.status is EngineStatus.UNHEALTHY and seen.ft_state is FtState.NONE:
        return Judgement(Verdict.GO)
    return Judgement(Verdict.WAIT, f"{rank} is {seen.status} {seen.ft_state}".rstrip())


def judge_recovery(seen: EngineObservation, incarnation: str, accepted: RankOutcome, request_id: str) -> Judgement:
    """Has this survivor carried out our command? Only a reading that started after its 202 says anything."""
    rank = f"rank {seen.rank}"
    unread = seen.status is EngineStatus.UNKNOWN
    if seen.incarnation != incarnation and not unread:
        return Judgement(Verdict.FAILED, f"{rank} is another engine now ({seen.incarnation})")
    if seen.observation <= accepted.observation and not (unread and seen.observation == 0):
        return Judgement(Verdict.WAIT, f"{rank}: the reading is older than its acceptance")
    if unread:
        return Judgement(Verdict.FAILED, f"{rank} could not be read ({seen.problem}): {seen.detail}")
    if seen.status is EngineStatus.DEAD:
        return Judgement(Verdict.FAILED, f"{rank} is dead: {seen.ft_error}".removesuffix(": "))
    if seen.command_failed and seen.last_ft_request_id in {request_id, accepted.engine_request_id}:
        return Judgement(Verdict.FAILED, f"{rank} failed: {seen.ft_error}")
    if seen.status is EngineStatus.HEALTHY and seen.ft_state is FtState.NONE:
        return Judgement(Verdict.GO)
    return Judgement(Verdict.WAIT, f"{rank} is {seen.status} {seen.ft_state}".rstrip())


def still_dead(seen: EngineObservation) -> bool:
    """Asked once more, does a rank that was only unreachable stay D? An answer of its own that is not dead ends it."""
    return seen.status in {EngineStatus.UNKNOWN, EngineStatus.DEAD}


def worst(judgements: Mapping[int, Judgement], ranks: Iterable[int]) -> Judgement:
    """The judgement of a group: FAILED before WAIT before GO; a rank without a reading waits."""
    missing = Judgement(Verdict.WAIT, "not read yet")
    found = [judgements.get(rank, missing) for rank in ranks]
    for verdict in (Verdict.FAILED, Verdict.WAIT):
        texts = [judgement.text for judgement in found if judgement.verdict is verdict]
        if texts:
            return Judgement(verdict, "; ".join(texts))
    return Judgement(Verdict.GO)
