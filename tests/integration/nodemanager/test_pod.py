"""What a pod makes of its ranks' health: silence of the retired, slow watchers, suicide."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from motor_ft.model.engine import EngineObservation, EngineStatus
from motor_ft.model.errors import FtError, Reason
from nodemanager.core.ports import Target
from nodemanager.core.suicide import ABNORMAL_ROUNDS
from nodemanager.metrics import NodeMetrics
from nodemanager.pod import MAX_WAITING_READINGS, Pod
from nodemanager.suicide import SuicideWatch
from tests.integration.nodemanager.node import Node, command


def reading(node: Node, rank: int, status: EngineStatus) -> tuple[EngineObservation, Target]:
    incarnation = node.incarnation(rank)
    return EngineObservation(rank, status, incarnation, 1), Target(rank, incarnation)


async def test_a_retired_rank_that_answers_healthy_is_an_event_and_nothing_else(node: Node) -> None:
    registry = CollectorRegistry()
    pod = Pod(node.pod.endpoints(), node.journal, node.clock, metrics=NodeMetrics(registry))
    await node.guard(command())
    await node.finalize(command(), retired=[1])
    pod.observe(*reading(node, 1, EngineStatus.HEALTHY))
    assert b"motor_ft_retired_rank_healthy_total 1.0" in generate_latest(registry)
    assert pod.outbox.next(0.0) is None


async def test_a_watcher_that_is_too_slow_is_cut_never_skipped(node: Node) -> None:
    with node.pod.watch([0]) as slow:
        for _ in range(MAX_WAITING_READINGS + 1):
            node.pod.observe(*reading(node, 0, EngineStatus.HEALTHY))
        with pytest.raises(FtError) as caught:
            await slow.get(0.0)
    assert caught.value.reason is Reason.OVERLOADED


async def test_readings_of_other_ranks_do_not_hold_up_the_progress_of_a_watch(node: Node) -> None:
    """They never wake it: who hears nothing for too long takes the NodeManager for frozen."""
    with node.pod.watch([0]) as watch:
        for _ in range(MAX_WAITING_READINGS + 1):
            node.pod.observe(*reading(node, 1, EngineStatus.HEALTHY))
        node.pod.observe(*reading(node, 0, EngineStatus.HEALTHY))
        first = await watch.get(0.0)
    assert first is not None
    assert first.rank == 0


class Judged:
    """A pod whose rank 0 was healthy and is unreachable since."""

    def __init__(self, node: Node) -> None:
        self.watch = SuicideWatch(node.pod, node.journal, node.clock, enabled=True, on_due=lambda: None)
        for status in (EngineStatus.HEALTHY, EngineStatus.DEAD):
            node.pod.observe(*reading(node, 0, status))

    def due_after(self, rounds: int) -> bool:
        return [self.watch.judge() for _ in range(rounds)][-1].due


async def test_an_abnormal_pod_is_due_after_its_rounds(node: Node) -> None:
    judged = Judged(node)
    assert not judged.due_after(ABNORMAL_ROUNDS - 1)
    assert judged.due_after(1)


async def test_guard_and_collection_freeze_on_their_own(node: Node) -> None:
    judged = Judged(node)
    judged.watch.freeze(1000)
    await node.guard(command(), 60)
    assert not judged.due_after(ABNORMAL_ROUNDS)
    judged.watch.freeze(0)
    assert not judged.due_after(ABNORMAL_ROUNDS), "thawing the collection does not thaw the guard"
    judged.watch.freeze(1000)
    await node.finalize(command(), commit=False)
    assert not judged.due_after(ABNORMAL_ROUNDS), "the end of the guard does not end the collection"
    node.clock.ahead += 1000
    assert judged.due_after(ABNORMAL_ROUNDS), "the collection thaws by itself"


async def test_an_expired_guard_freezes_nothing(node: Node) -> None:
    judged = Judged(node)
    await node.guard(command(), 60)
    node.clock.ahead += 60
    assert judged.due_after(ABNORMAL_ROUNDS)


async def test_a_retired_rank_is_no_reason(node: Node) -> None:
    judged = Judged(node)
    await node.guard(command())
    await node.finalize(command(), retired=[0])
    assert not judged.due_after(ABNORMAL_ROUNDS)
