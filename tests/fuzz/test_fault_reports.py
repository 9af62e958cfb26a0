"""The FaultReport stream: any messages in any order, numbers that come again; the Controller goes on for everybody."""

from collections.abc import AsyncIterator

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from motor_ft.model.errors import Reason
from motor_ft.v1 import common_pb2, fault_report_pb2
from motor_ft.v1.fault_report_pb2 import FaultReportRequest
from motor_ft.wire.convert import registration_to_pb
from motor_ft.wire.hardware import hardware_cleared_to_pb, hardware_fault_to_pb, source_to_pb
from tests.fuzz.conftest import NothingCrashed
from tests.fuzz.generators import fuzz
from tests.fuzz.protobuf import changed, messages
from tests.fuzz.surfaces import Surface, controller
from tests.support.world.hardware import WORKING, card
from tests.support.world.pods import registration

STREAM = "/motor_ft.v1.FaultReportService/FaultReport"
LIST = "/motor_ft.v1.ControllerService/ListInstances"
POD = registration(9, [0, 1], job="another", dp_size=2)
SEQUENCES = st.sampled_from([0, 1, 1, 2, 3, 2**63 - 1, -1])
"""In no order, and again."""


def _hello(
    kind: fault_report_pb2.ReporterKind.ValueType, name: str, pod: fault_report_pb2.Registration | None
) -> FaultReportRequest:
    hello = fault_report_pb2.Hello(
        kind=kind, reporter_id=name, incarnation="i-1", incarnation_number=1, registration=pod
    )
    return FaultReportRequest(hello=hello)


def _reading(status: common_pb2.EngineStatus.ValueType) -> common_pb2.EngineObservation:
    return common_pb2.EngineObservation(dp_rank=1, status=status, observation=1)


def _reports() -> list[FaultReportRequest]:
    """One of each kind, as a pod or an adapter would send it."""
    states = [common_pb2.EndpointState(dp_rank=rank, status=common_pb2.ENDPOINT_STATUS_NORMAL) for rank in (0, 1)]
    healthy = fault_report_pb2.EngineHealthy(observation=_reading(common_pb2.ENGINE_STATUS_HEALTHY))
    fault = fault_report_pb2.EngineFault(
        observation=_reading(common_pb2.ENGINE_STATUS_DEAD), source=common_pb2.EVIDENCE_SOURCE_ENGINE_REPORTED
    )
    death = fault_report_pb2.ProcessDeath(dp_rank=1, pid=7)
    snapshot = fault_report_pb2.Snapshot(endpoints=states, healthy=[healthy], ready=True)
    hardware = hardware_fault_to_pb(card(1, 9))
    everything = fault_report_pb2.Snapshot(hardware_faults=[hardware], hardware_sources=[source_to_pb(WORKING)])
    return [
        _hello(fault_report_pb2.REPORTER_KIND_NODE_MANAGER, "uid-9", registration_to_pb(POD)),
        _hello(fault_report_pb2.REPORTER_KIND_MINDCLUSTER, "adapter", None),
        FaultReportRequest(heartbeat=fault_report_pb2.Heartbeat(endpoints=states)),
        FaultReportRequest(engine_fault=fault),
        FaultReportRequest(engine_healthy=healthy),
        FaultReportRequest(process_death=death),
        FaultReportRequest(snapshot=snapshot),
        FaultReportRequest(snapshot=everything),
        FaultReportRequest(hardware_fault=hardware),
        FaultReportRequest(hardware_cleared=hardware_cleared_to_pb(card(1, 9))),
    ]


REPORTS = _reports()
HELLOS = REPORTS[:2]


@st.composite
def numbered(draw: DrawFn) -> FaultReportRequest:
    """A report, changed or not, under any number."""
    report = draw(st.sampled_from(REPORTS).flatmap(changed) | messages(FaultReportRequest))
    report.sequence = draw(st.just(report.sequence) | SEQUENCES)
    return report


@st.composite
def conversations(draw: DrawFn) -> list[FaultReportRequest]:
    """Most begin well."""
    first = draw(st.sampled_from(HELLOS) | st.sampled_from(HELLOS).flatmap(changed) | numbered())
    return [first, *draw(st.lists(numbered(), max_size=8))]


@pytest.fixture
async def surface() -> AsyncIterator[Surface]:
    async with controller() as surface:
        yield surface


@given(said=conversations())
@fuzz(2)
async def test_whatever_a_reporter_says_the_others_are_served(
    surface: Surface, nothing_crashed: NothingCrashed, said: list[FaultReportRequest]
) -> None:
    answer = await surface.ask(STREAM, *(message.SerializeToString() for message in said))
    ended_early = answer.text == "Internal error from Core"  # grpc's client: it had more to send
    assert ended_early or answer.code is grpc.StatusCode.OK or answer.reason in set(Reason) - {Reason.INTERNAL}
    assert (await surface.ask(LIST, b"")).code is grpc.StatusCode.OK
    nothing_crashed()
