"""More reports than anybody can use, while another instance recovers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from controller.fault_manager.hardware import MAX_FAULTS_PER_NODE
from motor_ft.model.hardware import FaultLevel, HardwareFault
from motor_ft.v1 import fault_report_pb2
from motor_ft.v1.fault_report_pb2 import FaultReportRequest, FaultReportResponse
from motor_ft.v1.fault_report_pb2_grpc import FaultReportServiceStub
from motor_ft.wire.hardware import hardware_cleared_to_pb, hardware_fault_to_pb
from tests.integration.controller.reporters import Stream, read
from tests.integration.controller.serving import add_reports, connected, new_server
from tests.support.world.hardware import with_cards
from tests.support.world.pods import D, H, U, registration
from tests.support.world.world import World

if TYPE_CHECKING:
    from motor_ft.v1.fault_report_pb2_grpc import FaultReportServiceAsyncStub

REPORTS = 10_000
PODS = (
    with_cards(registration(1, [0, 1], job="struck", dp_size=2)),
    with_cards(registration(2, [0, 1], job="other", dp_size=2)),
)


def storm() -> Iterator[list[FaultReportRequest]]:
    """For ever ten more: seven faults of one node of an instance, and one elsewhere, sent twice, that ends at once."""
    sequences, light = count(2), HardwareFault("node-1", "Ascend910-0", "", FaultLevel.L3)
    for number in count():
        codes = (f"{7 * number + code:08X}" for code in range(7))
        faults = [replace(light, fault_code=code) for code in codes]
        away = replace(light, node=f"away-{number % 100}", fault_code=f"{number:08X}", level=FaultLevel.L6)
        reports = [
            FaultReportRequest(sequence=next(sequences), hardware_fault=hardware_fault_to_pb(fault))
            for fault in (*faults, away)
        ]
        over = FaultReportRequest(sequence=next(sequences), hardware_cleared=hardware_cleared_to_pb(away))
        yield [*reports, reports[-1], over]


async def adapter(stub: "FaultReportServiceAsyncStub") -> Stream:
    """A stream that has told that all hardware is well."""
    stream = stub.FaultReport()
    hello = fault_report_pb2.Hello(
        kind=fault_report_pb2.REPORTER_KIND_MINDCLUSTER,
        reporter_id="storm",
        incarnation="storm#1",
        incarnation_number=1,
    )
    await stream.write(FaultReportRequest(hello=hello))
    assert (await read(stream)).HasField("welcome")
    await stream.write(FaultReportRequest(sequence=1, snapshot=fault_report_pb2.Snapshot()))
    return stream


async def answers(stream: Stream, last: asyncio.Future[int]) -> Counter[str]:
    """How often which reason was given, until everything up to ``last`` is acknowledged."""
    refused: Counter[str] = Counter()
    acknowledged = 0
    while not (last.done() and acknowledged >= last.result()):
        response: FaultReportResponse = await read(stream)
        acknowledged = max(acknowledged, response.ack.sequence)
        if response.HasField("rejected"):
            refused[response.rejected.reason] += 1
    return refused


async def test_a_storm_of_an_adapter_delays_no_recovery_and_leaves_no_more_than_is_kept() -> None:
    """Every report is acknowledged: taken, or refused with its reason. The storm lasts until the recovery is over."""
    async with serving() as world:
        server = new_server()
        add_reports(server, world.manager)
        async with connected(server) as channel:
            stream = await adapter(FaultReportServiceStub(channel))
            last: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            answered = asyncio.create_task(answers(stream, last), name="answers")
            for number, group in enumerate(storm()):
                for report in group:
                    await stream.write(report)
                if await recovered(world, 10 * number):
                    last.set_result(group[-1].sequence)
                    assert await answered == {"OVERLOADED": 7 * (number + 1) - MAX_FAULTS_PER_NODE}
                    break
            assert world.observed.hardware_known == (1, 0, MAX_FAULTS_PER_NODE)
            assert world.can_serve(1)
            stream.cancel()


async def test_a_storm_of_a_node_manager_delays_no_recovery_and_leaves_one_state_of_each_rank() -> None:
    """The last report of a rank is what is known of it."""
    async with serving() as world:
        for number in count():
            await world.pod(1).see(0, U)
            await world.pod(1).see(0, H)
            await asyncio.sleep(0)  # as between the messages of a stream
            if await recovered(world, 2 * number):
                break
        assert world.status(1).engine_statuses == {0: H, 1: H}
        assert world.can_serve(1)


@asynccontextmanager
async def serving() -> AsyncIterator[World]:
    """Instances 1, of which the storm tells, and 2, which is to recover."""
    async with World(*PODS) as world:
        await world.connect()
        await world.until(lambda: world.can_serve(1) and world.can_serve(2))
        yield world


async def recovered(world: World, reports: int) -> bool:
    """After half of the storm's reports rank 1 of instance 2 dies; True when there are enough and it serves again."""
    if reports == REPORTS // 2:
        await world.pod(2).see(1, D)
        await world.pod(2).see(0, U)
    again = world.status(2).dead_committed == (1,) and world.can_serve(2)
    assert not again or world.controller.started == ["dp_scale_down"]
    return again and reports >= REPORTS
