"""Reports from messages: everything valid arrives whole, everything else is refused by field."""

from contextlib import suppress

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from controller.convert import hardware_report_from_pb, report_from_pb
from controller.core.reports import (
    EndpointState,
    EngineFault,
    EngineHealthy,
    HardwareCleared,
    HardwareSnapshot,
    Heartbeat,
    ProcessDeath,
    Snapshot,
)
from motor_ft.model.engine import EngineObservation, EngineStatus, EvidenceSource, Problem
from motor_ft.model.errors import FieldError
from motor_ft.model.hardware import FaultLevel, HardwareFault, SourceState
from motor_ft.model.topology import Endpoint, EndpointStatus
from motor_ft.v1 import common_pb2, fault_report_pb2
from motor_ft.v1.fault_report_pb2 import FaultReportRequest
from motor_ft.wire.convert import duration_to_pb, endpoint_to_pb, observation_to_pb
from motor_ft.wire.hardware import hardware_cleared_to_pb, hardware_fault_to_pb, source_to_pb

HEALTHY = EngineObservation(0, EngineStatus.HEALTHY, incarnation="e-0", observation=4)
LOST = EngineObservation(1, EngineStatus.UNKNOWN, problem=Problem.UNREACHABLE, detail="refused")
ENDPOINT = Endpoint(1, "10.0.0.1", 8001)


def death(**change: object) -> fault_report_pb2.ProcessDeath:
    """A worker of rank 1 ended."""
    fields = {"dp_rank": 1, "engine_incarnation": "e-1", "pid": 42, "detail": "SIGKILL", "age": duration_to_pb(0.5)}
    return fault_report_pb2.ProcessDeath(**(fields | change))  # type: ignore[arg-type]


def fault(observation: EngineObservation, **change: object) -> fault_report_pb2.EngineFault:
    """A fault without a source."""
    return fault_report_pb2.EngineFault(observation=observation_to_pb(observation), **change)  # type: ignore[arg-type]


def test_a_snapshot_arrives_whole() -> None:
    message = fault_report_pb2.Snapshot(
        endpoints=[common_pb2.EndpointState(dp_rank=1, status=common_pb2.ENDPOINT_STATUS_ABNORMAL, headless=True)],
        faults=[fault(LOST, source=common_pb2.EVIDENCE_SOURCE_STATUS_UNREACHABLE, age=duration_to_pb(2))],
        deaths=[death()],
        healthy=[fault_report_pb2.EngineHealthy(observation=observation_to_pb(HEALTHY))],
        retired_dp_ranks=[2, 3],
        ready=True,
        registered=[endpoint_to_pb(ENDPOINT)],
    )
    assert report_from_pb(FaultReportRequest(sequence=1, snapshot=message)) == Snapshot(
        endpoints=(EndpointState(1, EndpointStatus.ABNORMAL, headless=True),),
        faults=(EngineFault(LOST, EvidenceSource.STATUS_UNREACHABLE, 2.0),),
        deaths=(ProcessDeath(1, "e-1", 42, "SIGKILL", 0.5),),
        healthy=(EngineHealthy(HEALTHY),),
        retired=(2, 3),
        ready=True,
        registered=(ENDPOINT,),
    )


def test_a_process_death_arrives_whole() -> None:
    report = report_from_pb(FaultReportRequest(sequence=1, process_death=death()))
    assert report == ProcessDeath(1, "e-1", 42, "SIGKILL", 0.5)


def test_a_fault_without_a_source_is_no_evidence() -> None:
    assert report_from_pb(FaultReportRequest(sequence=1, engine_fault=fault(LOST))) == EngineFault(LOST, None)


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (FaultReportRequest(sequence=1, engine_fault=fault(HEALTHY)), "engine_fault.observation.status"),
        (FaultReportRequest(sequence=1, engine_fault=fault(LOST, source=99)), "engine_fault.source"),
        (FaultReportRequest(sequence=1, process_death=death(dp_rank=-1)), "process_death.dp_rank"),
        (FaultReportRequest(sequence=1, process_death=death(age=Duration(seconds=-1))), "process_death.age"),
        (
            FaultReportRequest(
                sequence=1,
                engine_healthy=fault_report_pb2.EngineHealthy(observation=observation_to_pb(LOST)),
            ),
            "engine_healthy.observation.status",
        ),
        (
            FaultReportRequest(sequence=1, snapshot=fault_report_pb2.Snapshot(deaths=[death(), death(dp_rank=-1)])),
            "snapshot.deaths[1].dp_rank",
        ),
        (
            FaultReportRequest(sequence=1, snapshot=fault_report_pb2.Snapshot(retired_dp_ranks=[2, 1])),
            "snapshot.retired_dp_ranks",
        ),
    ],
    ids=["healthy fault", "source", "rank", "age", "healthy", "death in snapshot", "retired"],
)
def test_a_bad_field_is_named(message: FaultReportRequest, path: str) -> None:
    with pytest.raises(FieldError) as refusal:
        report_from_pb(message)
    assert list(refusal.value.violations) == [path]


INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
DURATIONS = st.builds(Duration, seconds=INT64, nanos=INT32)
DEATHS = st.builds(fault_report_pb2.ProcessDeath, dp_rank=INT32, pid=INT32, age=DURATIONS)
READINGS = st.builds(
    common_pb2.EngineObservation,
    dp_rank=INT32,
    status=st.integers(0, 7),
    ft_state=st.integers(0, 4),
    observation=INT64,
    problem=st.integers(0, 7),
)
FAULTS = st.builds(fault_report_pb2.EngineFault, observation=READINGS, source=st.integers(0, 5), age=DURATIONS)


@given(
    st.one_of(
        st.builds(FaultReportRequest, sequence=INT64, process_death=DEATHS),
        st.builds(FaultReportRequest, sequence=INT64, engine_fault=FAULTS),
        st.builds(
            FaultReportRequest,
            sequence=INT64,
            snapshot=st.builds(
                fault_report_pb2.Snapshot,
                deaths=st.lists(DEATHS),
                faults=st.lists(FAULTS),
                retired_dp_ranks=st.lists(INT32),
            ),
        ),
    )
)
def test_whatever_arrives_is_a_report_or_a_bad_field(message: FaultReportRequest) -> None:
    """Nothing that a reporter sends is a defect of ours."""
    with suppress(FieldError):
        report_from_pb(message)


CARD = HardwareFault("node-a", "Ascend910-4", "80E18402", FaultLevel.L6, "SeparateNPU", sources=("cm-device",))


def test_hardware_reports_arrive_whole() -> None:
    """A fault, its end, and everything at once, the sources that do not work included."""
    fault = FaultReportRequest(sequence=3, hardware_fault=hardware_fault_to_pb(CARD))
    assert hardware_report_from_pb(fault) == CARD
    cleared = FaultReportRequest(sequence=4, hardware_cleared=hardware_cleared_to_pb(CARD))
    assert hardware_report_from_pb(cleared) == HardwareCleared(CARD.key)
    down = SourceState("clusterd-query", "", "connection refused")
    snapshot = fault_report_pb2.Snapshot(
        hardware_faults=[hardware_fault_to_pb(CARD)], hardware_sources=[source_to_pb(down)]
    )
    message = FaultReportRequest(sequence=5, snapshot=snapshot)
    assert hardware_report_from_pb(message) == HardwareSnapshot((CARD,), (down,))
    beat = FaultReportRequest(heartbeat=fault_report_pb2.Heartbeat())
    assert hardware_report_from_pb(beat) == Heartbeat(())


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (FaultReportRequest(sequence=1), "report"),
        (FaultReportRequest(sequence=1, heartbeat=fault_report_pb2.Heartbeat()), "sequence"),
        (FaultReportRequest(hardware_fault=hardware_fault_to_pb(CARD)), "sequence"),
        (
            FaultReportRequest(
                sequence=1, snapshot=fault_report_pb2.Snapshot(hardware_faults=[fault_report_pb2.HardwareFault()])
            ),
            "snapshot.hardware_faults[0].key.node_name",
        ),
    ],
    ids=["nothing", "heartbeat", "without a sequence", "snapshot"],
)
def test_a_report_that_is_none_of_hardware_is_refused_by_field(message: FaultReportRequest, path: str) -> None:
    with pytest.raises(FieldError) as refused:
        hardware_report_from_pb(message)
    assert list(refused.value.violations) == [path]
