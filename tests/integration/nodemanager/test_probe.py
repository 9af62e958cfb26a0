"""Probe over gRPC: one token of each asked engine, behind the same fence as the transaction."""

import pytest

from motor_ft.model.errors import FtError, Reason
from motor_ft.v1 import common_pb2
from tests.integration.nodemanager.node import EPOCH, Node, command

SERVED, FAILED = common_pb2.PROBE_OUTCOME_SERVED, common_pb2.PROBE_OUTCOME_FAILED


async def test_every_asked_engine_is_asked_once_as_the_process_that_is_meant(node: Node) -> None:
    node.gateway.probed = {0: SERVED, 1: common_pb2.PROBE_OUTCOME_NOT_SERVED_HERE}
    answer = await node.probe(command(), 0, 1, timeout=2.5)
    assert [(each.dp_rank, each.outcome, each.detail) for each in answer.probes] == [
        (0, SERVED, "as a test says"),
        (1, common_pb2.PROBE_OUTCOME_NOT_SERVED_HERE, "as a test says"),
    ]
    asked = sorted((each.target.dp_rank, each.target.engine_incarnation) for each in node.gateway.probes)
    assert asked == [(rank, node.incarnation(rank)) for rank in (0, 1)]
    assert {each.timeout.ToNanoseconds() for each in node.gateway.probes} == {2_500_000_000}


async def test_an_engine_that_could_not_be_asked_has_not_served(node: Node) -> None:
    node.gateway.probed = {0: SERVED}
    answer = await node.probe(command(), 0, 1)
    assert [(each.outcome, each.detail) for each in answer.probes] == [
        (SERVED, "as a test says"),
        (FAILED, "UNKNOWN_RANK: no such engine here"),
    ]


async def test_what_is_not_routable_here_is_refused_and_nobody_is_asked(node: Node) -> None:
    """Rank 3 is headless, rank 9 is elsewhere."""
    for rank in (3, 9):
        with pytest.raises(FtError) as refused:
            await node.probe(command(), 0, rank)
        assert refused.value.reason is Reason.UNKNOWN_RANK
    assert node.gateway.probes == []


async def test_a_former_leader_and_a_missing_timeout_are_refused(node: Node) -> None:
    with pytest.raises(FtError) as stale:
        await node.probe(command(epoch=EPOCH - 1), 0)
    assert stale.value.reason is Reason.STALE_EPOCH
    with pytest.raises(FtError, match="timeout: must be more than 0"):
        await node.probe(command(), 0, timeout=0)
    assert node.gateway.probes == []
